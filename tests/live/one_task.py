"""Run one batch through the sinks of stores that stage and apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.tasks import attempt_of
from twopc.records import TaskReport
from twopc.testing.contract.drivers import Driver, is_wanted, run_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.engine import Work
    from twopc.sink import TwoPhaseCommitSink


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    )


def apply(sink: TwoPhaseCommitSink[Any], *tasks: pa.RecordBatch) -> list[Any]:
    """Decide and commit one batch with a new driver, and return the batch's evidence."""
    driver = Driver(sink)
    scan_start = driver.begin()
    handles = [driver.prepare(rows, partition=number) for number, rows in enumerate(tasks)]
    return driver.commit(handles, scan_start)


class OneTask:
    """An engine whose batches have one task."""

    def __init__(self, sink: TwoPhaseCommitSink[Any], rows: pa.RecordBatch) -> None:
        self._sink, self._rows = sink, rows

    def prepare(self, work: Work) -> list[TaskReport]:
        name = self._sink.name
        handle = run_task(self._sink, attempt_of(work, name, 0), self._rows)
        handles = {name: self._sink.encode_handle(handle)}
        return [TaskReport(partition=0, rows=self._rows.num_rows, checksum=0, handles=handles)]

    def evaluate(self) -> None:
        """Do nothing, because there is no state to write."""


class Tasks:
    """An engine that writes these batches of rows, each in its own task, to every sink that wants them."""

    def __init__(self, sinks: Sequence[TwoPhaseCommitSink[Any]], *tasks: pa.RecordBatch) -> None:
        self._sinks, self._tasks = sinks, tasks

    def prepare(self, work: Work) -> list[TaskReport]:
        reports = []
        for number, task in enumerate(self._tasks):
            wanted = [sink for sink in self._sinks if is_wanted(work, sink.name, number)]
            handles = {
                sink.name: sink.encode_handle(run_task(sink, attempt_of(work, sink.name, number), task))
                for sink in wanted
            }
            reports.append(TaskReport(partition=number, rows=task.num_rows, checksum=number, handles=handles))
        return reports

    def evaluate(self) -> None:
        """Do nothing, because there is no state to write."""
