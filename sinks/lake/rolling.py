"""Write a task's files, at least one for each partition. When a file is full, the next rows go to a new file."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from twopc.sinks.lake.entries import Entry, EntryT
from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.layout import data_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.sinks.lake.files import Files
    from twopc.sinks.lake.partitions import Partition

EntryT_co = TypeVar("EntryT_co", bound=Entry, covariant=True)


class Limits(NamedTuple):
    """Limits on a task's memory.

    Attributes:
        waiting: the maximum total size, in bytes, of the rows in all partitions that wait to be written as a row group.
        open: the maximum number of open files. Each file has its own buffers and, on S3, its own upload part.
    """

    waiting: int = 64 * 2**20
    open: int = 16


class DataFile(Protocol[EntryT_co]):
    """A file that a task is writing."""

    @property
    def path(self) -> str:
        """The file path."""

    @property
    def size(self) -> int:
        """The number of bytes written so far."""

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""

    def close(self) -> None:
        """Complete the file."""

    def entry(self, size: int, partition: Partition) -> EntryT_co:
        """Make the entry for the closed file."""


class DataFiles(Protocol[EntryT_co]):
    """Splits rows, and creates files in the table's format."""

    @property
    def file_size(self) -> int:
        """The size in bytes at which a file is full."""

    def split(self, rows: pa.Table) -> Iterable[tuple[Partition, pa.Table]]:
        """Group rows by partition. Each group has the same columns as the data files."""

    def create(self, path: str) -> DataFile[EntryT_co]:
        """Open a new file."""


class RollingFiles(Generic[EntryT]):
    """Buffers a task's rows, and writes them to one file after another in each partition.

    Args:
        files: the table's storage.
        made: creates files in the table's format.
        directory: the directory for the files.
        transaction: the task's transaction, which is in the files' names.
        limits: see :class:`Limits`.
    """

    def __init__(
        self,
        files: Files,
        made: DataFiles[EntryT],
        directory: str,
        transaction: str,
        limits: Limits | None = None,
    ) -> None:
        self._files = files
        self._made = made
        self._directory = directory
        self._transaction = transaction
        self._limits = limits or Limits()
        self._partitions: dict[str, Partition] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._bytes: dict[str, int] = {}
        self._open: dict[str, DataFile[EntryT]] = {}  # the most recently written file is last
        self._paths: list[str] = []
        self._entries: list[EntryT] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows with the table's columns and types."""
        for partition, some in self._made.split(rows):
            key = repr(partition)  # as keys, 0.0 and -0.0 would be equal, and NaN would not equal itself
            self._partitions[key] = partition
            self._waiting.setdefault(key, []).append(some)
            self._bytes[key] = self._bytes.get(key, 0) + some.nbytes
        while sum(self._bytes.values()) > self._limits.waiting:
            self._write_out(max(self._bytes, key=lambda one: self._bytes[one]))

    def finish(self) -> list[EntryT]:
        """Complete all files, and return their entries."""
        for key in list(self._waiting):
            self._write_out(key)
            self._complete(key)
        for key in list(self._open):
            self._complete(key)
        return self._entries

    def discard(self) -> None:
        """Close and delete all files. Ignore errors, because a sweep deletes the remaining files."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()
        self._open.clear()
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._files.delete(path)

    def _write_out(self, key: str) -> None:
        rows = pa.concat_tables(self._waiting.pop(key))
        del self._bytes[key]
        file = self._open.pop(key, None) or self._create()
        self._open[key] = file
        file.write(rows)
        if file.size >= self._made.file_size:
            self._complete(key)
        elif len(self._open) > self._limits.open:
            self._complete(next(iter(self._open)))

    def _create(self) -> DataFile[EntryT]:
        path = data_file(self._directory, self._transaction, len(self._paths))
        self._paths.append(path)
        return self._made.create(path)

    def _complete(self, key: str) -> None:
        file = self._open.pop(key, None)
        if file is None:
            return
        file.close()
        size = self._files.size_of(file.path)
        if size is None:
            raise StoreError(f"{file.path}, which this task has just written, was deleted")
        self._entries.append(file.entry(size, self._partitions[key]))
