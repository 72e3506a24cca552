"""Direct batches compared with Spark's own sink, and under external faults: a second driver, a broker restart."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.file_query import Query, kafka_sink
from tests.live.spark_support import Pipeline, spark
from tests.live.test_spark_brokers import RESTART
from tests.live.test_spark_direct import DIRECT, STEPS, sink_of, ways
from tests.live.test_spark_recovery import run_a_copy_while_paused
from tests.reader import records
from twopc.crash_points import POINTS

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import Message
    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.services.kafka import LocalKafka

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

#: The rows that Spark's own sink and this sink accept. Some contain bytes that are not text, and some name a partition.
EXPRESSIONS = (
    "IF(n % 5 = 0, concat(CAST(id AS BINARY), X'FF00'), CAST(id AS BINARY)) AS key",
    "IF(n % 5 = 1, concat(X'00FE', CAST(value AS BINARY)), CAST(value AS BINARY)) AS value",
    "IF(n % 6 = 0, CAST(n % 2 AS INT), NULL) AS partition",
    "IF(n % 7 = 0, NULL, array(named_struct('key', 'h', 'value', CAST(CAST(n AS STRING) AS BINARY)))) AS headers",
)


# For the sample in `make test`, see test_spark_recovery: the driver writes small batches there, too.
@pytest.mark.whole
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_paused_in_a_direct_batch_is_fenced_by_one_that_ran_meanwhile(
    point: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=20)
    run_a_copy_while_paused(pipeline, spark, point)
    assert all(way == [True] for way in ways(sink_of(pipeline)))


@pytest.mark.whole
@pytest.mark.parametrize(
    "point", [step if step == "driver.decided" else pytest.param(step, marks=pytest.mark.whole) for step in STEPS]
)
def test_a_broker_that_restarts_in_a_direct_batch_loses_and_duplicates_nothing(
    point: str, fresh_kafka: LocalKafka, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(fresh_kafka.bootstrap_servers, tmp_path, max_offsets=20)
    pipeline.feed(60)
    run = pipeline.process(f"{point}=stop")
    try:
        run.wait_stopped()
        fresh_kafka.kill()
        fresh_kafka.restart()
        run.resume()
        if run.ended(300):
            assert any(error in run.text for error in RESTART), run.text[-3000:]
            pipeline.run(spark)
        assert all(way == [True] for way in ways(sink_of(pipeline)))
        pipeline.require_exactly_once()
        pipeline.require_order()
    finally:
        pipeline.close()


@pytest.mark.parametrize(
    "count",
    [
        1,
        *(pytest.param(count, marks=pytest.mark.whole) for count in (100, 2_000)),
        pytest.param(20_000, marks=pytest.mark.whole),
    ],
)
def test_the_driver_and_the_tasks_write_the_same_records_as_sparks_own_sink(
    count: int, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - the seed repeats the test
    chance = random.Random(seed)
    given = [
        {
            "id": chance.choice([None, "", f"k{chance.randrange(50)}", "ключ"]),
            "value": chance.choice([None, "", "x" * chance.randrange(300), f"v{number}", "значение"]),
            "n": number,
        }
        for number in range(count)
    ]
    found = {}
    for way in ("driver", "tasks", "auto", "spark"):
        query = Query(spark, tmp_path / way, (kafka_sink(kafka.bootstrap_servers),), {"write_by": way})
        if way == "spark":
            query.function = lambda _, topic=query.sinks[0].topic: _by_spark(kafka.bootstrap_servers, topic)  # type: ignore[misc]
            query.settings = DIRECT
        query.schema = "id STRING, value STRING, n BIGINT"
        query.directory.mkdir()
        query.feed(*given[: count // 2])
        query.feed(*given[count // 2 :])
        query.run(*EXPRESSIONS)
        if way == "auto":
            assert [any(way) for way in ways(query.sinks[0])] == [False, True]  # the first one is measured
        found[way] = records(kafka.bootstrap_servers, query.sinks[0].topic)
    expected = found.pop("spark")
    assert len(expected) == count
    for way, ours in found.items():
        assert Counter(map(_content, ours)) == Counter(map(_content, expected)), way
        assert _by_key(ours) == _by_key(expected), way


def _by_spark(servers: str, topic: str) -> Any:
    def function(frame: DataFrame, batch_id: int) -> None:
        assert batch_id in {0, 1}
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
        writer.option("includeHeaders", True).save()  # noqa: FBT003 - the value of Spark's option

    return function


def _content(message: Message) -> tuple[Any, ...]:
    headers: tuple[Any, ...] = tuple(message.headers() or ())
    # A record without a key may be in any partition, unless its row names one.
    is_placed = message.key() is not None or any(int(value) % 6 == 0 for _, value in headers)
    return message.key(), message.value(), headers, message.partition() if is_placed else None


def _by_key(found: list[Message]) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """The records in Kafka's order, which exists only within a partition."""
    by_key: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for message in found:
        if (key := message.key()) is not None:
            by_key[message.partition(), key].append((message.value(), tuple(message.headers() or ())))
    return by_key
