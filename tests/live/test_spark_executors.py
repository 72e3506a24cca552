"""Executors that die, are overtaken and are repeated, each a JVM of its own: nothing is lost, nothing is doubled."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.live.spark_hosts import two_hosts
from tests.live.spark_support import Pipeline, processes_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService
    from tests.live.spark_support import Run

#: Each starts a Spark with several executors: make whole.
pytestmark = pytest.mark.whole

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_SWEPT = "sweeping transactions that nobody has decided"
#: Two executors with a core each.
_CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@contextlib.contextmanager
def query(kafka: KafkaService, root: Path, *hosts: int, **options: Any) -> Iterator[Pipeline]:
    """A query of some batches on executors (of the sessions ``hosts`` if given); its output is exactly once at the end."""
    pipeline = Pipeline(kafka.bootstrap_servers, root, max_offsets=20, **{"spark": _CLUSTER, **options})
    try:
        pipeline.feed(60)
        yield pipeline
        [run] = pipeline.runs
        let_go(run, *hosts)
        assert run.ended() == 0, run.text[-3000:]
    finally:
        for run in pipeline.runs:
            for process in processes_of(run.session):  # Python workers are process groups of their own
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        pipeline.close()
    pipeline.require_exactly_once()
    if pipeline.options.plan != "shuffle":
        pipeline.require_order()


def is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def stopped(run: Run, *hosts: int, count: int) -> list[psutil.Process]:
    """Wait for so many Python workers that have stopped themselves at a crash point."""
    found: list[psutil.Process] = []

    def are_there() -> bool:
        found[:] = filter(is_stopped, processes_of(run.session, *hosts))
        return len(found) >= count or run.wait(0) is not None

    wait_until(are_there, f"{count} workers stopped: {run.log}")
    assert len(found) >= count, f"it ended, its log:\n{run.text[-3000:]}"
    return found


def executor_of(worker: psutil.Process) -> psutil.Process:
    return next(parent for parent in worker.parents() if _EXECUTOR in parent.cmdline())


def let_go(run: Run, *hosts: int) -> None:
    """Resume every worker that stops, until the run ends."""

    def is_over() -> bool:
        for worker in filter(is_stopped, processes_of(run.session, *hosts)):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
        return run.wait(0) is not None

    wait_until(is_over, f"the run ends: {run.log}")


def test_an_executor_killed_with_a_complete_transaction_is_replaced_and_it_is_swept(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with query(kafka, tmp_path) as pipeline:
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=1)[0]).kill()
    assert _SWEPT in run.text


def test_a_stage_that_is_run_again_because_an_executor_took_its_shuffle_is_written_again(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with query(kafka, tmp_path, plan="shuffle", partitions=4) as pipeline:
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=2)[0]).kill()
    assert "was run again (attempt 1)" in run.text
    assert _SWEPT in run.text


def test_a_task_that_fails_after_its_last_row_is_repeated_and_its_transaction_swept(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with query(kafka, tmp_path, plan="failing") as pipeline:
        run = pipeline.process()
    assert "the first attempt fails after its last row" in run.text


def test_of_two_attempts_at_one_task_the_accepted_one_is_decided_and_the_other_swept(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """The slow one has written everything, sleeps through its batch's decision, and wakes while a later batch is written."""
    with two_hosts(tmp_path / "hosts") as (master, hosts):
        speculating = {
            "spark.master": master,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": _CLUSTER["spark.executor.extraJavaOptions"],
            "spark.executorEnv.TWOPC_CRASH_POINTS": "task.prepared=stop",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.25",
            "spark.speculation.multiplier": "1.0",
            # The loser survives being cancelled: by default Spark kills its worker after two seconds.
            "spark.python.task.killTimeout": "600s",
        }
        with query(kafka, tmp_path, *hosts, spark=speculating) as pipeline:
            run = pipeline.process()
            loser, winner = stopped(run, *hosts, count=2)[:2]
            winner.resume()
            wait_until(
                lambda: pipeline.visible().total() >= 20 or run.wait(0) is not None, "the first batch is visible"
            )
            assert is_stopped(loser), run.text[-3000:]
            assert pipeline.visible().total() <= 40
        assert _SWEPT in run.text
