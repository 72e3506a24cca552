"""Drivers and workers are killed at every step and at random times; nothing is lost or duplicated."""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.live.spark_support import BY_TASKS, Pipeline, spark
from twopc.crash_points import POINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

DRIVER = [point for point in POINTS if point.startswith("driver.")]
#: Numbers of partitions. `local[2]` has four writers.
FEW_OR_MANY = (3, 12)
TASK = [point for point in POINTS if point.startswith("task.")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("plan", "points"),
    [
        ("rows", ["driver.committing"]),
        pytest.param("rows", DRIVER, marks=pytest.mark.whole),
        pytest.param("shuffle", DRIVER, marks=pytest.mark.whole),
    ],
)
def test_a_driver_killed_at_any_point_loses_and_duplicates_nothing(
    plan: str, points: list[str], kafka: KafkaService, tmp_path: Path
) -> None:
    """One process per point takes long, so only `make whole` tries all of them.

    Tests without Spark try all points every time.
    """
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, max_offsets=40, settings=BY_TASKS)
    pipeline.run_over_kills_at(points)
    pipeline.require_exactly_once()
    if plan == "rows":
        pipeline.require_order()


@pytest.mark.parametrize(
    ("plan", "points"),
    [
        ("rows", ["task.prepared"]),
        pytest.param("rows", TASK, marks=pytest.mark.whole),
        pytest.param("shuffle", TASK, marks=pytest.mark.whole),
    ],
)
def test_spark_retries_a_task_of_a_killed_worker_and_its_transaction_is_swept(
    plan: str,
    points: list[str],
    kafka: KafkaService,
    tmp_path: Path,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, settings=BY_TASKS)
    for point in points:
        pipeline.feed(40)
        caplog.clear()
        # Each worker dies in its second task, and its replacement receives only one task.
        with worker_faults(spark, f"{point}@2=kill"):
            pipeline.run(spark)
        # Before the flush, the client may be the only one that knows about the transaction.
        if point in {"task.prepared", "task.handed_over"}:
            assert "sweeping undecided transactions" in caplog.text, point
    pipeline.require_exactly_once()
    if plan == "rows":
        pipeline.require_order()


@pytest.mark.parametrize("points", [["task.prepared"], pytest.param(TASK, marks=pytest.mark.whole)])
def test_a_query_whose_workers_all_die_stops_and_a_restart_loses_and_duplicates_nothing(
    points: list[str], kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings=BY_TASKS)
    for point in points:
        pipeline.feed(20)
        with worker_faults(spark, f"{point}=kill"):
            assert "Python worker exited unexpectedly" in pipeline.fail(spark)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    pipeline.require_order()


@pytest.mark.whole
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plan", ["rows", pytest.param("shuffle", marks=pytest.mark.whole)])
def test_drivers_killed_at_random_times_lose_and_duplicate_nothing(
    plan: str, kafka: KafkaService, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    """Kills only the driver (its JVM and workers outlive it for a while), or everything at once.

    The driver writes the batches of a run, or tasks do, or the run chooses. The source and the shuffle have few partitions, one
    for each task, or so many that a task writes several.
    """
    kills = int(os.environ.get("TWOPC_KILLS", "2"))
    seed = int(os.environ.get("TWOPC_SEED", str(random.SystemRandom().randrange(1 << 32))))
    generator = random.Random(seed)
    partitions = generator.choice(FEW_OR_MANY)
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, partitions=partitions, max_offsets=15)
    pipeline.change(partitions=partitions)
    done = 0
    outcomes = []
    try:
        while done < kills:
            pipeline.feed(60)
            way = generator.choice(["auto", "driver", "tasks"])
            run = pipeline.process(settings={"write_by": way})
            run.wait_running()
            code = run.wait(generator.uniform(0, 8))  # kill at a random time
            if code is None:
                done += 1
                kill = generator.choice(["kill_driver", "kill_all"])
                getattr(run, kill)()
                outcomes.append(f"{kill} ({way})")
            else:
                # The previous JVM may still be using its checkpoint. In that case, Spark itself refuses the next JVM.
                assert code == 0 or "oncurrent" in run.text, run.text[-3000:]
                outcomes.append(f"ended {code}")
        for previous in pipeline.runs:
            previous.kill_all()
        last = pipeline.process(max_offsets=1000)
        assert last.ended() == 0, last.text[-3000:]
        pipeline.require_exactly_once()
        if plan == "rows":
            pipeline.require_order()
    finally:
        pipeline.close()
        add_summary(
            f"TWOPC_SEED={seed}, {partitions} partitions, {done} kills, {sum(pipeline.given.values())} records: {outcomes}"
        )


@contextlib.contextmanager
def worker_faults(spark: SparkSession, crash_points: str) -> Iterator[None]:
    """Start new workers with these crash points armed."""
    environment = spark.sparkContext.environment
    environment["TWOPC_CRASH_POINTS"] = crash_points
    try:
        yield
    finally:
        del environment["TWOPC_CRASH_POINTS"]
