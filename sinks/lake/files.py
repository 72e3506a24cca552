"""Access a table's storage directly, without the table format's library."""

from __future__ import annotations

from typing import Protocol


class Files(Protocol):
    """Accesses files. Each method raises :class:`twopc.sinks.lake.errors.StoreError` if the storage does not respond."""

    def read(self, path: str) -> bytes | None:
        """Read a small file. Return None if the file does not exist."""

    def write(self, path: str, data: bytes) -> None:
        """Write a small file."""

    def size_of(self, path: str) -> int | None:
        """Return a file's size in bytes; None if the file does not exist."""

    def copy(self, path: str, copy: str) -> None:
        """Copy a file of any size to a new path."""

    def listed(self, path: str, *, directories: bool = False) -> list[str]:
        """List the names of a directory's files or subdirectories. The list is empty if the directory does not exist."""

    def delete(self, path: str) -> None:
        """Delete a file. Do nothing if the file does not exist."""
