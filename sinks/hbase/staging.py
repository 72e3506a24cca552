"""The sink's own table: what is called how in it, and slices, which are written once and read by the driver only.

A slice is one row, so that it can be swept in one step: each of its chunks is written under the condition that the slice
is open, and who has been swept finds it closed. Timestamps there are not times: every cell of a slice has the same, so
that a deletion holds whatever the clocks of region servers say.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from sinks.hbase.messages import Message, client, hbase, region
from sinks.hbase.row_ops import Op, cells_of, delete, look, put, where_present

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sinks.hbase.row_ops import Column

#: Small things: who drives, how far it is, digests. Looked at often.
STATE: Final = b"t"
#: Chunks.
DATA: Final = b"d"
_SLICE_AT: Final = 1
_OPEN: Final[Column] = (STATE, b"open")


def control_row(sink: str) -> bytes:
    """Who drives the sink."""
    return f"{sink}/control".encode()


def fence_row(sink: str) -> bytes:
    """The newest decision of which anything was applied, and how far."""
    return f"{sink}/fence".encode()


def slices_prefix(sink: str) -> bytes:
    """What the rows of all slices begin with."""
    return f"{sink}/slice/".encode()


def slice_row(sink: str, driver_epoch: int, uuid: str) -> bytes:
    """A slice's row."""
    return slices_prefix(sink) + f"{driver_epoch:020d}/{uuid}".encode()


def driver_epoch_of(row: bytes) -> int:
    """The incarnation in whose time a slice was written."""
    return int(row.split(b"/")[-2])


def open_slice(table: str, row: bytes) -> Op:
    """Make a slice, without a chunk."""
    return Op(table, row, mutations=(put(row, {_OPEN: b"1"}, at_ms=_SLICE_AT),))


def add_chunk(table: str, row: bytes, number: int, data: bytes) -> Op:
    """Write a chunk and its digest, if the slice is open."""
    cells = {(STATE, b"h%08d" % number): digest(data), (DATA, b"c%08d" % number): data}
    return Op(table, row, mutations=(put(row, cells, at_ms=_SLICE_AT),), condition=where_present(row, _OPEN))


def look_at_digests(table: str, row: bytes) -> Op:
    """Ask for :func:`digests_of`."""
    return look(table, row, family=STATE)


def digests_of(result: Message) -> list[bytes]:
    """The digests of a slice's chunks, in order; a chunk is there where its digest is: they are written in one step."""
    cells = sorted((column, cell.value) for column, cell in cells_of(result).items() if column[1].startswith(b"h"))
    return [value for _, value in cells]


def look_at_chunk(table: str, row: bytes, number: int) -> Op:
    """Ask for a chunk's data."""
    return look(table, row, [(DATA, b"c%08d" % number)])


def remove_slice(table: str, row: bytes) -> Op:
    """Remove and close a slice."""
    return Op(table, row, mutations=(delete(row, up_to_ms=_SLICE_AT),))


def digest(data: bytes) -> bytes:
    """A chunk's digest."""
    return hashlib.sha256(data).hexdigest().encode()


def fold(digests: Iterable[bytes]) -> str:
    """One digest of many."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def pack(mutations: Iterable[Message]) -> bytes:
    """A chunk's data: HBase's own message, so that a decided chunk says itself what it does."""
    chunk = client.RegionAction(region=region(b""))
    for mutation in mutations:
        chunk.action.add().mutation.CopyFrom(mutation)
    return bytes(chunk.SerializeToString())


def unpack(data: bytes) -> list[Message]:
    """The mutations of a chunk."""
    return [action.mutation for action in client.RegionAction.FromString(data).action]


def families() -> list[Message]:
    """Those of the table: one version of everything, kept for ever."""
    one_version = [hbase.BytesBytesPair(first=b"VERSIONS", second=b"1")]
    return [hbase.ColumnFamilySchema(name=name, attributes=one_version) for name in (STATE, DATA)]
