"""Run on the executor: write a task's rows to every sink in one pass, and send one result to the driver.

Every Python worker imports this module, so the module must load fast and imports nothing from the driver's side.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from twopc.attempt import Attempt, TaskAttempt
from twopc.engine import Publish, Repair, Write
from twopc.errors import BadRecordError, ConfigurationError, FatalError, RetriableError, SchemaError, public_class
from twopc.integration.spark.installed import HERE, UNKNOWN
from twopc.integration.spark.kept import keep
from twopc.integration.spark.plan_partitions import PARTITION, Counted, Stretch, stretches
from twopc.integration.spark.staging import StagedFileWriter
from twopc.integration.spark.views import CAUSE, CHECKSUM, screen
from twopc.integration.spark.worker import keep_archives, save_address_space
from twopc.integration.spark.zones import in_utc
from twopc.progress import Acknowledgement
from twopc.records import TaskReport, added_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from twopc.engine import Mode
    from twopc.integration.spark.installed import Installed
    from twopc.integration.spark.kept import Runs
    from twopc.integration.spark.staging import Staging
    from twopc.integration.spark.views import View
    from twopc.sink import TwoPhaseCommitSink
    from twopc.writer import SinkWriter

logger = logging.getLogger(__name__)

#: A bad row's hash is added this many more times, so that a replay with different bad rows has a different checksum.
#: The number is odd, so the multiplication modulo 2**64 loses no information.
_BAD_ROW_FACTOR: Final = 0x9E3779B97F4A7C15


#: The columns that the toolkit adds to a batch.
_OURS: Final = (CHECKSUM, PARTITION)


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result that a task sends to the driver.

    A permanent error is reported as a result, not as a task failure. After a task failure, Spark would retry the
    task for nothing, and the error's class would be lost.

    Attributes:
        stage: Spark's id for the stage that the task ran in; None in the driver.
        report: the task's report; None if the task cannot write.
        size_bytes: the size of the task's rows as Arrow data.
        error: why the task cannot write, as the error's class name (see ``jobs.named_error``) and message.
        acknowledgement: the times of the task's steps, for the checkpoint history.
    """

    stage: int | None = None
    report: TaskReport | None = None
    size_bytes: int = 0
    error: tuple[str, str] | None = None
    acknowledgement: Acknowledgement | None = None


