"""Small batches that the driver writes itself: the same records, the same guarantees, and a bound."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from tests.live.file_query import (
    BATCHES,
    SUMS,
    VALUES,
    Query,
    adding,
    counted,
    counters,
    counting,
    kafka_sink,
    redis_client,
    values,
)
from tests.live.redis.conftest import redis_server
from tests.live.spark_support import BY_TASKS, Pipeline, spark
from tests.live.test_spark_recovery import decide_and_lose
from tests.reader import records
from twopc import DriverUpTo
from twopc.crash_points import POINTS
from twopc.integration.spark import collect
from twopc.records import Decision, Repair
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.redis.services import RedisService
    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

__all__ = ["redis_server", "spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

DIRECT = {"write_by": "driver"}
#: The crash points of both roles, because the driver is also the writer. Only the first start passes the first point.
STEPS = ["driver.bound", *POINTS]
SAMPLE = {"task.prepared", "task.handed_over", "driver.prepared", "driver.decided", "driver.bound"}


def decided(sink: KafkaSink) -> list[Decision | Repair]:
    """The decisions and repairs in the sink's ledger."""
    with contextlib.closing(sink.create_decision_log()) as log:
        return [entry.record for entry in log.inspect().entries if isinstance(entry.record, (Decision, Repair))]


def ways(sink: KafkaSink) -> list[list[bool]]:
    """For each decision and repair, the task that the driver ran."""
    return [[task.is_direct for task in record.tasks] for record in decided(sink)]


def rows(count: int, width: int = 10, *, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"{number:0{width}d}", "n": number} for number in range(first, first + count)]


# -- which way ---------------------------------------------------------------------------------------------------------


def test_a_query_over_kafka_writes_its_small_batches_in_the_driver_starting_with_the_first(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=30)
    pipeline.feed(60)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    pipeline.require_order()
    assert ways(sink_of(pipeline)) == [[True], [True]]


@pytest.mark.whole
def test_a_batch_over_the_limit_is_evaluated_again_by_tasks_which_also_write_the_next_batches(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink, evaluated = kafka_sink(kafka.bootstrap_servers), tmp_path / "evaluated"

    query = Query(spark, tmp_path, (sink,), {"write_by": DriverUpTo(20_000)}, plan=counting(evaluated))
    sizes = (10, 10, 5000, 10, 10)
    for number, size in enumerate(sizes):
        query.feed(*rows(size, first=number * 10_000))
    query.run()
    # The tasks write the first batch, to measure it.
    assert [any(way) for way in ways(sink)] == [False, True, False, False, False]
    assert values(sink) == Counter(str(number * 10_000 + n) for number, size in enumerate(sizes) for n in range(size))
    assert counted(evaluated) == sum(sizes) + 5000


@pytest.mark.parametrize(
    ("count", "width"),
    [
        pytest.param(100_000, 10, id="too many rows", marks=pytest.mark.whole),
        pytest.param(40, 5000, id="too wide rows"),
    ],
)
def test_a_batch_a_hundred_times_larger_than_expected_does_not_reach_the_driver(
    count: int, width: int, kafka: KafkaService, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[int] = []
    read = collect.Stream.load_stream

    def counted(stream: Any, connection: Any) -> Any:
        found = read(stream, connection)
        arrived.append(stream.size_bytes)
        return found

    monkeypatch.setattr(collect.Stream, "load_stream", counted)
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), {"write_by": DriverUpTo(2_000)})
    query.feed(*rows(5))
    query.feed(*rows(5, first=100))
    query.feed(*rows(count, width, first=1000))
    query.run()
    assert [any(way) for way in ways(sink)] == [False, True, False]
    assert max(arrived) < 20_000
    assert values(sink) == Counter(map(str, [*range(5), *range(100, 105), *range(1000, 1000 + count)]))


# -- the same records --------------------------------------------------------------------------------------------------


