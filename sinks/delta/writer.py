"""The executor's side of the Delta sink: a task writes data files that no version of the table names."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

from twopc import control
from twopc.errors import RetriableError
from twopc.fenced_committer import transaction_name
from twopc.sinks.delta.entries import encode
from twopc.sinks.delta.errors import StoreError, explained
from twopc.sinks.delta.handle import DeltaHandle
from twopc.sinks.delta.layout import directory, entries_file, root
from twopc.sinks.delta.record import read_record
from twopc.sinks.delta.rolling import RollingFiles
from twopc.sinks.delta.rows import fit_rows
from twopc.sinks.delta.table import definition_of
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.sinks.delta.rows import RowFormat
    from twopc.sinks.delta.settings import DeltaSettings
    from twopc.sinks.delta.table import Definition

#: A larger handle would make the decision record large: the entries of some 50 files.
_MOST_INLINE: Final = 16 * 2**10


class DeltaWriter(SinkWriter[DeltaHandle]):
    """See :class:`SinkWriter`. A file that no version names is invisible, so a task that dies leaves only garbage."""

    def __init__(self, task: TaskAttempt, settings: DeltaSettings) -> None:
        self._task = task
        self._settings = settings
        self._name = transaction_name(settings.name, task)
        self._directory = ""
        self._store = settings.store()
        self._table: Definition | None = None
        self._files: RollingFiles | None = None
        self._format: RowFormat | None = None

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        with self._explaining("beginning"):
            table, record = read_record(self._store, self._store.load(), self._settings.name)
        owner = control.decode(bytes(record.control) if record else None)
        if owner.driver_epoch != self._task.driver_epoch:
            self._store.close()
            raise RetriableError(f"sink {self._settings.name!r}: a newer driver has replaced the one of this task")
        self._table = definition_of(table)
        self._settings.require_supported(self._table)
        base = root(self._settings.name, owner.id)
        self._directory = directory(base, self._task.driver_epoch, self._task.batch_id)
        self._files = RollingFiles(self._store, self._table, self._directory, self._name)

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`."""
        table, files = self._begun()
        if self._format is None:
            self._format = fit_rows(rows.schema, table, self._settings.table_uri)
        self._format.check(rows)
        with self._explaining("writing"):
            files.write(self._format.convert(rows))

    def pre_commit(self) -> DeltaHandle:
        """See :class:`SinkWriter`. The vote is that every file is complete."""
        table, files = self._begun()
        with self._explaining("preparing"):
            entries, path = encode(files.finish()), ""
            if len(entries) > _MOST_INLINE:
                path = entries_file(self._directory, self._name)
                with self._store.writing(path) as stream:
                    stream.write(entries)
        self._store.close()
        return DeltaHandle(
            self._name,
            self.rows,
            attempt=f"{self._task.driver_epoch}-{self._task.attempt.counter}",
            batch=self._task.batch_id,
            table=table.fingerprint,
            entries=b"" if path else entries,
            entries_file=path,
            entries_digest=hashlib.sha256(entries).hexdigest() if path else "",
        )

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        if self._files is not None:
            self._files.discard()
        self._store.close()

    def _begun(self) -> tuple[Definition, RollingFiles]:
        if self._table is None or self._files is None:
            raise AssertionError("begin_transaction comes first")
        return self._table, self._files

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise explained(error, f"sink {self._settings.name!r}, {what} {self._name}") from error