@dataclass(frozen=True)
class PrepareTask:
    """The work of each task in an attempt: write the task's rows, or the rows of its staged file, and pre-commit.

    Spark pickles this object.

    Attributes:
        runs: the query's run, and the driver's other runs.
        frame_name: the name of the DataFrame, if the batch has several.
        first_task: the number of the DataFrame's first task in the batch.
        first_number: the number by which the sinks track the transactions of the batch's first task; see
            :meth:`Work.number_of`.
        staging: where the rows are staged until their transactions are proven; None if no rows are staged.
        views: each sink's columns, by sink name.
        is_direct: whether the driver itself does the work, for all rows of the DataFrame.
        ends_at: the deadline for the vote of a task that runs in the driver, on the driver's clock (see :class:`TaskAttempt`).
            Spark cancels all other tasks itself.
        driver: the driver's code. If the driver is too old to send it, unpickling leaves the default.
        mode: what to write. Each task of a :class:`Publish` reads a staged file instead of the DataFrame's rows. For all
            other fields see :class:`twopc.engine.Work`.
    """

    runs: Runs
    sinks: tuple[TwoPhaseCommitSink[Any], ...]
    query_id: str
    batch_id: int
    attempt: Attempt
    driver_epochs: dict[str, int]
    committed_through: int
    mode: Mode
    first_number: int
    frame_name: str
    first_task: int
    staging: Staging | None
    views: dict[str, View]
    is_direct: bool = False
    ends_at: float = math.inf
    driver: Installed = UNKNOWN

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take one task's rows from ``mapInArrow``, and yield one row with the :class:`TaskResult`."""
        keep_archives()
        save_address_space()
        context = TaskContext.get()
        if context is None:
            raise AssertionError("a task has a context")
        result = self._execute_as_driver_would(context.partitionId(), batches, context.attemptNumber())
        yield _as_row(msgspec.json.encode(msgspec.structs.replace(result, stage=context.stageId())))

    def _execute_as_driver_would(self, number: int, batches: Iterable[pa.RecordBatch], attempt: int) -> TaskResult:
        """Write the rows if this worker runs the driver's code; otherwise return the error."""
        try:
            HERE.require_same(self.driver, "driver")
        except ConfigurationError as error:
            return _failed(number, error)
        keep(self.runs, self.sinks, self.driver_epochs)
        return self.execute(number, batches, attempt)

    def execute(self, number: int, batches: Iterable[pa.RecordBatch], attempt: int = 0) -> TaskResult:
        """Write and pre-commit the rows of task ``number``; ``attempt`` is Spark's task attempt number.

        Each DataFrame's tasks are numbered from 0.

        Raises:
            RetriableError: the attempt failed and cannot be decided.
        """
        began = time.monotonic()
        decided = self.mode.tasks[number] if isinstance(self.mode, Publish) else None
        partition = decided.partition if decided else self.first_task + number
        writers: dict[str, SinkWriter[Any]] = {}
        size = _Input(batches)
        try:
            # Add the writers one by one, so that an error in one of them closes the earlier ones.
            writers.update(self._create_writers(partition))
            report = self._publish(decided, size, writers) if decided else self._prepare(partition, size, writers)
            for writer in writers.values():
                writer.hand_over()
            return TaskResult(
                report=report, size_bytes=size.bytes, acknowledgement=self._vote(report, size, attempt, began)
            )
        except FatalError as error:
            return _failed(partition, error)
        except RetriableError as error:
            if (public := public_class(error)) is type(error):
                raise
            # Spark sends the driver only the name of the class, which is useless if the sink defines the class itself.
            raise public(str(error)) from error
        finally:
            # Close the writers before `run` yields. After that, Spark could close the generator, which would abort a
            # transaction that has been handed over (rule 6).
            for name, writer in writers.items():
                try:
                    writer.close()
                except Exception:
                    logger.warning(
                        "partition %d: the writer of sink %r could not be closed. No row is lost. If the writer left a "
                        "transaction open, the driver ends it",
                        partition,
                        name,
                        exc_info=True,
                    )

    def _create_writers(self, partition: int) -> Iterator[tuple[str, SinkWriter[Any]]]:
        return (
            (
                sink.name,
                sink.create_writer(
                    TaskAttempt(
                        query_id=self.query_id,
                        batch_id=self.batch_id,
                        attempt=self.attempt,
                        partition=self.first_number + partition,
                        driver_epoch=self.driver_epochs[sink.name],
                        committed_through=self.committed_through,
                        is_repair=not isinstance(self.mode, Write),
                        ends_at=self.ends_at if self.is_direct else math.inf,
                    )
                ),
            )
            for sink in self.sinks
            if self._writes_to(sink.name, partition)
        )

    def _writes_to(self, sink: str, partition: int) -> bool:
        if isinstance(self.mode, Repair):  # only a task's rows show which partitions it has
            return sink in self.mode.lost
        return self.mode.includes((sink, partition))

    def _prepare(self, partition: int, batches: _Input, writers: dict[str, SinkWriter[Any]]) -> TaskReport:
        counted = Counted()
        due: Counter[str] = Counter()
        staged = self._create_staged_file()
        has_dead_letters = any(view.of_bad_rows for view in self.views.values())
        for batch in batches:
            hashes, rows = (
                batch.column(CHECKSUM),
                batch.drop_columns([name for name in _OURS if name in batch.schema.names]),
            )
            if has_dead_letters:
                rows = screen(rows, self.sinks, self.views)
            found = list(stretches(batch))
            for index, start, count in found:
                checksum = _checksum(hashes.slice(start, count), rows.slice(start, count))
                counted.add(index, count, checksum)
            if staged is not None:
                staged.write(rows)
            for name, writer in writers.items():
                for some in self._wanted(name, rows, found):
                    due[name] += self.views[name].count(some)
                    writer.write_rows(self.views[name].of(some, writer.letter_max_bytes))
        _require_all_rows(writers, due)
        batches.flushing()
        handles = self._pre_commit(writers)
        parts = counted.parts
        received, checksum = added_up(parts)
        return TaskReport(
            partition=partition,
            rows=received,
            checksum=checksum,
            handles=handles,
            parts=parts,
            staged=staged.close() if staged is not None else None,
            frame_name=self.frame_name,
            is_direct=self.is_direct,
        )

    def _wanted(self, sink: str, rows: pa.RecordBatch, found: Sequence[Stretch]) -> Iterator[pa.RecordBatch]:
        """Yield those rows of a batch that the sink receives: all rows, or only the rows of lost partitions."""
        if not isinstance(self.mode, Repair):
            yield rows
            return
        lost = self.mode.lost[sink]
        for index, start, count in found:
            if (self.frame_name, index) in lost:
                yield rows.slice(start, count)

    def _publish(self, decided: TaskReport, batches: _Input, writers: dict[str, SinkWriter[Any]]) -> TaskReport:
        """Write the rows that a decided task staged, even if the plan would now yield different rows (rule 9)."""
        if self.staging is None:
            raise AssertionError("nothing was staged")
        for _ in batches:
            pass  # Spark's row for this task has no meaning, but must be read
        for name, writer in writers.items():
            with self._explaining(name):
                for rows in self.staging.read(str(decided.staged), name, writer.letter_max_bytes):
                    writer.write_rows(rows)
        batches.flushing()
        return msgspec.structs.replace(decided, handles=self._pre_commit(writers))

    def _pre_commit(self, writers: dict[str, SinkWriter[Any]]) -> dict[str, dict[str, Any]]:
        handles = {}
        for sink in self.sinks:
            if sink.name in writers:
                with self._explaining(sink.name):
                    handle = writers[sink.name].snapshot_state(self.batch_id)
                if handle is not None:
                    handles[sink.name] = sink.encode_handle(handle)
        return handles

    @contextlib.contextmanager
    def _explaining(self, sink: str) -> Iterator[None]:
        """If a sink rejects staged rows, say what to do. The sink's own advice is for the rows of a DataFrame."""
        try:
            yield
        except (SchemaError, BadRecordError, ConfigurationError) as error:
            if not isinstance(self.mode, Publish):
                raise
            is_of_rows = not isinstance(error, ConfigurationError)
            changed = (
                "So the sink's settings or its store have changed since then. Undo the change, and restart the query. When the "
                "batch is complete, you may make the change again"
                if is_of_rows
                else "If the sink's settings or its store have changed since then, undo the change, and restart the query"
            )
            raise public_class(error)(
                f"sink {sink!r} cannot write staged rows of batch {self.batch_id}, although the sink accepted these rows "
                f"before the batch was decided. The batch stays decided, and its rows stay staged. {changed}. A change to "
                f"the DataFrame does not help, because the query writes the staged rows, not new ones. Cause: {error}"
            ) from error

    def _vote(self, report: TaskReport, taken: _Input, attempt: int, began: float) -> Acknowledgement:
        now = time.monotonic()
        return Acknowledgement(
            partition=report.partition,
            attempt=attempt,
            rows=report.rows,
            size_bytes=taken.bytes,
            took_ms=round((now - began) * 1000, 3),
            read_ms=round(taken.read_s * 1000, 3),
            flush_ms=round((now - taken.flush_at) * 1000, 3),
            host="" if self.is_direct else socket.gethostname(),
        )

    def _create_staged_file(self) -> StagedFileWriter | None:
        if self.staging is None:
            return None
        return StagedFileWriter(self.staging.location, self.attempt.driver_epoch, self.batch_id, self.views)


