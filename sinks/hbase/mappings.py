"""Convert rows to HBase mutations. Each HBase operation has a small class. Choose one of these classes for a sink.

``row`` is a template with column names, such as ``"{shop}:{id}"``. ``cells`` maps each ``family:qualifier`` to a column
name. Rows in a chunk that have the same key become one mutation.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from twopc.errors import BadRecordError, ConfigurationError
from twopc.sinks.columns import integers, keys, parse_template, texts
from twopc.sinks.hbase.encoding import Encoder
from twopc.sinks.hbase.messages import client_pb

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Collection, Iterable, Iterator

    import pyarrow as pa

    from twopc.sinks.hbase.row_ops import Column

#: HBase's format for counters.
COUNTER: Final = struct.Struct(">q")
INT64: Final = range(-(2**63), 2**63)
_MAX_KEY_BYTES: Final = 32_767
#: The operations that need a marker, because applying them again would change the row again.
MARKED: Final = frozenset({"INCREMENT", "APPEND"})

Values = tuple[bytes, ...]
"""One row's values, with one value for each cell."""


@dataclass(frozen=True)
class Mapping(ABC):
    """Converts rows to mutations.

    Attributes:
        operation: the HBase name for the operation.
        row: the row key template.
        cells: each ``family:qualifier`` that the operation changes.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    operation: ClassVar[str]

    row: str
    cells: Collection[str]

    def __post_init__(self) -> None:
        parse_template(self.row)
        for place in self.cells:
            if not all(place.partition(":")):
                raise ConfigurationError(f"{type(self).__name__}(cells=…): {place!r} is not a 'family:qualifier'")
        if self.operation in MARKED and len({family for family, _ in self.places}) > 1:
            raise ConfigurationError(
                f"{type(self).__name__}(cells=…): the cells belong to several column families. If another client deleted the "
                "family that contains a row's marker, the cells in the other families could be changed twice. Use a "
                "separate sink for each column family"
            )

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the mapping needs."""
        return frozenset(text for text, is_column in parse_template(self.row) if is_column)

    @property
    def places(self) -> tuple[Column, ...]:
        """The family and qualifier of each cell."""
        parts = [place.encode().partition(b":") for place in self.cells]
        return tuple((family, qualifier) for family, _, qualifier in parts)

    def encode(self, rows: pa.RecordBatch) -> dict[bytes, Values]:
        """Compute each row key's cell values. Rows with the same key are merged in order.

        Raises:
            SchemaError: a column is missing or has a type that the operation does not accept.
            BadRecordError: a value cannot be written.
        """
        found: dict[bytes, Values] = {}
        row_keys: list[bytes] = keys(rows, self.row).to_pylist()
        for key, values in zip(row_keys, self._values(rows), strict=True):
            if not 0 < len(key) <= _MAX_KEY_BYTES:
                raise BadRecordError(
                    f"row key template {self.row!r} produces the key {key[:40]!r}, which is {len(key)} bytes long, but "
                    f"HBase accepts only keys of 1 to {_MAX_KEY_BYTES} bytes"
                )
            found[key] = self._join(found[key], values) if key in found else values
        return found

    def actions(self, rows: Iterable[tuple[bytes, Values]]) -> Iterator[bytes]:
        """Encode each row for a chunk; see :meth:`Encoder.action`."""
        action = self._encoder().action
        return (action(row, values) for row, values in rows)

    def _encoder(self) -> Encoder:
        return Encoder(self.operation, self.places)

    @abstractmethod
    def _values(self, rows: pa.RecordBatch) -> Iterable[Values]:
        """Return the values that each row writes to the cells."""

    def _join(self, older: Values, newer: Values) -> Values:
        del older
        return newer


@dataclass(frozen=True)
class _Writing(Mapping):
    """An operation that writes values.

    Attributes:
        cells: the column name for each ``family:qualifier``.
    """

    cells: collections.abc.Mapping[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cells:
            raise ConfigurationError(f"{type(self).__name__}(cells={{}}): pass at least one 'family:qualifier'")
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
    """Write the cells as text (numbers in Arrow's format) or bytes.

    If several rows have the same key, the last one wins.
    """

    operation = "PUT"


@dataclass(frozen=True)
class Increment(_Writing):
    """Add integers to the cells, which are 64-bit counters in the format of HBase ``Increment``."""

    operation = "INCREMENT"

    def _encode(self, rows: pa.RecordBatch, name: str) -> list[bytes]:
        return [COUNTER.pack(int(number)) for number in integers(rows, name)]

    def _join(self, older: Values, newer: Values) -> Values:
        return tuple(map(add, older, newer))


@dataclass(frozen=True)
class Append(_Writing):
    """Append values to the cells, in row order."""

    operation = "APPEND"

    def _join(self, older: Values, newer: Values) -> Values:
        return tuple(one + other for one, other in zip(older, newer, strict=True))


@dataclass(frozen=True)
class Delete(Mapping):
    """Delete rows, or some of their cells. Cells that are newer than the decision stay.

    Attributes:
        cells: each ``family:qualifier`` to delete. If ``cells`` is empty, all cells in the row are deleted, in every
            family.
    """

    operation = "DELETE"
    cells: Collection[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "cells", tuple(self.cells))

    def _values(self, rows: pa.RecordBatch) -> Iterable[Values]:
        return [()] * rows.num_rows

    def _encoder(self) -> Encoder:
        return Encoder(self.operation, self.places, delete_type=client_pb.MutationProto.DELETE_MULTIPLE_VERSIONS)


def add(one: bytes, other: bytes) -> bytes:
    """Add two counters, and detect an overflow. HBase itself would overflow silently.

    Raises:
        BadRecordError: the sum exceeds 64 bits, or ``one`` is not a counter.
    """
    total = number_in(one) + number_in(other)
    if total not in INT64:
        raise BadRecordError(f"the sum {total} would not fit in 64 bits")
    return COUNTER.pack(total)


def number_in(value: bytes) -> int:
    """Decode a counter.

    Raises:
        BadRecordError: ``value`` is not a counter.
    """
    if len(value) != COUNTER.size:
        raise BadRecordError(f"{value[:40]!r} is not a counter, because a counter is exactly {COUNTER.size} bytes long")
    number: int = COUNTER.unpack(value)[0]
    return number
