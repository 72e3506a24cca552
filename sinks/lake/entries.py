"""Encode a task's list of files for the driver. An entry's content depends on the table's format."""

from __future__ import annotations

import zlib
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class Entry(Protocol):
    """Describes one file."""

    @property
    def path(self) -> str:
        """The file path."""

    @property
    def size(self) -> int:
        """The file's size in bytes."""

    @property
    def rows(self) -> int:
        """The number of rows in the file."""

    @property
    def modified_ms(self) -> int:
        """The Unix time at which the file was written, in milliseconds; 0 if the time is unknown."""


EntryT = TypeVar("EntryT", bound=Entry)


def encode(entries: Iterable[Entry]) -> bytes:
    """Encode a transaction's entries."""
    return zlib.compress(msgspec.msgpack.encode(list(entries)))


def decode(encoded: bytes, kind: type[EntryT]) -> list[EntryT]:
    """Decode the result of :func:`encode` into entries of the class ``kind``."""
    entries: Any = GenericAlias(list, (kind,))
    found: list[EntryT] = msgspec.msgpack.decode(zlib.decompress(encoded), type=entries)
    return found