def test_the_driver_and_the_tasks_write_the_same_records_to_the_same_partitions(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - the seed repeats the test
    chance = random.Random(seed)
    given = [
        {
            "id": chance.choice([None, "", "a", "ключ", f"k{number}"]),
            "n": chance.choice([None, 0, -(2**63), 2**63 - 1, number]),
        }
        for number in range(300)
    ]
    expressions = (
        "id AS key",
        "CAST(n AS STRING) AS value",
        "IF(n % 3 = 0, 1, NULL) AS partition",
        "IF(n % 5 = 0, array(named_struct('key', 'h', 'value', CAST(id AS BINARY))), NULL) AS headers",
        "IF(n > 0, timestamp'2020-02-03 04:05:06.789Z', timestamp'1970-01-02 00:00:00Z') AS timestamp",
    )
    found = []
    for way in ("driver", "tasks"):
        sink = kafka_sink(kafka.bootstrap_servers)
        directory = tmp_path / way
        directory.mkdir()
        query = Query(spark, directory, (sink,), {"write_by": way})
        query.feed(*given)
        query.run(*expressions)
        assert (ways(sink) == [[True]]) is (way == "driver")
        found.append(
            Counter(
                (one.key(), one.value(), one.partition() if one.key() else None, str(one.headers()), one.timestamp()[1])
                for one in records(sink.bootstrap_servers, str(sink.topic))
            )
        )
    assert found[0] == found[1]
    assert found[0].total() == len(given)


def test_rows_keep_the_order_of_the_plan_within_a_key(kafka: KafkaService, tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="shuffle", settings=DIRECT)
    pipeline.feed(2000)
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_a_batch_without_rows_is_decided_without_a_transaction(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), DIRECT, plan=lambda frame: frame.where("n < 0"))
    query.feed(*rows(5))
    query.run()
    assert ways(sink) == [[True]]
    assert [task.handles for task in decided(sink)[0].tasks] == [{}]


