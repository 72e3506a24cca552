"""Define the layout of the sink's own table, and access its slices.

A task writes a slice once, and only the driver reads it.

A slice is one row, so a sweep can remove it in one step. A task writes each chunk only if the slice is still
open. After a sweep, the task therefore detects that the slice is closed. Every cell of a slice has the same timestamp,
so a deletion does not depend on the region servers' clocks.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.sinks.hbase.messages import Message, client_pb, hbase_pb, region
from twopc.sinks.hbase.row_ops import Op, cell_size, cells_of, delete, look, where_present, write
from twopc.sinks.staged.slices import StagedHandle, entry_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.sinks.hbase.row_ops import Column

#: The family of small cells that are read often: the control record, progress and digests.
STATE: Final = b"t"
#: The family of the chunks.
DATA: Final = b"d"
_SLICE_AT: Final = 1
#: Encodes a chunk's :class:`twopc.sinks.hbase.check.Reach`, which is in the family of small cells.
REACH: Final = struct.Struct(">qq")
REACH_OF_CHUNK: Final = b"r"
_ANY_ENTRY: Final = entry_of(0, "0" * 32)
_OPEN: Final[Column] = (STATE, b"open")
#: A chunk without mutations. The driver fills in the region when it applies the chunk.
_CHUNK: Final[bytes] = client_pb.RegionAction(region=region(b"")).SerializeToString()


@dataclass(frozen=True, kw_only=True)
class HBaseHandle(StagedHandle):
    """A prepared slice. The slice's checksum is the SHA-256 of the chunks' SHA-256 digests.

    Attributes:
        partition: the task's partition. A decision's slices are ordered by partition.
        table: the table that the mutations change.
        operation: the HBase name for the operation.
        chunks: the number of chunks.
        distinct: True if no two chunks share a row key. The chunks may then be applied in any order.
    """

    partition: int
    table: str
    operation: str
    chunks: int
    distinct: bool

    @property
    def further_ms(self) -> int:
        """How many timestamps the slice uses in addition to its first.

        If chunks may share a row key, each chunk needs its own timestamp, so that the row of the last chunk wins.
        """
        return self.chunks - 1 if self.operation == "PUT" and not self.distinct else 0

    def row(self, sink: str) -> bytes:
        """Return the slice's row in the sink's own table."""
        return slice_row(sink, self.entry)


def own_row(sink: str, name: str) -> bytes:
    """Return the key of one of the sink's own rows: ``control``, ``fence``, or a slice with the prefix ``slice/``."""
    return f"{sink}/{name}".encode()


def slice_row(sink: str, entry: str) -> bytes:
    """Build a slice's row from its entry."""
    driver_epoch, _, uuid = entry.partition(":")
    return own_row(sink, f"slice/{int(driver_epoch):020d}/{uuid}")


def entry_of_row(row: bytes) -> str:
    """Extract a slice's entry from its row."""
    driver_epoch, uuid = row.decode().split("/")[-2:]
    return entry_of(int(driver_epoch), uuid)


def open_slice(table: str, row: bytes) -> Op:
    """Create a slice without chunks."""
    return write(table, row, {_OPEN: b"1"}, at_ms=_SLICE_AT)


def add_chunk(table: str, row: bytes, number: int, data: bytes, reach: tuple[int, int]) -> Op:
    """If the slice is open, write a chunk, the chunk's digest, and the chunk's ``Reach`` in one step."""
    cells = {(STATE, b"h%08d" % number): digest(data), (DATA, b"c%08d" % number): data}
    if any(reach):
        cells[STATE, REACH_OF_CHUNK + b"%08d" % number] = REACH.pack(*reach)
    return write(table, row, cells, at_ms=_SLICE_AT, condition=where_present(row, _OPEN))


def digests_of(result: Message) -> list[bytes]:
    """Read the chunks' digests from a slice's state cells, in order. A chunk without a digest was not written."""
    cells = sorted((column, cell.value) for column, cell in cells_of(result).items() if column[1].startswith(b"h"))
    return [value for _, value in cells]


def look_at_chunk(table: str, row: bytes, number: int) -> Op:
    """Read a chunk's data."""
    return look(table, row, [(DATA, b"c%08d" % number)])


def staged_size(sink: str, data: bytes) -> int:
    """Compute the size of a chunk's cell, which HBase limits. The size is the same in every slice of the sink."""
    return cell_size(slice_row(sink, _ANY_ENTRY), (DATA, b"c%08d" % 0), len(data))


def remove_slice(table: str, row: bytes) -> Op:
    """Remove a slice, which also closes it."""
    return Op(table, row, mutations=(delete(row, up_to_ms=_SLICE_AT),))


def digest(data: bytes) -> bytes:
    """Compute a chunk's digest."""
    return hashlib.sha256(data).hexdigest().encode()


def fold(digests: Iterable[bytes]) -> str:
    """Combine many digests into one."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def pack(actions: Iterable[bytes]) -> bytes:
    """Encode a chunk as an HBase message.

    The message contains the operation, so that later versions apply the chunk correctly.
    """
    return _CHUNK + b"".join(actions)


def unpack(data: bytes) -> Message:
    """Decode a chunk. The ``action`` field of the message contains the mutations."""
    return client_pb.RegionAction.FromString(data)


def families() -> list[Message]:
    """Define the table's column families, which keep one version of each cell forever."""
    one_version = [hbase_pb.BytesBytesPair(first=b"VERSIONS", second=b"1")]
    return [hbase_pb.ColumnFamilySchema(name=name, attributes=one_version) for name in (STATE, DATA)]
