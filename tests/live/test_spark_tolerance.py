"""Checkpoints that fail before their decision are triggered again by a real query; nothing is lost or duplicated."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from tests.live import spark_query
from tests.live.file_query import Query, kafka_sink, values
from tests.live.spark_support import BY_TASKS, Pipeline, spark, wait_until
from tests.live.test_spark_kills import TASK, worker_faults
from twopc import Checkpoint, CheckpointConfig, Listener
from twopc.integration.history.reader import read
from twopc.testing.crash_points import arm_from, disarm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

#: The crash points between recovery and decision, in the order in which a batch passes them. The first batch also binds
#: the checkpoint.
POINTS = [*TASK, "driver.prepared", "driver.confirmed", "driver.bound"]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    disarm()


class AtFirstFailure(Listener):
    """Acts when a checkpoint has failed."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    def ended(self, checkpoint: Checkpoint) -> None:
        if checkpoint.cause is not None:
            self._act()


def tolerating(failures: int, *, timeout_ms: float = 600_000, **settings: Any) -> dict[str, Any]:
    config = CheckpointConfig(tolerable_failures=failures, max_attempts=1, timeout_ms=timeout_ms)
    return {"checkpoints": config, **settings}


def outcomes(pipeline: Pipeline) -> list[tuple[int, str, int]]:
    found = read(Path(pipeline.options.checkpoint)).checkpoints
    return [(one.batch_id, one.outcome, one.failed_before) for one in found]


@pytest.mark.parametrize(
    "points",
    [["task.prepared", "driver.confirmed"], pytest.param(POINTS, marks=pytest.mark.whole)],
    ids=["some", "all"],
)
def test_a_loss_at_each_point_before_the_decision_costs_a_checkpoint_but_no_record(
    points: list[str], kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """The driver writes the batch, so every point is passed in this process: each checkpoint fails one point later."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(20)
    arm_from(",".join(f"{point}=drop" for point in points))
    pipeline.run(spark, settings=tolerating(len(points), write_by="driver"))
    failed = [(0, "declined" if point in TASK else "failed", number) for number, point in enumerate(points)]
    assert outcomes(pipeline) == [*failed, (0, "completed", len(points))]
    pipeline.require_exactly_once()


def _dying_while(path: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def die(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        if Path(path).exists():
            os._exit(1)
        yield from batches

    return die


@pytest.mark.whole
def test_a_failed_broadcast_is_repeated_for_the_next_checkpoint(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """Seen: Spark repeated the first error, without a job, until the query was restarted."""
    broken = tmp_path / "broken"
    broken.touch()
    die = _dying_while(str(broken))
    output = kafka_sink(kafka.bootstrap_servers)

    def joined(each: ExactlyOnce) -> Any:
        def function(batch: DataFrame, batch_id: int) -> None:
            small = batch.select("key", "value").mapInArrow(die, "key string, value string")
            each(batch.select("key").join(sf.broadcast(small), "key"), batch_id)

        return function

    settings = tolerating(1, write_by="driver", listeners=[AtFirstFailure(broken.unlink)])
    query = Query(spark, tmp_path, (output,), settings, function=joined)
    query.feed({"id": "a", "n": 1}, {"id": "b", "n": 2})
    query.run()
    assert values(output) == Counter(["1", "2"])


@pytest.mark.whole
@pytest.mark.parametrize("point", TASK)
def test_workers_that_die_cost_a_checkpoint_but_no_record(
    point: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """Each attempt at a task ends when its worker dies, so Spark gives up on the job."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(20)
    healed = AtFirstFailure(lambda: spark.sparkContext.environment.update(TWOPC_CRASH_POINTS=""))
    with worker_faults(spark, f"{point}=kill"):
        pipeline.run(spark, settings=tolerating(1, listeners=[healed]) | BY_TASKS)
    assert outcomes(pipeline) == [(0, "failed", 0), (0, "completed", 1)]
    pipeline.require_exactly_once()


def _waiting_for(path: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def wait(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        while not Path(path).exists():
            time.sleep(0.01)
        yield from batches

    return wait


@pytest.mark.whole
def test_tasks_of_an_expired_checkpoint_that_continue_alongside_the_next_one_leave_nothing_behind(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are released when the next checkpoint begins, and Spark takes two seconds to end their workers."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(20)
    released = tmp_path / "released"
    wait = _waiting_for(str(released))
    with monkeypatch.context() as patch:
        schema = "key binary, value binary"
        patch.setattr(spark_query, "planned", lambda frame, _: frame.select("key", "value").mapInArrow(wait, schema))
        settings = tolerating(1, timeout_ms=10_000, listeners=[AtFirstFailure(released.touch)], **BY_TASKS)
        pipeline.run(spark, settings=settings)
    assert outcomes(pipeline) == [(0, "expired", 0), (0, "completed", 1)]
    pipeline.require_exactly_once()
    pipeline.feed(5)
    pipeline.run(spark)
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_an_error_in_the_users_function_is_not_tolerated(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            raise ValueError("org.apache.kafka.common.errors.TimeoutException, says the user's function")
        yield from ()

    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(5)
    with monkeypatch.context() as patch:
        schema = "key binary, value binary"
        patch.setattr(spark_query, "planned", lambda frame, _: frame.select("key", "value").mapInArrow(fail, schema))
        assert "says the user's function" in pipeline.fail(spark, settings=tolerating(5))
    assert outcomes(pipeline) == [(0, "failed", 0)]
    pipeline.run(spark)
    pipeline.require_exactly_once()


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_driver_killed_at_any_point_of_the_second_checkpoint_loses_and_duplicates_nothing(
    kafka: KafkaService, tmp_path: Path
) -> None:
    settings = tolerating(1, write_by="driver")
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings=settings)
    second = [*(f"{point}@2" for point in (*TASK, "driver.prepared")), "driver.confirmed", "driver.deciding"]
    after = ["driver.decided", "driver.committing", "driver.committed", "driver.swept"]
    pipeline.run_over_kills_at([f"driver.prepared=drop,{point}" for point in (*second, *after)])
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_pause_is_kept_between_checkpoints_and_ends_when_the_query_is_stopped(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=10)
    pipeline.feed(20)
    pipeline.run(spark, settings={"checkpoints": CheckpointConfig(min_pause_ms=1_000)})
    found = read(Path(pipeline.options.checkpoint)).checkpoints
    assert [one.batch_id for one in found if one.pause_ms is not None and one.pause_ms >= 1_000] == [1]
    pipeline.feed(20)
    query, each = pipeline.start(spark, settings={"checkpoints": CheckpointConfig(min_pause_ms=3_600_000)})
    wait_until(lambda: len(outcomes(pipeline)) == 3, "the first batch of the run is done")
    query.stop()
    each.close()
    assert query.exception() is None
    assert [outcome for _, outcome, _ in outcomes(pipeline)] == ["completed"] * 3
    pipeline.run(spark)
    pipeline.require_exactly_once()
