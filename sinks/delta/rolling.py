"""The files of a task in the making: one for each partition, closed and continued in another when it is large enough."""

from __future__ import annotations

import contextlib
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from twopc.sinks.delta.entries import Entry
from twopc.sinks.delta.errors import StoreError, translated
from twopc.sinks.delta.layout import data_file
from twopc.sinks.delta.partitions import split
from twopc.sinks.delta.stats import FileStats

if TYPE_CHECKING:
    from twopc.sinks.delta.partitions import Partition
    from twopc.sinks.delta.store import Store
    from twopc.sinks.delta.table import Definition


class Limits(NamedTuple):
    """What bounds a task's memory and the size of its files.

    Attributes:
        file_size: the size at which a file is closed.
        waiting: how many bytes of rows wait for their row group, over all partitions.
        open: how many files are open at once: each has buffers of its own, and on S3 a part of an upload.
    """

    file_size: int = 256 * 2**20
    waiting: int = 64 * 2**20
    open: int = 16


class RollingFiles:
    """See above.

    Args:
        store: where the files go.
        table: the table, as the task has read it.
        directory: the directory of the files.
        transaction: the task's transaction, for their names.
        limits: see :class:`Limits`.
    """

    def __init__(
        self,
        store: Store,
        table: Definition,
        directory: str,
        transaction: str,
        limits: Limits | None = None,
    ) -> None:
        self._store = store
        self._table = table
        self._directory = directory
        self._transaction = transaction
        self._limits = limits or Limits()
        self._waiting: dict[Partition, list[pa.Table]] = {}
        self._bytes: dict[Partition, int] = {}
        self._open: dict[Partition, _File] = {}  # the one that was written last is at the end
        self._paths: list[str] = []
        self._entries: list[Entry] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows with the table's columns and types."""
        for partition, some in split(rows, self._table.partitions):
            self._waiting.setdefault(partition, []).append(some)
            self._bytes[partition] = self._bytes.get(partition, 0) + some.nbytes
        while sum(self._bytes.values()) > self._limits.waiting:
            self._write_out(max(self._bytes, key=lambda one: self._bytes[one]))

    def finish(self) -> list[Entry]:
        """Complete all files; return their entries."""
        for partition in list(self._waiting):
            self._write_out(partition)
            self._complete(partition)
        for partition in list(self._open):
            self._complete(partition)
        return self._entries

    def discard(self) -> None:
        """Close and delete all files. Raises nothing: the sweep deletes the rest."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()
        self._open.clear()
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._store.delete(path)

    def _write_out(self, partition: Partition) -> None:
        rows = pa.concat_tables(self._waiting.pop(partition))
        del self._bytes[partition]
        file = self._open.pop(partition, None) or self._create()
        self._open[partition] = file
        file.write(rows)
        if file.size >= self._limits.file_size:
            self._complete(partition)
        elif len(self._open) > self._limits.open:
            self._complete(next(iter(self._open)))

    def _create(self) -> _File:
        path = data_file(self._directory, self._transaction, len(self._paths))
        self._paths.append(path)
        return _File(self._store, path, self._table)

    def _complete(self, partition: Partition) -> None:
        file = self._open.pop(partition, None)
        if file is None:
            return
        file.close()
        size = self._store.size_of(file.path)
        if size is None:
            raise StoreError(f"{file.path} was written, but somebody has removed it")
        values = dict(zip(self._table.partitions, partition, strict=True))
        now_ms = time.time_ns() // 1_000_000
        self._entries.append(Entry(file.path, size, file.rows, values, now_ms, file.stats.encode()))


@lru_cache(maxsize=100)
def measured(stored: pa.Schema) -> list[str]:
    """The parts of columns that may have bounds in a Parquet file: all but floats.

    The library leaves NaN out of a file's bounds. Spark and deltalake order NaN above every number, so they would skip the rows
    that have it.
    """
    empty = pa.BufferOutputStream()
    pq.write_table(stored.empty_table(), empty, store_schema=False)
    leaves = pq.ParquetFile(pa.BufferReader(empty.getvalue())).schema
    found = [leaves.column(index) for index in range(len(leaves.names))]
    return [leaf.path for leaf in found if leaf.physical_type not in {"FLOAT", "DOUBLE"}]


class _File:
    """One Parquet file."""

    def __init__(self, store: Store, path: str, table: Definition) -> None:
        self.path = path
        self.rows = 0
        self.stats = FileStats(table.stored, table.configuration)
        self._parts = contextlib.ExitStack()
        self._stream: Any = self._parts.enter_context(store.writing(path))
        # Without Arrow's own schema, so that all readers see the same types.
        writer: Any = pq.ParquetWriter(
            self._stream,
            table.stored,
            compression="snappy",
            store_schema=False,
            write_statistics=measured(table.stored),
        )
        self._writer = self._parts.enter_context(writer)

    @property
    def size(self) -> int:
        """How many bytes are written so far."""
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        with translated(f"writing {self.path}"):
            self._writer.write_table(rows)
        self.rows += rows.num_rows
        self.stats.add(rows)

    def close(self) -> None:
        """Complete the file."""
        self._parts.close()
