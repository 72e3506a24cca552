"""Another thread runs jobs over the batch's shuffle, and an executor dies, so that Spark writes a part of it again (rule 6)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pytest

from tests.live import shared_shuffles
from tests.live.shared_shuffles import BOTH, ENDED, GO, KEYS, MAPS, OTHER, OURS, READERS
from tests.live.spark_support import BY_TASKS, Pipeline, wait_until
from tests.live.test_spark_executors import CLUSTER, executor_of, is_stopped, kill_workers, let_go

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.live.services import KafkaService
    from tests.live.spark_support import Run

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900)]

_SLOTS = 3
#: Two executors, with slots for one of our tasks and for four tasks of the other job.
THREADS = {
    **CLUSTER,
    "spark.master": f"local-cluster[2,{_SLOTS},1024]",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
}
#: Since Spark 4.1, adaptive execution writes the query's shuffle before it calls the function, when no other job is
#: running yet.
NOT_BEFORE = {"spark.sql.adaptive.streaming.stateless.enabled": "false"}
_TIMEOUT_S = 200.0
_REFUSED = "again, because some of that stage's output was lost"


class Task(NamedTuple):
    """A task that has recorded that it has read its input."""

    partition: int
    attempt: int
    worker: psutil.Process


def tasks(run: Run, stage: str, who: str = "*") -> list[Task]:
    """The stopped tasks of a stage of one of the jobs, in the order in which they started."""
    found = []
    for file in (run.root / "tasks").glob(f"{stage}-{who}-*"):
        partition, attempt, pid = map(int, file.name.split("-")[2:])
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(Task(partition, attempt, psutil.Process(pid)))
    return sorted((one for one in found if is_stopped(one.worker)), key=lambda one: one.attempt)


def wait_for(run: Run, is_so: Callable[[], bool], what: str) -> None:
    wait_until(lambda: is_so() or run.wait(0) is not None, f"{what}: {run.log}", _TIMEOUT_S)
    assert is_so(), f"it ended; its log:\n{run.text[-3000:]}"


def open_gate(run: Run, name: str) -> None:
    """Let the stopped tasks of a stage, and all later tasks, continue."""
    (run.root / name).touch()
    for task in tasks(run, name):
        with contextlib.suppress(psutil.NoSuchProcess):
            task.worker.resume()


@contextlib.contextmanager
def refused_and_restarted(
    kafka: KafkaService, root: Path, plan: str, by: str, *, refusal: str = _REFUSED, **options: Any
) -> Iterator[Run]:
    """A query that refuses its only batch. Then nothing is visible, and a restart writes each row once."""
    given = {"spark": THREADS, "plan": plan, "filled_by": by, "settings": BY_TASKS, **options}
    pipeline = Pipeline(kafka.bootstrap_servers, root, **given)
    pipeline.script = Path(shared_shuffles.__file__)
    try:
        pipeline.feed(400, keys=KEYS)  # each of the source's partitions has rows
        run = pipeline.process()
        yield run
        let_go(run)
        assert run.ended() != 0, f"the batch was decided; {difference(pipeline)}"
        assert refusal in run.text, run.text[-3000:]
        assert not pipeline.visible()
        again = pipeline.process()
        for gate in (MAPS, READERS, GO):
            (again.root / gate).touch()
        let_go(again)
        assert again.ended() == 0, again.text[-3000:]
    finally:
        kill_workers(pipeline)
    pipeline.require_exactly_once()


def difference(pipeline: Pipeline) -> str:
    seen = pipeline.visible()
    return f"lost {(pipeline.given - seen).total()}, duplicated {(seen - pipeline.given).total()}"


def lose_a_part_that_the_other_job_writes_again(run: Run) -> None:
    """The batch's task has read one part of the shuffle.

    It reads the next part once the other job has recomputed the lost rows.
    """
    wait_for(run, lambda: BOTH in run.text and len(tasks(run, MAPS)) == 4, "both jobs wait for the shuffle")
    open_gate(run, MAPS)
    wait_for(run, lambda: (len(tasks(run, READERS, OURS)), len(tasks(run, READERS, OTHER))) == (1, 4), "all tasks read")
    [ours] = tasks(run, READERS, OURS)
    kept = executor_of(ours.worker)
    old = tasks(run, READERS, OTHER)
    beside = [one for one in old if executor_of(one.worker) == kept]
    [lost] = {executor_of(one.worker) for one in old} - {kept}
    lost.kill()

    def again() -> list[Task]:
        return [one for one in tasks(run, READERS, OTHER) if one.attempt > old[-1].attempt]

    def is_known() -> bool:
        """The executor of our task forgets where the old rows were once it runs a task that came later."""
        return any(executor_of(one.worker) == kept for one in again())

    if len(beside) + 1 < _SLOTS:
        wait_for(run, is_known, "the other job has the lost rows again")
    else:
        wait_for(run, lambda: len(again()) == _SLOTS, "the other job has the lost rows again")
        min(beside).worker.resume()  # makes room for the other job's last task
        wait_for(run, is_known, "its last task has read the shuffle")
    open_gate(run, READERS)


def lose_a_part_before_the_other_job(run: Run) -> None:
    """Lose a part of the shuffle before the other job begins, so that this job finds that the part is missing."""
    wait_for(run, lambda: len(tasks(run, MAPS)) == 4, "the shuffle's tasks have started")
    executors = {executor_of(one.worker) for one in tasks(run, MAPS)}
    open_gate(run, MAPS)
    wait_for(run, lambda: len(tasks(run, READERS, OURS)) == 1, "our task has read a part of the shuffle")
    [ours] = tasks(run, READERS, OURS)
    kept = executor_of(ours.worker)
    [lost] = executors - {kept}
    lost.kill()
    wait_for(run, lambda: "Lost executor" in run.text, "Spark has noticed")
    (run.root / GO).touch()
    wait_for(
        run,
        lambda: any(executor_of(one.worker) == kept for one in tasks(run, READERS, OTHER)),
        "the other thread's tasks have read the shuffle, also where our task runs",
    )
    open_gate(run, READERS)


def test_a_lost_shuffle_part_rewritten_by_a_job_begun_after_the_loss_stops_the_query(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with refused_and_restarted(kafka, tmp_path, "after", "thread") as run:
        lose_a_part_before_the_other_job(run)


@pytest.mark.parametrize("by", ["groups", "query"])
def test_two_partly_lost_shuffles_written_by_another_job_before_the_call_stop_the_query(
    by: str, kafka: KafkaService, tmp_path: Path
) -> None:
    with refused_and_restarted(kafka, tmp_path, "before", by) as run:
        wait_for(run, lambda: len(tasks(run, MAPS)) == 4, "the shuffle's tasks have started")
        executor = executor_of(tasks(run, MAPS)[0].worker)
        (run.root / READERS).touch()
        open_gate(run, MAPS)
        wait_for(run, lambda: ENDED in run.text, "the other job has ended")
        executor.kill()
        wait_for(run, lambda: "Lost executor" in run.text, "Spark has noticed")
        (run.root / GO).touch()


@pytest.mark.parametrize(
    ("plan", "by", "write_by"),
    [
        ("earlier", "thread", "tasks"),
        ("later", "groups", "tasks"),
        ("later", "query", "driver"),
        ("cached", "thread", "tasks"),
        ("cut", "thread", "tasks"),
    ],
)
def test_a_shuffle_rewritten_by_another_job_while_it_is_read_stops_the_query(
    plan: str, by: str, write_by: str, kafka: KafkaService, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"settings": {"write_by": write_by}, "spark": THREADS | NOT_BEFORE}
    with refused_and_restarted(kafka, tmp_path, plan, by, **options) as run:
        lose_a_part_that_the_other_job_writes_again(run)
