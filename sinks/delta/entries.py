"""Files that a task has written, encoded for the driver: what an ``add`` action of the table's log says of each."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec
from deltalake.transaction import AddAction

if TYPE_CHECKING:
    from collections.abc import Iterable


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One file.

    Attributes:
        path: relative to the table.
        size: in bytes.
        rows: how many rows it has.
        partition: the values of its partition columns, as Delta writes them; None is null.
        modified_ms: when it was written.
        stats: Delta's statistics, as JSON.
    """

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    modified_ms: int
    stats: str

    def action(self) -> AddAction:
        """The file as the table's log has it."""
        return AddAction(self.path, self.size, self.partition, self.modified_ms, data_change=True, stats=self.stats)


def encode(entries: Iterable[Entry]) -> bytes:
    """Encode the entries of a transaction."""
    return zlib.compress(msgspec.msgpack.encode(list(entries)))


def decode(encoded: bytes) -> list[Entry]:
    """Decode what :func:`encode` returned."""
    return msgspec.msgpack.decode(zlib.decompress(encoded), type=list[Entry])
