"""Executors, each with its own JVM, die, are fenced and retry their tasks; nothing is lost or duplicated."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import psutil
import pyspark
import pytest

from tests.live.dropped_reports import SMALL_QUEUE
from tests.live.spark_hosts import two_hosts
from tests.live.spark_query import SHUFFLED
from tests.live.spark_support import BY_TASKS, Pipeline, processes_of, wait_until
from tests.live.test_spark_many_tasks import log_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService
    from tests.live.spark_support import Run

#: Each test starts a Spark session with several executors, so only `make whole` runs these tests.
pytestmark = pytest.mark.whole

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
#: The settings of Spark's own comparison of shuffle checksums.
_COMPARISON = ("enabled", "enableFullRetryOnMismatch")
_SWEPT = "sweeping undecided transactions"
#: Two executors with one core each.
CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    # Both executors store a part of each shuffle, even if one of them starts late or Kafka's partitions prefer the
    # other.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0s",
}
#: With these numbers, each task that writes a shuffle has rows for each task that reads it.
MANY_ROWS = {"rows": 400, "keys": 100, "max_offsets": 200}


@contextlib.contextmanager
def query(
    kafka: KafkaService, root: Path, *hosts: int, rows: int = 60, keys: int = 10, **options: Any
) -> Iterator[Pipeline]:
    """Run a query with a few batches on executors, in the sessions ``hosts`` if given, and check its output."""
    pipeline = Pipeline(
        kafka.bootstrap_servers, root, settings=BY_TASKS, **{"spark": CLUSTER, "max_offsets": 20, **options}
    )
    try:
        pipeline.feed(rows, keys=keys)
        yield pipeline
        [run] = pipeline.runs
        let_go(run, *hosts)
        assert run.ended() == 0, run.text[-3000:]
    finally:
        kill_workers(pipeline)
    pipeline.require_exactly_once()
    if pipeline.options.plan != "shuffle":
        pipeline.require_order()


def kill_workers(pipeline: Pipeline) -> None:
    """Kill the query's processes completely, because Python workers form separate process groups."""
    for run in pipeline.runs:
        for process in processes_of(run.session):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    pipeline.close()


def is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def stopped(run: Run, *hosts: int, count: int) -> list[psutil.Process]:
    """Wait until this number of Python workers has stopped at a crash point."""
    found: list[psutil.Process] = []

    def are_there() -> bool:
        found[:] = filter(is_stopped, processes_of(run.session, *hosts))
        return len(found) >= count or run.wait(0) is not None

    wait_until(are_there, f"{count} workers stopped: {run.log}", timeout_s=300)
    assert len(found) >= count, f"it ended; its log:\n{run.text[-3000:]}"
    return found


def executor_of(worker: psutil.Process) -> psutil.Process:
    return next(parent for parent in worker.parents() if _EXECUTOR in parent.cmdline())


def _is_executor(process: psutil.Process) -> bool:
    try:
        return _EXECUTOR in process.cmdline()
    except psutil.NoSuchProcess:  # or a zombie
        return False


def lose_executor(run: Run) -> None:
    """Kill an executor, and wait until Spark has noticed."""
    next(filter(_is_executor, processes_of(run.session))).kill()
    wait_until(lambda: "Lost executor" in run.text, f"{run.log}: Spark has noticed")


def let_go(run: Run, *hosts: int) -> None:
    """Resume every stopped worker until the run ends."""

    def is_over() -> bool:
        for worker in filter(is_stopped, processes_of(run.session, *hosts)):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
        return run.wait(0) is not None

    wait_until(is_over, f"the run ends: {run.log}", timeout_s=300)


def test_a_killed_executors_task_is_repeated_and_its_transaction_swept(kafka: KafkaService, tmp_path: Path) -> None:
    with query(kafka, tmp_path) as pipeline:
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=1)[0]).kill()
    assert _SWEPT in run.text


@pytest.mark.parametrize("partitions", [4, 24])
def test_a_stage_repeated_because_an_executor_lost_its_shuffle_leads_to_a_new_attempt(
    partitions: int, kafka: KafkaService, tmp_path: Path
) -> None:
    """With 24 partitions, each transaction contains the rows of several partitions."""
    with query(kafka, tmp_path, plan="shuffle", **MANY_ROWS) as pipeline:
        pipeline.change(partitions=partitions)
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=2)[0]).kill()
    assert "was rerun (attempt 1)" in run.text
    assert _SWEPT in run.text
    assert max(len(one.tasks) for one in log_of(pipeline)) <= 4  # two for each core


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark compares the rows of a shuffle from 4.1 on")
def test_different_shuffle_rows_noticed_by_spark_stop_the_query_and_a_restart_writes_them_once(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Either Spark ends the job, or it reruns the result stage and the driver's own check detects the rerun."""
    compared = {f"spark.sql.shuffle.orderIndependentChecksum.{name}": "true" for name in _COMPARISON}
    pipeline = Pipeline(
        kafka.bootstrap_servers, tmp_path, spark=CLUSTER | compared, plan="unstable", partitions=4, settings=BY_TASKS
    )
    try:
        pipeline.feed(60)
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=2)[0]).kill()
        let_go(run)
        assert run.ended() != 0
        assert "Restart the query, which will then recompute the whole batch" in run.text, run.text[-3000:]
        assert not pipeline.visible()
        again = pipeline.process()
        assert again.ended() == 0, again.text[-3000:]
    finally:
        kill_workers(pipeline)
    pipeline.require_exactly_once()


