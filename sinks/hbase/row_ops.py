"""Build operations on one HBase row.

An operation is a read, or a set of mutations that happen together if a condition holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twopc.sinks.hbase.messages import Message, client_pb, comparator_pb, filter_pb, hbase_pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PUT, _APPEND, _DELETE = client_pb.MutationProto.PUT, client_pb.MutationProto.APPEND, client_pb.MutationProto.DELETE
#: HBase acknowledges a mutation only when it is in the write-ahead log, regardless of the table's setting.
DURABLE: Final = client_pb.MutationProto.SYNC_WAL
#: The table's setting applies, or the cluster's (``hbase.wal.hsync``). Both may also demand that the disks have the mutation.
AS_CONFIGURED: Final = client_pb.MutationProto.USE_DEFAULT

_BINARY: Final = "org.apache.hadoop.hbase.filter.BinaryComparator"
_KEY_ONLY: Final = "org.apache.hadoop.hbase.filter.KeyOnlyFilter"
_LENGTH_AS_VALUE: Final[bytes] = filter_pb.KeyOnlyFilter(len_as_val=True).SerializeToString()
_OVERHEAD_BYTES: Final = 100
#: The number of bytes that HBase counts for each cell in addition to its row, family, qualifier and value.
_CELL_BYTES: Final = 24

Column = tuple[bytes, bytes]
"""A family and a qualifier."""


class Cell(NamedTuple):
    """A value and its timestamp, in ms."""

    value: bytes
    timestamp_ms: int


class Op(NamedTuple):
    """One row's part of a request.

    Attributes:
        table: the table name.
        row: the row's key.
        look: the cells to read. A read operation has no mutations.
        mutations: the changes, which HBase applies together.
        condition: the condition for the mutations.
    """

    table: str
    row: bytes
    look: Message | None = None
    mutations: tuple[Message, ...] = ()
    condition: Message | None = None

    @property
    def size_bytes(self) -> int:
        """The approximate number of bytes that the operation adds to a request."""
        size = len(self.row) + _OVERHEAD_BYTES
        for mutation in self.mutations:
            size += mutation.ByteSize()
        return size


def look(
    table: str, row: bytes, columns: Sequence[Column] = (), *, family: bytes | None = None, sizes_only: bool = False
) -> Op:
    """Build an operation that reads a row's columns or family.

    With ``sizes_only``, read each value's length, in 4 bytes, instead of the value.
    """
    message = client_pb.Get(row=row)
    if sizes_only:
        message.filter.name, message.filter.serialized_filter = _KEY_ONLY, _LENGTH_AS_VALUE
    qualifiers: dict[bytes, list[bytes]] = {} if family is None else {family: []}
    for name, qualifier in columns:
        qualifiers.setdefault(name, []).append(qualifier)
    for name, wanted in qualifiers.items():
        message.column.add(family=name, qualifier=wanted)
    return Op(table, row, look=message)


def cells_of(result: Any) -> dict[Column, Cell]:
    """Return the cells in the response to a read."""
    return {(cell.family, cell.qualifier): Cell(cell.value, cell.timestamp) for cell in result.cell}


def cell_size(row: bytes, place: Column, value_bytes: int) -> int:
    """Compute the size that HBase compares with ``hbase.server.keyvalue.maxsize``."""
    return _CELL_BYTES + len(row) + sum(map(len, place)) + value_bytes


def put(row: bytes, cells: Mapping[Column, bytes], *, at_ms: int | None = None) -> Message:
    """Build a mutation that writes cells at a timestamp, or at the region server's time."""
    return _with_cells(client_pb.MutationProto(row=row, mutate_type=_PUT, timestamp=at_ms), cells)


def append(row: bytes, cells: Mapping[Column, bytes]) -> Message:
    """Build a mutation that appends to cells. If a cell does not exist, it is created with the value."""
    return _with_cells(client_pb.MutationProto(row=row, mutate_type=_APPEND), cells)


def _with_cells(message: Message, cells: Mapping[Column, bytes]) -> Message:
    families: dict[bytes, Any] = {}
    for (family, qualifier), value in cells.items():
        if family not in families:
            families[family] = message.column_value.add(family=family)
        families[family].qualifier_value.add(qualifier=qualifier, value=value)
    return message


def write(table: str, row: bytes, cells: Mapping[Column, bytes], *, at_ms: int, condition: Message | None = None) -> Op:
    """Build an operation that writes cells at a timestamp if the condition holds."""
    return Op(table, row, mutations=(put(row, cells, at_ms=at_ms),), condition=condition)


def delete(row: bytes, *, up_to_ms: int, family: bytes | None = None) -> Message:
    """Build a mutation that deletes a row's cells up to a timestamp, in one family or in all families."""
    message = client_pb.MutationProto(row=row, mutate_type=_DELETE, timestamp=up_to_ms)
    if family is not None:
        column = message.column_value.add(family=family)
        column.qualifier_value.add(qualifier=b"", delete_type=client_pb.MutationProto.DELETE_FAMILY, timestamp=up_to_ms)
    return message


def where_equal(row: bytes, column: Column, value: bytes | None) -> Message:
    """Require that the cell has exactly this value. For the value None, require that the cell does not exist.

    HBase treats an empty value as a missing value, so never write an empty value.
    """
    return _where(row, column, value or b"", hbase_pb.EQUAL)


def where_present(row: bytes, column: Column) -> Message:
    """Require that the cell exists and is not empty."""
    return _where(row, column, b"", hbase_pb.NOT_EQUAL)


def where_none_since(row: bytes, column: Column, at_ms: int) -> Message:
    """Require that the column has no value at or after this timestamp. An empty value counts as no value."""
    condition = _where(row, column, b"", hbase_pb.EQUAL)
    condition.time_range.CopyFrom(hbase_pb.TimeRange(**{"from": at_ms, "to": 2**63 - 1}))
    return condition


def _where(row: bytes, column: Column, value: bytes, compare_type: int) -> Message:
    """Build a condition on a cell's bytes. An empty value stands for an absent cell."""
    family, qualifier = column
    compared = comparator_pb.BinaryComparator(comparable=comparator_pb.ByteArrayComparable(value=value))
    comparator = comparator_pb.Comparator(name=_BINARY, serialized_comparator=compared.SerializeToString())
    return client_pb.Condition(
        row=row, family=family, qualifier=qualifier, compare_type=compare_type, comparator=comparator
    )
