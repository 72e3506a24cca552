"""What the suite drives a sink with: a committer that has taken over, and a coordinator's engine of a few tasks."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING, Any

from tests.live import pipeline
from tests.tasks import attempt_of, is_wanted
from tests.unit.fake_sink import DecidingFiles
from twopc.attempt import Attempt, Claim, TaskAttempt
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.crash_points import crash_point
from twopc.records import TaskReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tests.contract.cases import Case
    from twopc.engine import Work
    from twopc.settings import Settings
    from twopc.sink import TwoPhaseCommitSink

QUERY_ID = "query-a"
#: Closed at the end of the test.
opened: list[Any] = pipeline.opened


class Driver:
    """One run of a query, step by step.

    Attributes:
        committer: has taken over.
        claim: with which.
        driver_epoch: which it was given.
    """

    def __init__(self, sink: TwoPhaseCommitSink[Any]) -> None:
        self._sink = sink
        self._counter = 0
        self.committer = sink.create_committer()
        opened.append(self)
        self.committer.inspect()
        log = self.committer.decision_log()
        self.claim = Claim(QUERY_ID, uuid.uuid4().hex, log.name if log else "registers")
        self.driver_epoch = self.committer.acquire(self.claim)
        if log:
            log.read()

    def begin(self) -> dict[str, Any]:
        """Begin an attempt."""
        return dict(self.committer.begin_attempt())

    def prepare(self, rows: pa.RecordBatch, *, partition: int = 0) -> Any:
        """One task: its handle."""
        self._counter += 1
        task = TaskAttempt(QUERY_ID, 0, Attempt(self.driver_epoch, self._counter), partition, self.driver_epoch, -1)
        return run_task(self._sink, task, rows)

    def commit(self, handles: Sequence[Any], scan_start: Mapping[str, Any]) -> list[Any]:
        """Confirm and commit: the evidence, in the order of the handles."""
        self.committer.confirm(handles, 0)
        found = self.committer.commit(handles, scan_start)
        return [found[handle] for handle in handles]

    def close(self) -> None:
        self.committer.close()


class Engine:
    """A batch n has the rows of three tasks, one of them empty; a task that dies tidies nothing up."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.evaluated = 0

    def prepare(self, work: Work) -> list[TaskReport]:
        return [self._task(work, partition, rows) for partition, rows in enumerate(rows_of(work.batch.batch_id))]

    def evaluate(self) -> None:
        self.evaluated += 1

    def _task(self, work: Work, partition: int, rows: list[int]) -> TaskReport:
        sink = self._case.sink
        handles = {}
        if is_wanted(work, sink.name, partition):
            handle = run_task(sink, attempt_of(work, sink.name, partition), self._case.rows(rows))
            handles = {} if handle is None else {sink.name: sink.encode_handle(handle)}
        return TaskReport(partition=partition, rows=len(rows), checksum=sum(rows), handles=handles)


def run_task(sink: TwoPhaseCommitSink[Any], task: TaskAttempt, rows: pa.RecordBatch) -> Any:
    """One task attempt up to its handle. Not in a ``finally``: a dead process closes nothing."""
    writer = sink.create_writer(task)
    writer.write_rows(rows)
    handle = writer.snapshot_state(task.batch_id)
    crash_point("task.prepared")
    writer.hand_over()
    writer.close()
    return handle


def rows_of(batch: int) -> list[list[int]]:
    return [[batch * 100 + partition * 10 + i for i in range(5)] for partition in (0, 1)] + [[]]


def all_rows(*batches: int) -> list[int]:
    return sorted(row for batch in batches for rows in rows_of(batch) for row in rows)


def batch_of(batch: int, query_id: str = QUERY_ID) -> Batch:
    return Batch(query_id, batch, (f"offset-{batch}",), lambda of: (f"offset-{of}",))


class Query:
    """A query over one sink: every :meth:`run` is a new run of it, over the same checkpoint."""

    def __init__(self, case: Case, directory: Path, *, query_id: str = QUERY_ID) -> None:
        self._case = case
        self._query_id = query_id
        self._directory = directory / "checkpoint"
        self._directory.mkdir(parents=True, exist_ok=True)

    def run(self, *batches: int, settings: Settings | None = None) -> Engine:
        return self.go_on(self.start(settings), *batches)

    def start(self, settings: Settings | None = None) -> Coordinator:
        """A run that does not end."""
        coordinator = Coordinator([self._case.sink], DecidingFiles(self._directory), settings=settings)
        opened.append(coordinator)
        return coordinator

    def go_on(self, coordinator: Coordinator, *batches: int) -> Engine:
        """The next batches of a run."""
        engine = Engine(self._case)
        for batch in batches:
            coordinator.process(batch_of(batch, self._query_id), engine)
        return engine

    def copied(self, directory: Path) -> Query:
        """The query of a copy of the checkpoint as it is now."""
        shutil.copytree(self._directory, directory / "checkpoint")
        return Query(self._case, directory)
