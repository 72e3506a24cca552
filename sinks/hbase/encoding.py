"""Encode a task's rows in the HBase wire format, without creating a message object for each row.

The bytes are the same as those of message objects.

Building and copying a message object for each row would take 2.5 times as long. From one mutation to the next, only the
row key, the values and their lengths change, and the lengths often repeat.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from twopc.sinks.hbase.messages import client_pb
from twopc.sinks.hbase.row_ops import DURABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.sinks.hbase.row_ops import Column

_MUTATION: Final = client_pb.MutationProto
_FAMILY: Final = _MUTATION.ColumnValue
_CELL: Final = _FAMILY.QualifierValue
_ACTIONS: Final = client_pb.RegionAction.ACTION_FIELD_NUMBER
_MUTATIONS: Final = client_pb.Action.MUTATION_FIELD_NUMBER
#: The number of cached prefixes. The limit bounds memory even if values have many different lengths.
_LENGTHS: Final = 4_096
#: The highest bit of a byte.
_MORE: Final = 0x80


class Encoder:
    """Encodes one mapping's mutations. The mutations have no timestamps, because the decision determines the timestamps.

    Args:
        operation: the HBase name for the operation.
        places: the cells that the operation changes. Each row contains one value for each cell.
        delete_type: how HBase deletes each cell; None if the operation is not a deletion. Rows for a deletion contain
            no values.
    """

    def __init__(self, operation: str, places: Sequence[Column], *, delete_type: Any = None) -> None:
        self._kind: bytes = _MUTATION(mutate_type=getattr(_MUTATION, operation)).SerializeToString()
        # The driver may replace the durability when it applies the chunk (``HBaseClient.synced``).
        self._durability: bytes = _MUTATION(durability=DURABLE).SerializeToString()
        cells: dict[bytes, list[tuple[int, bytes]]] = {}
        for number, (family, qualifier) in enumerate(places):
            cell = _CELL(qualifier=qualifier, delete_type=delete_type).SerializeToString()
            cells.setdefault(family, []).append((number, cell))
        self._families: list[tuple[bytes, list[tuple[int, bytes]]]] = []
        for family, found in cells.items():
            head: bytes = _FAMILY(family=family).SerializeToString()
            if delete_type is not None:  # every row of a deletion has the same cells
                head += b"".join(_start(_FAMILY.QUALIFIER_VALUE_FIELD_NUMBER, len(cell)) + cell for _, cell in found)
                found = []  # noqa: PLW2901 - no parts are left to fill in
            self._families.append((head, found))

    def action(self, row: bytes, values: Sequence[bytes]) -> bytes:
        """Encode one row of a chunk as the ``action`` field of a ``RegionAction``, with its tag and length."""
        parts = [b"", row, self._kind]
        size = len(row) + len(self._kind) + len(self._durability)
        for family, cells in self._families:
            at, family_size = len(parts), len(family)
            parts += b"", family
            for number, cell in cells:
                value = values[number]
                start = _start_of_cell(cell, len(value))
                parts += start, value
                family_size += len(start) + len(value)
            parts[at] = _start(_MUTATION.COLUMN_VALUE_FIELD_NUMBER, family_size)
            size += len(parts[at]) + family_size
        parts.append(self._durability)
        row_start = _start(_MUTATION.ROW_FIELD_NUMBER, len(row))
        start = _start(_MUTATIONS, size + len(row_start)) + row_start
        parts[0] = _start(_ACTIONS, size + len(start)) + start
        return b"".join(parts)


@lru_cache(_LENGTHS)
def _start(field: int, size: int) -> bytes:
    """Encode the prefix for a field of ``size`` bytes."""
    return bytes([field << 3 | 2]) + _varint(size)


@lru_cache(_LENGTHS)
def _start_of_cell(cell: bytes, size: int) -> bytes:
    """Encode the prefix for a cell whose value takes up ``size`` bytes."""
    start = cell + _start(_CELL.VALUE_FIELD_NUMBER, size)
    return _start(_FAMILY.QUALIFIER_VALUE_FIELD_NUMBER, len(start) + size) + start


def _varint(number: int) -> bytes:
    """Encode a varint, with seven bits per byte and the lowest bits first.

    Every byte except the last has its highest bit set.
    """
    found = bytearray()
    while number >= _MORE:
        found.append(number % _MORE | _MORE)
        number //= _MORE
    found.append(number)
    return bytes(found)
