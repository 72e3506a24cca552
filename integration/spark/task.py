"""The executor's side: one pass over a task's rows into every sink, one report back to the driver.

Clients are imported here, in the worker's own modules: a client class that is pickled by value with ``__main__`` fails.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from integration.spark.dead_letters import CAUSE, screen
from integration.spark.staging import SliceWriter
from integration.spark.views import CHECKSUM
from twopc.attempt import Attempt, TaskAttempt
from twopc.errors import FatalError
from twopc.records import TaskReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.spark.views import View
    from twopc.sink import TwoPhaseCommitSink
    from twopc.writer import SinkWriter


#: Odd, so that no sum of it vanishes.
_BAD: Final = 0x9E3779B97F4A7C15


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a task sends back: a report, or why it can never succeed.

    An error that would come again is a result, not a failure: Spark would only repeat the task, and lose its type.
    """

    stage: int
    report: TaskReport | None = None
    error: tuple[str, str] | None = None


@dataclass(frozen=True)
class Job:
    """What every task of an attempt is given; pickled into the closure."""

    sinks: tuple[TwoPhaseCommitSink[Any], ...]
    query_id: str
    batch_id: int
    attempt: Attempt
    driver_epochs: dict[str, int]
    committed_through: int
    only_tasks: frozenset[tuple[str, int]] | None
    staging: str | None
    views: dict[str, View]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """``mapInArrow``'s function."""
        context = TaskContext.get()
        if context is None:
            raise AssertionError("a task has a context")
        stage, partition = context.stageId(), context.partitionId()
        writers = self._writers(partition)
        try:
            report = self._run(partition, batches, writers)
            for writer in writers.values():
                writer.hand_over()
            result = TaskResult(stage=stage, report=report)
        except FatalError as error:
            result = TaskResult(stage=stage, error=(type(error).__name__, f"task {partition}: {error}"))
        finally:
            # Not around the yield: a generator that Spark closes must not abort what is handed over (rule 6).
            for writer in writers.values():
                writer.close()
        yield _single(msgspec.json.encode(result))

    def _writers(self, partition: int) -> dict[str, SinkWriter[Any]]:
        return {
            sink.name: sink.create_writer(
                TaskAttempt(
                    query_id=self.query_id,
                    batch_id=self.batch_id,
                    attempt=self.attempt,
                    partition=partition,
                    driver_epoch=self.driver_epochs[sink.name],
                    committed_through=self.committed_through,
                )
            )
            for sink in self.sinks
            if self.only_tasks is None or (sink.name, partition) in self.only_tasks
        }

    def _run(
        self, partition: int, batches: Iterator[pa.RecordBatch], writers: dict[str, SinkWriter[Any]]
    ) -> TaskReport:
        rows, checksum = 0, 0
        staged = (
            SliceWriter(self.staging, self.attempt.driver_epoch, self.batch_id, self.views) if self.staging else None
        )
        dead_letters = any(view.of_bad_rows for view in self.views.values())
        for batch in batches:
            rows += batch.num_rows
            checksum += _sum(batch.column(CHECKSUM))
            payload = batch.drop_columns([CHECKSUM])
            if dead_letters:
                payload = screen(payload, self.sinks, self.views)
                # Which rows are bad must be the same in a replay, or one would be in neither place.
                checksum += _BAD * _sum(batch.column(CHECKSUM).filter(payload.column(CAUSE).is_valid()))
            if staged is not None:
                staged.write(payload)
            for name, writer in writers.items():
                writer.write_rows(self.views[name].of(payload))
        handles = {
            sink.name: sink.encode_handle(handle)
            for sink in self.sinks
            if sink.name in writers and (handle := writers[sink.name].snapshot_state(self.batch_id)) is not None
        }
        return TaskReport(
            partition=partition,
            rows=rows,
            checksum=checksum % 2**64,
            handles=handles,
            staged=staged.close() if staged is not None else None,
        )


def _single(value: bytes) -> pa.RecordBatch:
    """One row, one column. From buffers: ``pa.array`` imports pandas, a second of work in every new Python worker."""
    offsets = pa.py_buffer(struct.pack("<ii", 0, len(value)))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])
    return pa.RecordBatch.from_arrays([column], names=["result"])


def _sum(hashes: pa.Array[Any]) -> int:
    """The sum modulo 2**64: not XOR, in which a row given twice vanishes."""
    return int(pc.sum(hashes.view(pa.uint64())).as_py() or 0)  # Arrow's integer sum wraps around