class _Input:
    """Iterates over a task's Arrow batches, with timestamps in UTC, and adds up the batches' bytes and the waiting time.

    Attributes:
        read_s: the time spent waiting for rows, in seconds.
        flush_at: the time at which all rows were written and the pre-commit began.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.bytes = 0
        self.read_s = 0.0
        self.flush_at = 0.0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        asked = time.monotonic()
        for batch in self._batches:
            self.read_s += time.monotonic() - asked
            self.bytes += batch.nbytes
            yield in_utc(batch)
            asked = time.monotonic()
        self.read_s += time.monotonic() - asked

    def flushing(self) -> None:
        self.flush_at = time.monotonic()


def _as_row(value: bytes) -> pa.RecordBatch:
    """Build a batch of one row and one column, without ``pa.array``.

    ``pa.array`` imports pandas, which takes a second in every new Python worker.
    """
    offsets = pa.py_buffer(struct.pack("<ii", 0, len(value)))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])
    return pa.RecordBatch.from_arrays([column], names=["result"])


def _failed(partition: int, error: FatalError) -> TaskResult:
    return TaskResult(error=(public_class(error).__name__, f"task {partition}: {error}"))


def _require_all_rows(writers: Mapping[str, SinkWriter[Any]], due: Mapping[str, int]) -> None:
    """Check that each sink's writer received its rows. Otherwise, the batch could complete without these rows."""
    for name, writer in writers.items():
        if writer.rows != due[name]:
            raise FatalError(
                f"sink {name!r} received {writer.rows} of its {due[name]} rows. No part of this attempt is decided or visible, "
                "so no data is lost. If you have written this sink, its writer must neither change `rows` nor override "
                "`write_rows`. Otherwise, this is a fault of the toolkit: please report it with this message, the query's sinks "
                "and the columns of the DataFrame"
            )


def _checksum(hashes: pa.Array[Any], rows: pa.RecordBatch) -> int:
    bad = _sum(hashes.filter(rows.column(CAUSE).is_valid())) if CAUSE in rows.schema.names else 0
    return _sum(hashes) + _BAD_ROW_FACTOR * bad


def _sum(hashes: pa.Array[Any]) -> int:
    """Return the sum modulo 2**64. The sum does not depend on the order. Unlike XOR, the sum counts a duplicate row twice."""
    return int(pc.sum(hashes.view(pa.uint64())).as_py() or 0)  # Arrow's sum of uint64 wraps around
