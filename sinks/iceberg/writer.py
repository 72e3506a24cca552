"""The executor's side of the Iceberg sink: a task writes data files that no snapshot names."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

from twopc import control
from twopc.errors import RetriableError
from twopc.fenced_committer import transaction_name
from twopc.sinks.iceberg.entries import encode
from twopc.sinks.iceberg.errors import StoreError, explained
from twopc.sinks.iceberg.handle import IcebergHandle
from twopc.sinks.iceberg.layout import entries_file, layout_of
from twopc.sinks.iceberg.record import read_tag
from twopc.sinks.iceberg.rolling import RollingFiles
from twopc.sinks.iceberg.rows import fit_rows
from twopc.sinks.iceberg.store import write_object
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyiceberg.table import Table

    from twopc.attempt import TaskAttempt
    from twopc.sinks.iceberg.rows import RowFormat
    from twopc.sinks.iceberg.settings import IcebergSettings

#: A larger handle would make the decision record large: the entries of some 50 files.
_MOST_INLINE: Final = 16 * 2**10


class IcebergWriter(SinkWriter[IcebergHandle]):
    """See :class:`SinkWriter`. A file that no snapshot names is invisible, so a task that dies leaves only garbage."""

    def __init__(self, task: TaskAttempt, settings: IcebergSettings) -> None:
        self._task = task
        self._settings = settings
        self._name = transaction_name(settings.name, task)
        self._store = settings.store()
        self._table: Table | None = None
        self._files: RollingFiles | None = None
        self._format: RowFormat | None = None
        self._directory = ""

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        task = self._task
        with self._explaining("beginning"):
            table = self._table = self._store.load()
            tagged = read_tag(table.metadata, self._settings.name)
        record = control.decode(tagged.control if tagged else None)
        if record.driver_epoch != task.driver_epoch:
            self._store.close()
            raise RetriableError(f"sink {self._settings.name!r}: a newer driver has replaced the one of this task")
        self._settings.require_supported(table)
        self._directory = layout_of(table.metadata, self._settings.name, record.id).directory(
            task.driver_epoch, task.batch_id
        )
        self._files = RollingFiles(table, self._directory, self._name)

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`."""
        table, files = self._begun()
        if self._format is None:
            self._format = fit_rows(rows.schema, table.schema(), self._settings.table)
        self._format.check(rows)
        with self._explaining("writing"):
            files.write(self._format.convert(rows))

    def pre_commit(self) -> IcebergHandle:
        """See :class:`SinkWriter`. The vote is that every file is complete."""
        table, files = self._begun()
        with self._explaining("preparing"):
            entries, path = encode(files.finish()), ""
            if len(entries) > _MOST_INLINE:
                path = entries_file(self._directory, self._name)
                write_object(table, path, entries)
        self._store.close()
        return IcebergHandle(
            self._name,
            self.rows,
            attempt=f"{self._task.driver_epoch}-{self._task.attempt.counter}",
            batch=self._task.batch_id,
            schema_id=table.metadata.current_schema_id,
            spec_id=table.metadata.default_spec_id,
            entries=b"" if path else entries,
            entries_file=path,
            entries_digest=hashlib.sha256(entries).hexdigest() if path else "",
        )

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        if self._files is not None:
            self._files.discard()
        self._store.close()

    def _begun(self) -> tuple[Table, RollingFiles]:
        if self._table is None or self._files is None:
            raise AssertionError("begin_transaction comes first")
        return self._table, self._files

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise explained(error, f"sink {self._settings.name!r}, {what} {self._name}") from error
