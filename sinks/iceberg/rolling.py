"""The files of a task in the making: one for each partition, closed and continued in another when it is large enough."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from twopc.sinks.iceberg.entries import entry_of
from twopc.sinks.iceberg.errors import StoreError, translated
from twopc.sinks.iceberg.layout import data_file
from twopc.sinks.iceberg.partitions import split
from twopc.sinks.iceberg.private import ParquetFile
from twopc.sinks.iceberg.store import delete, size_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from twopc.sinks.iceberg.entries import Entry
    from twopc.sinks.iceberg.partitions import Partition

_TARGET_SIZE: Final = "write.target-file-size-bytes"
_DEFAULT_SIZE: Final = 512 * 2**20
#: How many bytes of rows wait for their row group, over all partitions.
_MOST_WAITING: Final = 64 * 2**20
#: How many files are open at once: each has buffers of its own, and on S3 a part of an upload.
_MOST_OPEN: Final = 16


class RollingFiles:
    """See above.

    Args:
        table: the table, as the task has loaded it.
        directory: where the files go.
        transaction: the task's transaction, for their names.
    """

    def __init__(
        self,
        table: Table,
        directory: str,
        transaction: str,
        *,
        most_waiting: int = _MOST_WAITING,
        most_open: int = _MOST_OPEN,
    ) -> None:
        self._table = table
        self._directory = directory
        self._transaction = transaction
        self._most_waiting = most_waiting
        self._most_open = most_open
        self._file_size = int(table.properties.get(_TARGET_SIZE, _DEFAULT_SIZE))
        self._partitions: dict[str, Partition] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._bytes: dict[str, int] = {}
        self._open: dict[str, ParquetFile] = {}  # the one that was written last is at the end
        self._paths: list[str] = []
        self._entries: list[Entry] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows with the table's columns and types."""
        for partition, some in split(rows, self._table.schema(), self._table.spec()):
            key = repr(partition)  # as keys, 0.0 and -0.0 would be equal, and NaN would not be
            self._partitions[key] = partition
            self._waiting.setdefault(key, []).append(some)
            self._bytes[key] = self._bytes.get(key, 0) + some.nbytes
        while sum(self._bytes.values()) > self._most_waiting:
            self._write_out(max(self._bytes, key=lambda one: self._bytes[one]))

    def finish(self) -> list[Entry]:
        """Complete all files; return their entries."""
        for key in list(self._waiting):
            self._write_out(key)
            self._complete(key)
        for key in list(self._open):
            self._complete(key)
        return self._entries

    def discard(self) -> None:
        """Close and delete all files. Raises nothing: the sweep deletes the rest."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()
        self._open.clear()
        for path in self._paths:
            with contextlib.suppress(Exception):
                delete(self._table, path)

    def _write_out(self, key: str) -> None:
        rows = pa.concat_tables(self._waiting.pop(key))
        del self._bytes[key]
        file = self._open.pop(key, None) or self._create()
        with translated(f"writing {file.path}"):
            file.write(rows)
        self._open[key] = file
        if file.size >= self._file_size:
            self._complete(key)
        elif len(self._open) > self._most_open:
            self._complete(next(iter(self._open)))

    def _create(self) -> ParquetFile:
        path = data_file(self._directory, self._transaction, len(self._paths))
        self._paths.append(path)
        with translated(f"creating {path}"):
            return ParquetFile(self._table.io, self._table.metadata, path)

    def _complete(self, key: str) -> None:
        file = self._open.pop(key, None)
        if file is None:
            return
        with translated(f"writing {file.path}"):
            statistics = file.close()
        size = size_of(self._table, file.path)
        if size is None:
            raise StoreError(f"{file.path} was written, but somebody has removed it")
        self._entries.append(entry_of(file.path, size, self._partitions[key], statistics))
