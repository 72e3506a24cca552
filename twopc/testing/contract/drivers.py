"""Drive a sink without Spark: step by step with a committer, or with a coordinator and an engine that runs three tasks."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from typing import TYPE_CHECKING, Any

from twopc.attempt import Attempt, Claim, TaskAttempt
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.engine import Write
from twopc.files import LocalFiles
from twopc.records import TaskReport
from twopc.testing import crash_points
from twopc.testing.contract.case import Crash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from twopc.engine import Work
    from twopc.observation import Observation
    from twopc.settings import Settings
    from twopc.sink import TwoPhaseCommitSink
    from twopc.testing.contract.case import Case

QUERY_ID = "query-a"
#: The objects that :func:`close_opened` closes.
opened: list[Any] = []


def close_opened() -> None:
    """Close every driver and coordinator from this module. Call this function after each test."""
    while opened:
        opened.pop().close()


def attempt_of(work: Work, sink: str, partition: int) -> TaskAttempt:
    """Return the named sink's arguments for one task in ``work``."""
    return TaskAttempt(
        query_id=work.batch.query_id,
        batch_id=work.batch.batch_id,
        attempt=work.attempt,
        partition=work.number_of(partition),
        driver_epoch=work.driver_epochs[sink],
        committed_through=work.committed_through,
        is_repair=not isinstance(work.mode, Write),
    )


def is_wanted(work: Work, sink: str, partition: int) -> bool:
    """Whether the task writes to the named sink. If not, the task still evaluates its rows and reports to the driver (rule 9)."""
    return work.mode.includes((sink, partition))


class Driver:
    """Runs a query step by step.

    Attributes:
        committer: the committer, which has acquired the sink.
        claim: the claim with which the committer acquired the sink.
        seen: the owner that the committer observed.
        driver_epoch: the driver epoch that the committer received.
    """

    def __init__(self, sink: TwoPhaseCommitSink[Any]) -> None:
        self._sink = sink
        self._counter = 0
        self.committer = sink.create_committer()
        opened.append(self)
        self.seen = self.committer.inspect()
        log = self.committer.decision_log()
        self.claim = Claim(QUERY_ID, uuid.uuid4().hex, log.name if log else "registers")
        self.driver_epoch = self.committer.acquire(self.claim, self.seen)
        if log:
            log.read()

    def begin(self) -> dict[str, Any]:
        """Begin an attempt; return its ``scan_start``."""
        return dict(self.committer.begin_attempt())

    def prepare(self, rows: pa.RecordBatch, *, partition: int = 0) -> Any:
        """Run one task; return its handle, or None for a task without rows."""
        self._counter += 1
        task = TaskAttempt(QUERY_ID, 0, Attempt(self.driver_epoch, self._counter), partition, self.driver_epoch, -1)
        return run_task(self._sink, task, rows)

    def commit(self, handles: Sequence[Any], scan_start: Mapping[str, Any]) -> list[Any]:
        """Confirm and commit; return the evidence, in the order of the handles."""
        self.committer.confirm(handles, 0)
        found = self.committer.commit(handles, scan_start)
        return [found[handle] for handle in handles]

    def close(self) -> None:
        """Release the connections."""
        self.committer.close()


class Engine:
    """An engine whose batches have three tasks, one of them empty. A task that dies does not clean up.

    Args:
        case: the sink under test.
        before_tasks: called before the tasks of each attempt, after the driver has begun the attempt.
    """

    def __init__(self, case: Case, before_tasks: Callable[[], None] = lambda: None) -> None:
        self._case = case
        self._before_tasks = before_tasks
        self.evaluated = 0
        self.handles: list[Any] = []  #: of the last attempt

    def prepare(self, work: Work) -> list[TaskReport]:
        """See :class:`twopc.engine.Engine`."""
        self._before_tasks()
        self.handles = []
        return [self._task(work, partition, rows) for partition, rows in enumerate(rows_of(work.batch.batch_id))]

    def evaluate(self) -> None:
        """See :class:`twopc.engine.Engine`."""
        self.evaluated += 1

    def _task(self, work: Work, partition: int, rows: list[int]) -> TaskReport:
        sink = self._case.sink
        handles = {}
        if is_wanted(work, sink.name, partition):
            handle = run_task(sink, attempt_of(work, sink.name, partition), self._case.rows(rows))
            if handle is not None:
                self.handles.append(handle)
                handles = {sink.name: sink.encode_handle(handle)}
        return TaskReport(partition=partition, rows=len(rows), checksum=sum(rows), handles=handles)