def test_a_bad_row_is_reported_with_the_same_error_as_by_a_task_and_nothing_is_visible(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    messages = []
    for way in ("driver", "tasks"):
        sink = kafka_sink(kafka.bootstrap_servers)
        (tmp_path / way).mkdir()
        query = Query(spark, tmp_path / way, (sink,), {"write_by": way})
        query.feed(*rows(2))
        message = query.refused("id AS key", "repeat('x', 2000000) AS value").replace(sink.name, "it")
        what, _, when = message.partition(". Checkpoint 0 was triggered at ")
        assert when
        messages.append(what)
        assert not values(sink)
    assert messages[0] == messages[1]


def test_one_decision_covers_dead_letters_and_several_sinks_and_dataframes(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    letters = kafka_sink(kafka.bootstrap_servers)
    odd, even = kafka_sink(kafka.bootstrap_servers), adding(redis_server)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        return lambda batch, i: each({odd.name: batch.where("id = 'odd'"), even.name: batch.where("id = 'even'")}, i)

    settings = {**DIRECT, "dead_letter": letters}
    query = Query(spark, tmp_path, (odd, even), settings, function=function)
    query.feed(*BATCHES[0], {"id": "even", "n": None})
    query.fail_at("driver.committing@2")
    query.run()
    assert ways(odd) + ways(letters) == [[True, True]]  # only one of the sinks stores the decisions
    assert values(odd) == Counter(str(row["n"]) for row in BATCHES[0] if row["id"] == "odd")
    assert counters(redis_server, even.name) == {
        "even": sum(int(str(row["n"])) for row in BATCHES[0] if row["id"] == "even")
    }
    assert values(letters).total() == 1


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["tasks", "driver"])
def test_a_lost_part_is_repaired_the_way_it_was_decided_even_if_the_setting_has_changed(
    then: str, kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    """Rule 9: the batch's rows are searched task by task, so the replay needs the same tasks."""
    totals, events = adding(redis_server), kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (events, totals), DIRECT, plan=lambda frame: frame.repartition(3))
    query.feed(*BATCHES[0], *rows(50))
    query.fail_at("driver.decided")
    with contextlib.closing(redis_client(redis_server)) as client:
        client.delete(*client.scan_iter(f"twopc:{totals.name}:*:slice:*", count=1000))
    query.settings = {"write_by": then}
    query.run()
    assert ways(events) == [[True], [True]]
    assert isinstance(decided(events)[1], Repair)
    assert values(events) == Counter(["3", "2", *map(str, range(50))])
    assert sum(counters(redis_server, totals.name).values()) == 5 + sum(range(50))


def test_a_lost_part_is_not_repaired_with_the_same_number_of_different_rows(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    totals, events = adding(redis_server), kafka_sink(kafka.bootstrap_servers)
    query = Query(
        spark, tmp_path, (events, totals), DIRECT, plan=lambda frame: frame.withColumn("value", sf.expr("uuid()"))
    )
    query.feed(*rows(20))
    query.fail_at("driver.decided")
    with contextlib.closing(redis_client(redis_server)) as client:
        client.delete(*client.scan_iter(f"twopc:{totals.name}:*:slice:*", count=1000))
    assert "InDoubtError" in query.refused()


def test_a_batch_written_by_tasks_is_repaired_by_tasks_although_the_driver_could_write_it(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings=BY_TASKS)
    pipeline.feed(60)
    decide_and_lose(pipeline, spark, but=1)
    pipeline.change(settings=DIRECT)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    assert True not in set().union(*ways(sink_of(pipeline)))


def test_a_lost_direct_batch_is_written_again_even_if_the_replay_has_different_rows(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="unstable", settings=DIRECT)
    pipeline.feed(60)
    decide_and_lose(pipeline, spark, but=0)
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_a_lost_direct_batch_is_published_from_the_drivers_staged_rows(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="unstable", settings={**DIRECT, "staging": True})
    pipeline.feed(60)
    decide_and_lose(pipeline, spark, but=0)
    pipeline.change(filter="false")
    pipeline.run(spark)
    pipeline.require_exactly_once()
    assert ways(sink_of(pipeline)) == [[True], [True]]


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("plan", "points"),
    [
        ("rows", ["task.handed_over"]),
        ("rows", STEPS),
        ("shuffle", STEPS),
    ],
)
def test_a_driver_killed_at_any_point_of_a_direct_batch_loses_and_duplicates_nothing(
    plan: str, points: Sequence[str], kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, max_offsets=40, settings=DIRECT)
    pipeline.run_over_kills_at(points)
    pipeline.require_exactly_once()
    if plan == "rows":
        pipeline.require_order()


@pytest.mark.parametrize(
    "point", [step if step in SAMPLE else pytest.param(step, marks=pytest.mark.whole) for step in STEPS]
)
def test_a_direct_batch_that_stops_at_any_step_is_visible_once_after_a_restart(
    point: str, kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    events, totals = kafka_sink(kafka.bootstrap_servers), adding(redis_server)
    query = Query(spark, tmp_path, (events, totals), DIRECT)
    if point == "driver.bound":  # this point is passed only with the first decision
        query.feed(*BATCHES[0])
        query.fail_at(point)
        query.feed(*BATCHES[1])
        query.feed(*BATCHES[2])
        query.run()
    else:
        query.run_over_a_crash_at(point)
    assert values(events) == VALUES
    assert counters(redis_server, totals.name) == SUMS


@pytest.mark.whole
@pytest.mark.parametrize("plan", ["rows", pytest.param("update", marks=pytest.mark.whole)])
def test_batches_may_alternate_between_driver_and_tasks_across_crashes(
    plan: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, max_offsets=10)
    expected: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - the seed repeats the test
    chance = random.Random(seed)
    for _ in range(4):
        for one in pipeline.feed(10):
            counts[one.partition("-")[0]] += 1
        expected.update(f"{key}:{count}" for key, count in counts.items())
        pipeline.change(settings={"write_by": chance.choice(["driver", "tasks"])})
        pipeline.fail_at(spark, chance.choice(["driver.prepared", "driver.decided", "driver.committed"]))
        pipeline.change(settings={"write_by": chance.choice(["driver", "tasks"])})
        pipeline.run(spark)
    if plan == "rows":
        pipeline.require_exactly_once()
        pipeline.require_order()
    else:
        assert pipeline.visible() == expected


def sink_of(pipeline: Pipeline) -> KafkaSink:
    options = pipeline.options
    return KafkaSink(name=options.name, bootstrap_servers=options.bootstrap_servers, topic=options.topic)
