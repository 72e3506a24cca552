"""The history of real queries: which checkpoints completed, which failed and why, and what a listener receives."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.live import spark_query
from tests.live.spark_support import KILLED, Pipeline, spark
from twopc import Checkpoint, CheckpointConfig, Listener
from twopc.integration.history.diagnose import diagnose
from twopc.integration.history.reader import History, read
from twopc.testing.crash_points import arm, disarm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

SLOW = "concat(value, java_method('java.lang.Thread', 'sleep', 600000L)) AS value"


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    disarm()


def _history(pipeline: Pipeline) -> History:
    return read(Path(pipeline.options.checkpoint))


@pytest.mark.parametrize(
    ("direct", "way"), [pytest.param("driver", "direct", marks=pytest.mark.whole), ("tasks", "tasks")]
)
def test_the_history_shows_each_batchs_rows_phases_and_tasks_and_how_it_was_written(
    direct: str, way: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=2, max_offsets=10)
    pipeline.feed(30)
    pipeline.run(spark, settings={"write_by": direct})
    pipeline.feed(10)
    pipeline.run(spark, settings={"write_by": direct})
    pipeline.require_exactly_once()
    history = _history(pipeline)
    found = history.checkpoints
    assert (history.skipped, history.in_progress) == ((), None)
    assert [one.batch_id for one in found] == list(range(len(found)))
    assert sum(one.rows for one in found) == 40
    assert sum(one.planned or 0 for one in found) == 40
    assert {(one.outcome, one.way, one.steps) for one in found} == {("completed", way, ("write",))}
    assert len({one.run_id for one in found}) == 2
    for one in found:
        assert list(one.phases)[-5:] == ["prepare", "confirm", "decide", "commit", "finish"]
        assert one.limited_by == "CheckpointConfig.timeout_ms"
        assert one.size_bytes > 0
        assert one.slowest[0].took_ms <= one.phases["prepare"]
        assert 0 < one.slowest[0].flush_ms < one.slowest[0].took_ms
        assert bool(one.slowest[0].host) is (way == "tasks")
    assert diagnose(history) == []


@pytest.mark.whole
def test_a_killed_driver_leaves_its_history_and_the_batch_in_progress_and_a_restart_continues_it(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=10)
    try:
        pipeline.feed(30)
        assert pipeline.process("driver.decided@2=kill").ended() == KILLED
        history = _history(pipeline)
        assert [(one.batch_id, one.outcome) for one in history.checkpoints] == [(0, "completed")]
        assert history.in_progress is not None
        assert history.in_progress.batch_id == 1
        last = pipeline.process()
        assert last.ended() == 0, last.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()
    history = _history(pipeline)
    assert [one.batch_id for one in history.checkpoints] == list(range(len(history.checkpoints)))
    assert history.checkpoints[1].steps == ()  # recovery committed this batch, so the replay wrote nothing
    assert "recover" in history.checkpoints[1].phases


@pytest.mark.whole
def test_transactions_left_open_by_a_killed_driver_are_counted_by_its_successor(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=2, settings={"write_by": "tasks"})
    try:
        pipeline.feed(20)
        assert pipeline.process("driver.confirmed=kill").ended() == KILLED
        last = pipeline.process()
        assert last.ended() == 0, last.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()
    assert [one.orphans_ended for one in _history(pipeline).checkpoints] == [2]


def test_the_error_of_an_expired_checkpoint_gives_the_time_the_duration_and_the_setting(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(8)
    with monkeypatch.context() as patch:
        patch.setattr(spark_query, "planned", lambda frame, _: frame.selectExpr("key", SLOW))
        message = pipeline.fail(spark, settings={"checkpoints": CheckpointConfig(timeout_ms=2_000)})
    assert "CheckpointExpiredError" in message
    assert "Checkpoint 0 was triggered at 20" in message
    assert " and expired at 20" in message
    assert "The checkpoint's time limit was 2.0 s, set by CheckpointConfig.timeout_ms" in message
    (found,) = _history(pipeline).checkpoints
    assert found.cause is not None
    assert (found.outcome, found.cause.phase, found.cause.error) == ("expired", "prepare", "CheckpointExpiredError")
    assert diagnose(_history(pipeline))[0].rule == "expired"
    pipeline.run(spark)
    pipeline.require_exactly_once()
    assert [one.outcome for one in _history(pipeline).checkpoints] == ["expired", "completed"]


@pytest.mark.whole
def test_a_vote_after_the_limit_is_late_and_its_transaction_is_aborted_and_never_visible(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver writes this batch itself: cancelling Spark's jobs does not stop the driver, so its vote arrives too late."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings={"write_by": "driver"})
    pipeline.feed(8)
    pipeline.run(spark)
    pipeline.feed(8)
    expired = threading.Event()
    cancel = spark.sparkContext.cancelJobsWithTag

    def noted(tag: str) -> None:
        cancel(tag)
        expired.set()

    def wait_for_the_limit() -> None:
        assert expired.wait(120)

    monkeypatch.setattr(spark.sparkContext, "cancelJobsWithTag", noted)
    arm("task.prepared", wait_for_the_limit)
    message = pipeline.fail(spark, settings={"write_by": "driver", "checkpoints": CheckpointConfig(timeout_ms=10_000)})
    disarm()
    assert "1 acknowledgement arrived late, so its transactions were aborted" in message
    last = _history(pipeline).checkpoints[-1]
    assert last.cause is not None
    assert (last.outcome, last.cause.late) == ("expired", 1)
    assert sum(pipeline.visible().values()) == 8
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_the_error_of_a_declined_checkpoint_identifies_the_task_and_gives_the_reason(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, sink={"options": {"kafka.message.max.bytes": "1000"}})
    pipeline.feed(4)
    pipeline.give(b"x" * 5_000, key=b"k")
    message = pipeline.fail(spark, settings={"write_by": "tasks"})
    assert "BadRecordError: task " in message
    assert "Checkpoint 0 was triggered at" in message
    (found,) = _history(pipeline).checkpoints
    assert found.outcome == "declined"
    assert diagnose(_history(pipeline))[0].rule == "bad record"


def test_a_task_retried_by_spark_does_not_fail_its_checkpoint_and_appears_in_the_history(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """Flink's region failover. The first attempt has written all of its rows, which are aborted."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="failing", partitions=2)
    pipeline.feed(20)
    pipeline.run(spark, settings={"write_by": "tasks"})
    pipeline.require_exactly_once()
    (found,) = _history(pipeline).checkpoints
    assert (found.outcome, found.tasks, found.rows, found.failed_attempts) == ("completed", 2, 20, ())
    assert [(vote.partition, vote.attempt) for vote in found.retried] == [(0, 1)]


def test_a_history_that_cannot_be_written_stops_no_query(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=5)
    directory = Path(pipeline.options.checkpoint) / "twopc"
    directory.mkdir(parents=True)
    (directory / "history").touch()  # a file in the way
    pipeline.feed(15)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    assert len([one for one in caplog.records if "AppendingWriter failed" in one.getMessage()]) == 1


class _Seen(Listener):
    def __init__(self) -> None:
        self.ended_batches: list[int] = []

    def ended(self, checkpoint: Checkpoint) -> None:
        self.ended_batches.append(checkpoint.batch_id)


def test_a_listener_is_called_and_a_history_can_be_switched_off(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(5)
    seen = _Seen()
    settings: dict[str, Any] = {"listeners": [seen], "checkpoints": CheckpointConfig(history=False)}
    pipeline.run(spark, settings=settings)
    assert seen.ended_batches == [0]
    assert not (Path(pipeline.options.checkpoint) / "twopc" / "history").exists()