def test_rows_mixed_by_a_stage_between_two_shuffles_stop_the_query_until_a_restart(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """The result stage is in its first attempt: the previous stage lost an executor, and was partly rerun.

    A restart writes each row once.
    """
    pipeline = Pipeline(
        kafka.bootstrap_servers, tmp_path, spark=CLUSTER, plan="two_shuffles", partitions=4, settings=BY_TASKS
    )
    try:
        pipeline.feed(200)
        run = pipeline.process()
        executor_of(stopped(run, count=2)[0]).kill()
        let_go(run)
        assert run.ended() != 0
        assert "again, because some of that stage's output was lost" in run.text, run.text[-3000:]
        assert "failed. Retrying" not in run.text
        assert not pipeline.visible()
        again = pipeline.process()
        let_go(again)
        assert again.ended() == 0, again.text[-3000:]
    finally:
        kill_workers(pipeline)
    pipeline.require_exactly_once()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("filled_by", ["function", "groups", "thread", "program"])
def test_a_batch_from_a_partly_lost_cache_is_not_decided_and_a_restart_writes_it_once(
    filled_by: str, kafka: KafkaService, tmp_path: Path
) -> None:
    """The lost executor stored a part of the cache and all of the shuffle.

    Each stage runs once in each job, and none is skipped. But the second job writes the lost shuffle again.
    """
    apart = {
        **CLUSTER,
        "spark.shuffle.reduceLocality.enabled": "false",
    }
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=1, spark=apart, plan="cached", settings=BY_TASKS)
    pipeline.change(partitions=2, filled_by=filled_by)
    try:
        pipeline.feed(200)
        run = pipeline.process()
        run.wait_stopped(300)
        [worker] = re.findall(f"{SHUFFLED}([0-9]+)", run.text)
        executor_of(psutil.Process(int(worker))).kill()
        wait_until(lambda: "Lost executor" in run.text, f"{run.log}: Spark has noticed")
        run.resume()
        assert run.ended(300) != 0, "it was decided"
        assert "again, because some of that stage's output was lost" in run.text, run.text[-3000:]
        assert not pipeline.visible()
        again = pipeline.process()
        again.wait_stopped(300)
        again.resume()
        assert again.ended(300) == 0, again.text[-3000:]
    finally:
        kill_workers(pipeline)
    pipeline.require_exactly_once()


def test_state_and_rows_from_different_shuffles_stop_the_query_and_a_restart_writes_both(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """The batch is evaluated once more after the driver has written its rows. An executor dies in between."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, spark=CLUSTER, plan="again", settings={"write_by": "driver"})
    try:
        pipeline.feed(200)
        run = pipeline.process("task.prepared=stop")
        run.wait_stopped(300)
        lose_executor(run)
        run.resume()
        assert run.ended(300) != 0, "it was decided"
        assert "again, because some of that stage's output was lost" in run.text, run.text[-3000:]
        assert not pipeline.visible()
        again = pipeline.process()
        assert again.ended(300) == 0, again.text[-3000:]
        counts = [int(value) for value in pipeline.visible().elements()]
        assert sum(counts) == 200
    finally:
        kill_workers(pipeline)


def test_a_status_store_that_forgets_stages_stops_the_query_until_the_suggested_settings_are_applied(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, spark={"spark.ui.retainedStages": "0"}, plan="shuffle")
    try:
        pipeline.feed(60)
        run = pipeline.process()
        assert run.ended() != 0
        assert "Raise spark.ui.retainedJobs, spark.ui.retainedStages" in run.text, run.text[-3000:]
        assert "failed. Retrying" not in run.text
        assert not pipeline.visible()
        settings = {"spark.ui.retainedStages": "1000", "spark.scheduler.listenerbus.eventqueue.capacity": "20000"}
        again = pipeline.process(spark=settings)
        assert again.ended() == 0, again.text[-3000:]
    finally:
        kill_workers(pipeline)
    pipeline.require_exactly_once()


def test_reports_dropped_by_spark_stop_the_query_until_the_suggested_setting_is_applied(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Nothing else shows that a report is missing: the batch's own jobs are reported completely."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, spark=SMALL_QUEUE, plan="dropping")
    try:
        pipeline.feed(60)
        run = pipeline.process()
        assert run.ended() != 0
        assert re.search("Spark has dropped [1-9][0-9]* of its reports", run.text), run.text[-3000:]
        assert "failed. Retrying" not in run.text
        assert not pipeline.visible()
        again = pipeline.process(spark={"spark.scheduler.listenerbus.eventqueue.capacity": "10000"})
        assert again.ended() == 0, again.text[-3000:]
    finally:
        kill_workers(pipeline)
    pipeline.require_exactly_once()


def test_a_task_that_fails_after_its_last_row_is_repeated_and_its_transaction_swept(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with query(kafka, tmp_path, plan="failing") as pipeline:
        run = pipeline.process()
    assert "the first attempt fails after its last row" in run.text


def test_of_two_attempts_of_a_task_the_accepted_one_is_decided_and_the_other_one_is_swept(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """The slow attempt has written every row, sleeps through its batch's decision, and wakes during a later batch."""
    with two_hosts(tmp_path / "hosts") as (master, hosts):
        speculating = {
            "spark.master": master,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": CLUSTER["spark.executor.extraJavaOptions"],
            "spark.executorEnv.TWOPC_CRASH_POINTS": "task.prepared=stop",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.25",
            "spark.speculation.multiplier": "1.0",
            # The loser must survive its cancellation; by default Spark kills its worker after two seconds.
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
