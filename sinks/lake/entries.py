"""Encode the files of a task for the driver. The content of an entry depends on the table's format."""

from __future__ import annotations

import zlib
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class Entry(Protocol):
    """One file."""

    @property
    def path(self) -> str:
        """Its path."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    @property
    def rows(self) -> int:
        """The number of its rows."""


EntryT = TypeVar("EntryT", bound=Entry)


def encode(entries: Iterable[Entry]) -> bytes:
    """Encode the entries of a transaction."""
    return zlib.compress(msgspec.msgpack.encode(list(entries)))


def decode(encoded: bytes, kind: type[EntryT]) -> list[EntryT]:
    """Decode what :func:`encode` returned for entries of this kind."""
    entries: Any = GenericAlias(list, (kind,))
    found: list[EntryT] = msgspec.msgpack.decode(zlib.decompress(encoded), type=entries)
    return found
