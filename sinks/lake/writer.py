"""On an executor, write a task's data files, without adding them to the table."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from twopc import control
from twopc.errors import RetriableError
from twopc.fenced_committer import transaction_name
from twopc.sinks.lake.entries import encode
from twopc.sinks.lake.errors import explaining
from twopc.sinks.lake.handle import HandleT
from twopc.sinks.lake.layout import directory, entries_file
from twopc.sinks.lake.rolling import RollingFiles
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.sinks.lake.rows import RowFormat
    from twopc.sinks.lake.view import View

#: Enough for the entries of about 50 files. Larger handles would make the decision record too large.
_MOST_INLINE: Final = 16 * 2**10


class LakeWriter(SinkWriter[HandleT]):
    """See :class:`SinkWriter`. A file that is not in the table is invisible, so a task that dies leaves only orphaned files.

    Args:
        task: the task.
        sink: the sink name.
        read: reads the table, and returns a view of it.
        release: closes the connections.
    """

    def __init__(
        self, task: TaskAttempt, sink: str, read: Callable[[], View[HandleT]], release: Callable[[], None]
    ) -> None:
        self._task = task
        self._sink = sink
        self._name = transaction_name(sink, task)
        self._read = read
        self._release = release
        self._view: View[HandleT] | None = None
        self._files: RollingFiles[Any] | None = None
        self._format: RowFormat | None = None
        self._directory = ""

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        with self._explaining("beginning"):
            view = self._view = self._read()
        owner = control.decode(view.stored)
        if owner.driver_epoch != self._task.driver_epoch:
            self._release()
            raise RetriableError(f"sink {self._sink!r}: a newer driver has replaced this task's driver")
        view.require_supported()
        self._directory = directory(view.root(owner.id), self._task.driver_epoch, self._task.batch_id)
        self._files = RollingFiles(view.files, view.data_files(), self._directory, self._name)

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`."""
        view, files = self._begun()
        if self._format is None:
            self._format = view.row_format(rows.schema)
        self._format.check(rows)
        with self._explaining("writing"):
            files.write(self._format.convert(rows))

    def pre_commit(self) -> HandleT:
        """See :class:`SinkWriter`. The task votes when every file is complete."""
        view, files = self._begun()
        with self._explaining("preparing"):
            entries, path = encode(files.finish()), ""
            if len(entries) > _MOST_INLINE:
                path = entries_file(self._directory, self._name)
                view.files.write(path, entries)
        self._release()
        return view.handle(
            transaction=self._name,
            rows=self.rows,
            attempt=f"{self._task.driver_epoch}-{self._task.attempt.counter}",
            batch=self._task.batch_id,
            entries=b"" if path else entries,
            entries_file=path,
            entries_digest=hashlib.sha256(entries).hexdigest() if path else "",
        )

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        if self._files is not None:
            self._files.discard()
        self._release()

    def _begun(self) -> tuple[View[HandleT], RollingFiles[Any]]:
        if self._view is None or self._files is None:
            raise AssertionError("begin_transaction() must be called first")
        return self._view, self._files

    def _explaining(self, what: str) -> AbstractContextManager[None]:
        return explaining(f"sink {self._sink!r}, {what} {self._name}")
