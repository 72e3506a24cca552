"""Write a task's files, at least one for each partition. When a file is full, the next rows go to a new file.

The writer does not split rows until they reach the limit. If it split each batch immediately, rows in very many partitions
would become very many small tables. The objects of such a table need far more memory than its rows.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from twopc.sinks.lake.entries import Entry, EntryT
from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.layout import data_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.sinks.lake.files import Files
    from twopc.sinks.lake.partitions import Group, Partition

EntryT_co = TypeVar("EntryT_co", bound=Entry, covariant=True)


class Limits(NamedTuple):
    """Limits on a task's memory.

    Attributes:
        waiting: the maximum total size, in bytes, of the rows in all partitions that wait to be written as a row group. To
            split these rows, the task needs a copy of the same size.
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
    """Splits the rows between files, and creates the files in the table's format."""

    @property
    def file_size(self) -> int:
        """The size in bytes at which a file is full."""

    def split(self, rows: pa.Table) -> Iterable[Group]:
        """Group rows by partition."""

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
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._open: dict[str, tuple[DataFile[EntryT], Partition]] = {}  # the most recently written file is last
        self._paths: list[str] = []
        self._entries: list[EntryT] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows with the table's columns and types."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._limits.waiting:
            self._write_out(down_to=self._limits.waiting / 2)

    def finish(self) -> list[EntryT]:
        """Complete all files, and return their entries."""
        self._write_out(down_to=-math.inf)
        for key in list(self._open):
            self._complete(key)
        return self._entries

    def discard(self) -> None:
        """Close and delete all files. Ignore errors, because a sweep deletes the remaining files."""
        for file, _ in self._open.values():
            with contextlib.suppress(Exception):
                file.close()
        self._open.clear()
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._files.delete(path)

    def _write_out(self, down_to: float) -> None:
        """Write the rows of the largest partitions, until at most this many bytes wait.

        The rows of small partitions continue to wait, because each partition that is written needs a file.
        """
        if not self._waiting:
            return
        rows, self._waiting = pa.concat_tables(self._waiting), []
        groups = sorted(self._made.split(rows), key=lambda group: len(group[1]))
        if len(groups) > 1:
            rows = rows.combine_chunks()  # otherwise, each selection of rows would scan every chunk
        while groups and self._bytes > down_to:
            partition, numbers = groups.pop()
            some = rows if len(numbers) == rows.num_rows else rows.take(numbers)
            self._bytes -= some.nbytes
            self._write_group(partition, some)
        if groups:
            self._waiting = [rows.take(pa.concat_arrays([numbers for _, numbers in groups]))]
        self._bytes = sum(kept.nbytes for kept in self._waiting)

    def _write_group(self, partition: Partition, rows: pa.Table) -> None:
        key = repr(partition)  # as keys, 0.0 and -0.0 would be equal, and NaN would not equal itself
        file, _ = self._open.pop(key) if key in self._open else (self._create(), partition)
        self._open[key] = file, partition
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
        file, partition = self._open.pop(key)
        file.close()
        size = self._files.size_of(file.path)
        if size is None:
            raise StoreError(f"{file.path}, which this task has just written, was deleted")
        self._entries.append(file.entry(size, partition))
