"""Write Parquet files for a Delta table."""

from __future__ import annotations

import contextlib
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from twopc.sinks.delta.entries import Entry
from twopc.sinks.delta.errors import translated
from twopc.sinks.delta.partitions import split
from twopc.sinks.delta.stats import FileStats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sinks.delta.store import Store
    from twopc.sinks.delta.table import Definition
    from twopc.sinks.lake.partitions import Group, Partition

_FILE_SIZE: Final = 256 * 2**20
#: Without this key, a reader's setting decides whether Spark shifts ancient dates by the difference between two calendars, or
#: rejects them (``DataSourceUtils.getRebaseSpec``). Since version 3.1, files contain dates in the calendar that Arrow uses.
_SPARK_VERSION: Final = {"org.apache.spark.version": "3.5.0"}


class NewFiles:
    """Creates data files for a table; see :class:`twopc.sinks.lake.rolling.DataFiles`."""

    def __init__(self, store: Store, table: Definition, file_size: int = _FILE_SIZE) -> None:
        self.file_size = file_size
        self._store = store
        self._table = table

    def split(self, rows: pa.Table) -> Iterator[Group]:
        """Group rows by partition."""
        return split(rows, self._table.partitions)

    def create(self, path: str) -> NewFile:
        """Open a new file."""
        return NewFile(self._store, path, self._table)


@lru_cache(maxsize=100)
def measured(stored: pa.Schema) -> list[str]:
    """List the leaf columns that may have bounds in a Parquet file: all leaf columns except floats.

    The Parquet library ignores NaN in a file's bounds. Spark and deltalake treat NaN as greater than every number. With such
    bounds, Spark and deltalake would therefore skip rows with NaN.
    """
    empty = pa.BufferOutputStream()
    pq.write_table(stored.empty_table(), empty, store_schema=False)
    leaves = pq.ParquetFile(pa.BufferReader(empty.getvalue())).schema
    found = [leaves.column(index) for index in range(len(leaves.names))]
    return [leaf.path for leaf in found if leaf.physical_type not in {"FLOAT", "DOUBLE"}]


class NewFile:
    """A Parquet file that a task is writing; see :class:`twopc.sinks.lake.rolling.DataFile`."""

    def __init__(self, store: Store, path: str, table: Definition) -> None:
        self.path = path
        self._rows = 0
        self._partitions = table.partitions
        self._stats = FileStats(table.stored, table.configuration)
        self._parts = contextlib.ExitStack()
        self._stream: Any = self._parts.enter_context(store.writing(path))
        # The file omits the Arrow schema, so that all readers see the same types.
        writer: Any = pq.ParquetWriter(
            self._stream,
            table.stored,
            compression="snappy",
            store_schema=False,
            write_statistics=measured(table.stored),
        )
        self._writer = self._parts.enter_context(writer)
        self._writer.add_key_value_metadata(_SPARK_VERSION)

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        """Write a row group, without the partition columns, because Delta keeps their values in its log."""
        rows = rows.drop_columns(list(self._partitions))
        with translated(f"writing {self.path}"):
            self._writer.write_table(rows)
        self._rows += rows.num_rows
        self._stats.add(rows)

    def close(self) -> None:
        """Complete the file."""
        self._parts.close()

    def entry(self, size: int, partition: Partition) -> Entry:
        """Create the entry for the closed file."""
        values = dict(zip(self._partitions, partition, strict=True))
        return Entry(self.path, size, self._rows, values, time.time_ns() // 1_000_000, self._stats.encode())
