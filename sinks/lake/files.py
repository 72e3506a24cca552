"""The storage of a table, as the sink uses it beside the library of the table's format."""

from __future__ import annotations

from typing import Protocol


class Files(Protocol):
    """Small operations on files. Each raises :class:`twopc.sinks.lake.errors.StoreError` if the storage does not answer."""

    def read(self, path: str) -> bytes | None:
        """Read a small file; None if it is not there."""

    def write(self, path: str, data: bytes) -> None:
        """Write a small file."""

    def size_of(self, path: str) -> int | None:
        """The size of a file in bytes; None if it is not there."""

    def listed(self, path: str, *, directories: bool = False) -> list[str]:
        """The names of what is directly in a directory: its files, or the directories; nothing if it is not there."""

    def delete(self, path: str) -> None:
        """Delete a file. One that is not there counts as deleted."""