def run_task(sink: TwoPhaseCommitSink[Any], task: TaskAttempt, rows: pa.RecordBatch) -> Any:
    """Run one task attempt until it returns its handle. There is no ``finally``, because a dead process closes nothing."""
    writer = sink.create_writer(task)
    opened.append(writer)
    writer.write_rows(rows)
    handle = writer.snapshot_state(task.batch_id)
    writer.hand_over()
    writer.close()
    return handle


def observed(case: Case, decided: Sequence[Any], scan_start: Mapping[str, Any]) -> Observation | None:
    """Return what an operator sees in the sink's store; None if the sink does not show it."""
    with contextlib.closing(case.sink.create_committer()) as committer:
        return committer.observe(decided, scan_start)


def rows_of(batch: int) -> list[list[int]]:
    """Return, for each task in a batch, the numbers that the task writes."""
    return [[batch * 100 + partition * 10 + i for i in range(5)] for partition in (0, 1)] + [[]]


def all_rows(*batches: int) -> list[int]:
    """Return the sorted numbers from these batches."""
    return sorted(row for batch in batches for rows in rows_of(batch) for row in rows)


def batch_of(batch: int, query_id: str = QUERY_ID) -> Batch:
    """Return the batch as Spark's checkpoint would describe it."""
    return Batch(query_id, batch, (f"offset-{batch}",), lambda of: (f"offset-{of}",))


class Query:
    """A query with one sink. Every call of :meth:`run` starts a new run with the same checkpoint."""

    def __init__(self, case: Case, directory: Path, *, query_id: str = QUERY_ID) -> None:
        self._case = case
        self._query_id = query_id
        self._directory = directory / "checkpoint"
        self._directory.mkdir(parents=True, exist_ok=True)

    def run(
        self, *batches: int, settings: Settings | None = None, before_tasks: Callable[[], None] = lambda: None
    ) -> Engine:
        """Start a run and process these batches."""
        return self.continue_with(self.start(settings), *batches, before_tasks=before_tasks)

    def start(self, settings: Settings | None = None) -> Coordinator:
        """Start a run that does not end on its own."""
        coordinator = Coordinator([self._case.sink], LocalFiles(self._directory), settings=settings)
        opened.append(coordinator)
        return coordinator

    def continue_with(
        self, coordinator: Coordinator, *batches: int, before_tasks: Callable[[], None] = lambda: None
    ) -> Engine:
        """Process the next batches of a run."""
        engine = Engine(self._case, before_tasks)
        for batch in batches:
            coordinator.process(batch_of(batch, self._query_id), engine)
        return engine

    def run_until(self, point: str, *batches: int, settings: Settings | None = None) -> bool:
        """Start a run that crashes at a crash point. Return False if the run never passes the point, and so never crashes."""

        def crash() -> None:
            crash_points.vanish()
            self._case.crash()

        crash_points.arm(point, crash)
        with contextlib.suppress(Crash):
            self.run(*batches, settings=settings)
        is_crashed = not crash_points.is_armed(point)
        crash_points.disarm()
        return is_crashed

    def finish(self, *batches: int) -> None:
        """Start a run and process these batches. Check that nothing is left of the transactions of earlier runs."""
        engine = self.run(*batches)
        found = observed(self._case, engine.handles, {})
        assert found is None or found.leftovers == ()

    def copied(self, directory: Path) -> Query:
        """Return a query on a copy of the current checkpoint."""
        shutil.copytree(self._directory, directory / "checkpoint")
        return Query(self._case, directory)
