"""Access a table's storage through the FileIO that its catalog provides."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Final

from twopc.sinks.iceberg.errors import translated
from twopc.sinks.iceberg.private import listed

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_READ_AT_ONCE: Final = 2**20


class TableFiles:
    """Accesses a table's storage; see :class:`twopc.sinks.lake.files.Files`."""

    def __init__(self, file_io: FileIO) -> None:
        self._io = file_io

    def read(self, path: str) -> bytes | None:
        """Read a small file; return None if it does not exist."""
        with translated(f"reading {path}"):
            try:
                with self._io.new_input(path).open() as stream, io.BytesIO() as found:
                    while piece := stream.read(_READ_AT_ONCE):
                        found.write(piece)
                    return found.getvalue()
            except FileNotFoundError:
                return None

    def write(self, path: str, data: bytes) -> None:
        """Write one of the sink's small files."""
        with translated(f"writing {path}"), self._io.new_output(path).create(overwrite=True) as stream:
            stream.write(data)

    def copy(self, path: str, copy: str) -> None:
        """Copy a file of any size to a new path."""
        with (
            translated(f"copying {path}"),
            self._io.new_input(path).open() as source,
            self._io.new_output(copy).create(overwrite=True) as target,
        ):
            while piece := source.read(_READ_AT_ONCE):
                target.write(piece)

    def size_of(self, path: str) -> int | None:
        """Return a file's size in bytes; None if the file does not exist."""
        with translated(f"looking for {path}"):
            try:
                return len(self._io.new_input(path))
            except FileNotFoundError:
                return None

    def listed(self, path: str, *, directories: bool = False) -> list[str]:
        """List the names of a directory's files or subdirectories. The list is empty if the directory does not exist."""
        with translated("listing the sink's files"):
            return sorted(name for name, is_file in listed(self._io, path) if is_file is not directories)

    def delete(self, path: str) -> None:
        """Delete a file. Do nothing if the file does not exist."""
        with translated(f"deleting {path}"), contextlib.suppress(FileNotFoundError):
            self._io.delete(path)
