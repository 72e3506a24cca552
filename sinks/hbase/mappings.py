"""What becomes of a row: one small class for each operation of HBase. Choose one for a sink.

``row`` is a template over columns, such as ``"{shop}:{id}"``; ``cells`` names the column for each ``family:qualifier``. Rows
of one key in the same chunk become one mutation.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sinks.columns import integers, texts
from sinks.hbase.messages import Message, client_pb
from sinks.hbase.mutations import Mapping, Values
from twopc.errors import BadRecordError, ConfigurationError

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Collection, Iterable

    import pyarrow as pa

__all__ = ["COUNTER", "Append", "Delete", "Increment", "Mapping", "Put", "add"]

#: HBase's own format of a counter.
COUNTER: Final = struct.Struct(">q")
_INT64: Final = range(-(2**63), 2**63)


@dataclass(frozen=True)
class _Writing(Mapping):
    """An operation that writes values.

    Attributes:
        cells: ``family:qualifier`` to the name of a column.
    """

    cells: collections.abc.Mapping[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cells:
            raise ConfigurationError(f"{type(self).__name__}(cells={{}}): name at least one 'family:qualifier'")
        object.__setattr__(self, "cells", dict(self.cells))

    @property
    def columns(self) -> frozenset[str]:
        """See :class:`Mapping`."""
        return super().columns | set(self.cells.values())

    def _values(self, rows: pa.RecordBatch) -> Iterable[Values]:
        return zip(*(self._encode(rows, name) for name in self.cells.values()), strict=True)

    def _encode(self, rows: pa.RecordBatch, name: str) -> list[bytes]:
        return texts(rows, name)


@dataclass(frozen=True)
class Put(_Writing):
    """Write the cells, as text (numbers as Arrow writes them) or bytes. The last row of a key wins.

    The first of ``cells`` must not be empty: its timestamp shows whether the row was written already.
    """

    operation = "PUT"

    def encode(self, rows: pa.RecordBatch) -> dict[bytes, Values]:
        """See :class:`Mapping`."""
        found = super().encode(rows)
        for key, values in found.items():
            if not values[0]:
                raise BadRecordError(
                    f"column {next(iter(self.cells.values()))!r} is empty for row {key!r}: the first of Put's cells must "
                    "have a value. Name another cell first, such as one with the key itself"
                )
        return found

    def _join(self, older: Values, newer: Values) -> Values:
        del older
        return newer


@dataclass(frozen=True)
class Increment(_Writing):
    """Add to the cells, each a 64-bit counter in the format of HBase's own ``Increment``; the columns are integers."""

    operation = "INCREMENT"

    def _encode(self, rows: pa.RecordBatch, name: str) -> list[bytes]:
        return [COUNTER.pack(int(number)) for number in integers(rows, name)]

    def _join(self, older: Values, newer: Values) -> Values:
        return tuple(add(one, other) for one, other in zip(older, newer, strict=True))


@dataclass(frozen=True)
class Append(_Writing):
    """Append to the cells, in the order of the rows."""

    operation = "APPEND"

    def _join(self, older: Values, newer: Values) -> Values:
        return tuple(one + other for one, other in zip(older, newer, strict=True))


@dataclass(frozen=True)
class Delete(Mapping):
    """Delete rows, or some of their cells, unless they are newer than the decision.

    Attributes:
        cells: each ``family:qualifier`` to delete; empty: the whole row.
    """

    operation = "DELETE"
    cells: Collection[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "cells", tuple(self.cells))

    def _values(self, rows: pa.RecordBatch) -> Iterable[Values]:
        return [()] * rows.num_rows

    def _join(self, older: Values, newer: Values) -> Values:
        del older
        return newer

    def _shape(self) -> tuple[Message, list[tuple[int, int]]]:
        message, _ = super()._shape()
        for column in message.column_value:
            for cell in column.qualifier_value:
                cell.delete_type = client_pb.MutationProto.DELETE_MULTIPLE_VERSIONS
        return message, []


def add(one: bytes, other: bytes) -> bytes:
    """The sum of two counters. HBase itself would silently overflow to a negative number.

    Raises:
        BadRecordError: the sum is over 64 bits, or ``one`` is not a counter.
    """
    if len(one) != COUNTER.size:
        raise BadRecordError(f"{one[:40]!r} is not a counter, which has {COUNTER.size} bytes")
    total = COUNTER.unpack(one)[0] + COUNTER.unpack(other)[0]
    if total not in _INT64:
        raise BadRecordError(f"the sum {total} would be over 64 bits")
    return COUNTER.pack(total)
