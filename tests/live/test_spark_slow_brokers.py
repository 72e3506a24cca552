"""Brokers that are slow, picky, or change while a real query writes: no attempt fails and no row is duplicated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.live import spark_query
from tests.live.broker_changes import add_partitions
from tests.live.pipeline import create_topic
from tests.live.spark_support import Pipeline, spark
from tests.nemesis.proxy import KafkaProxy
from tests.reader import records
from twopc import Checkpoint, CheckpointConfig, Listener
from twopc.integration.history.diagnose import diagnose
from twopc.integration.history.reader import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from tests.live.spark_query import Options

__all__ = ["spark"]

BOTH = pytest.mark.parametrize(
    "direct", [pytest.param("driver", id="driver", marks=pytest.mark.whole), pytest.param("tasks", id="tasks")]
)
BYTES_PER_S = 200_000
#: A request of this size takes a tenth of a second.
ROW_BYTES = 20_000
BEFORE, AFTER = 4, 6


@pytest.fixture(scope="module")
def slow(kafka: KafkaService) -> Iterator[str]:
    """The address of the brokers behind a slow link."""
    quiet = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "transactional.id": "slow-brokers"}
    Producer(quiet).init_transactions(30)  # loading a new broker's coordinator takes longer than a step may take here
    with KafkaProxy(kafka.bootstrap_servers, bytes_per_s=BYTES_PER_S) as proxy:
        yield proxy.bootstrap_servers


def sink(servers: str, timeout_ms: int) -> dict[str, Any]:
    options = {"kafka.batch.size": str(ROW_BYTES)}
    return {"bootstrap_servers": servers, "timeout_ms": timeout_ms, "options": options}


def give(pipeline: Pipeline, count: int, size: int, *, key: bytes = b"k") -> None:
    """Rows that cannot be compressed, in the order of their numbers."""
    values = [f"{number:07d}{os.urandom(size // 2).hex()}" for number in range(count)]
    for value in values:
        pipeline.give(value.encode(), key=key)
    pipeline.given.update(values)


def checkpoints(pipeline: Pipeline) -> tuple[Checkpoint, ...]:
    return tuple(read(Path(pipeline.options.checkpoint)).checkpoints)


def require_no_failure(pipeline: Pipeline) -> None:
    for one in checkpoints(pipeline):
        assert (one.status, one.failed_attempts, one.retried) == ("completed", (), ())


@pytest.mark.whole
@BOTH
def test_a_batch_that_takes_longer_than_a_step_is_written_at_the_first_attempt(
    slow: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession, direct: str
) -> None:
    timeout_ms = 3_000
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, sink=sink(slow, timeout_ms), settings={"write_by": direct})
    give(pipeline, 80, ROW_BYTES)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    pipeline.require_order()
    require_no_failure(pipeline)
    [checkpoint] = checkpoints(pipeline)
    assert checkpoint.slowest[0].flush_ms > 2 * timeout_ms


@pytest.mark.whole
@BOTH
def test_a_batch_over_its_own_limit_is_cut_short_even_if_acknowledgements_keep_coming(
    slow: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession, direct: str
) -> None:
    """Caught mutation: the limit cancels only Spark's jobs, and so not what the driver writes."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    settings = {"write_by": direct}
    pipeline.feed(4)
    pipeline.run(spark, settings=settings)  # the limit does not apply to the start of a session
    give(pipeline, 100, ROW_BYTES)
    message = pipeline.fail(
        spark, sink=sink(slow, 3_000), settings=settings | {"checkpoints": CheckpointConfig(timeout_ms=5_000)}
    )
    assert "CheckpointExpiredError" in message
    assert "The checkpoint's time limit was 5.0 s, set by CheckpointConfig.timeout_ms" in message
    last = checkpoints(pipeline)[-1]
    assert last.cause is not None
    assert (last.outcome, last.cause.late) == ("expired", 0)
    assert diagnose(read(Path(pipeline.options.checkpoint)))[0].rule == "expired"
    pipeline.run(spark, settings=settings)
    pipeline.require_exactly_once()


@BOTH
def test_with_default_options_a_topic_that_accepts_only_small_batches_receives_small_ones(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, direct: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"small-{tmp_path.name}", config={"max.message.bytes": "65536"})
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, topic=topic, settings={"write_by": direct})
    give(pipeline, 500, 1_200)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    pipeline.require_order()
    require_no_failure(pipeline)


class _Grow(Listener):
    """Adds partitions to a topic after the first batch, when its producers have long been ready."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic

    def ended(self, checkpoint: Checkpoint) -> None:
        if checkpoint.batch_id == 0:
            add_partitions(self._servers, self._topic, AFTER)


def _chosen(frame: DataFrame, _options: Options) -> DataFrame:
    return frame.selectExpr("key", "value", "CAST(CAST(key AS STRING) AS INT) AS partition")


@BOTH
def test_a_row_goes_to_a_partition_added_while_the_query_runs(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, direct: str
) -> None:
    monkeypatch.setattr(spark_query, "planned", _chosen)
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=1, max_offsets=BEFORE)
    topic = str(pipeline.options.topic)
    for number in (*range(BEFORE), 0, AFTER - 1, BEFORE, AFTER - 1):
        give(pipeline, 1, 20, key=b"%d" % number)
    settings = {"write_by": direct, "listeners": [_Grow(kafka.bootstrap_servers, topic)]}
    pipeline.run(spark, settings=settings)
    pipeline.require_exactly_once()
    require_no_failure(pipeline)
    found = records(kafka.bootstrap_servers, topic)
    assert all(message.key() == str(message.partition()).encode() for message in found)
    assert {message.partition() for message in found} == set(range(AFTER))
