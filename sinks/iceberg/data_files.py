"""Write Parquet files for an Iceberg table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.sinks.iceberg.entries import entry_of
from twopc.sinks.iceberg.errors import translated
from twopc.sinks.iceberg.partitions import split
from twopc.sinks.iceberg.private import ParquetFile
from twopc.sinks.iceberg.properties import file_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyiceberg.table import Table

    from twopc.sinks.iceberg.entries import Entry
    from twopc.sinks.lake.partitions import Group, Partition


class NewFiles:
    """Creates data files for a table; see :class:`twopc.sinks.lake.rolling.DataFiles`."""

    def __init__(self, table: Table) -> None:
        self.file_size = file_size(table.properties)
        self._table = table

    def split(self, rows: pa.Table) -> Iterator[Group]:
        """Group rows by partition."""
        return split(rows, self._table.schema(), self._table.spec())

    def create(self, path: str) -> NewFile:
        """Open a new file."""
        with translated(f"creating {path}"):
            return NewFile(ParquetFile(self._table.io, self._table.metadata, path))


class NewFile:
    """A Parquet file that a task is writing; see :class:`twopc.sinks.lake.rolling.DataFile`."""

    def __init__(self, file: ParquetFile) -> None:
        self.path = file.path
        self._file = file
        self._statistics: dict[str, Any] = {}

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        return self._file.size

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        with translated(f"writing {self.path}"):
            self._file.write(rows)

    def close(self) -> None:
        """Complete the file."""
        with translated(f"writing {self.path}"):
            self._statistics = self._file.close()

    def entry(self, size: int, partition: Partition) -> Entry:
        """Create the entry for the closed file."""
        return entry_of(self.path, size, partition, self._statistics)
