"""What becomes of a row: one small class an operation of HBase. Choose one for a sink.

``row`` is a template over columns, such as ``"{shop}:{id}"``; ``cells`` says which column goes into which
``family:qualifier``. Rows of one key that meet in a chunk become one mutation.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from sinks.columns import integers, keys, parse_template, texts
from sinks.hbase_messages import Message, client
from sinks.hbase_ops import DURABLE, Column
from twopc.errors import BadRecordError, ConfigurationError

if TYPE_CHECKING:
    import collections.abc

    import pyarrow as pa

COUNTER: Final = struct.Struct(">q")
_MAX_KEY_BYTES: Final = 32_767
_INT64: Final = range(-(2**63), 2**63)

Values = tuple[bytes, ...]


@dataclass(frozen=True)
class Mapping(ABC):
    """Rows to mutations.

    Attributes:
        row: the row key's template.
        cells: ``family:qualifier`` to the name of a column.

    Raises:
        ConfigurationError: an argument is not what the operation takes.
    """

    operation: ClassVar[str]
    row: str
    cells: collections.abc.Mapping[str, str]

    def __post_init__(self) -> None:
        parse_template(self.row)
        if not self.cells:
            raise ConfigurationError(f"{type(self).__name__}(cells={{}}): name at least one 'family:qualifier'")
        for place in self.cells:
            if not all(place.partition(":")):
                raise ConfigurationError(f"{type(self).__name__}(cells=…): {place!r} is no 'family:qualifier'")
        object.__setattr__(self, "cells", dict(self.cells))

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it takes."""
        return frozenset({text for text, is_column in parse_template(self.row) if is_column} | set(self.cells.values()))

    @property
    def places(self) -> tuple[Column, ...]:
        """Family and qualifier of each cell."""
        parts = [place.encode().partition(b":") for place in self.cells]
        return tuple((family, qualifier) for family, _, qualifier in parts)

    def encode(self, rows: pa.RecordBatch) -> dict[bytes, Values]:
        """For each row key the value of each cell; rows of one key are put together in their order.

        Raises:
            SchemaError: a column is missing or has a type that the operation cannot take.
            BadRecordError: a value cannot be written.
        """
        found: dict[bytes, Values] = {}
        columns = [self._encode(rows, name) for name in self.cells.values()]
        row_keys: list[bytes] = keys(rows, self.row).to_pylist()
        for key, values in zip(row_keys, zip(*columns, strict=True), strict=True):
            if not 0 < len(key) <= _MAX_KEY_BYTES:
                raise BadRecordError(
                    f"row key {self.row!r} gives {len(key)} bytes for {key[:40]!r}: HBase takes 1 to {_MAX_KEY_BYTES}"
                )
            found[key] = self._join(found[key], values) if key in found else values
        return found

    def mutation(self, row: bytes, values: Values) -> Message:
        """One row's mutation, without a timestamp: that comes with the decision."""
        kind = getattr(client.MutationProto, self.operation)
        message = client.MutationProto(row=row, mutate_type=kind, durability=DURABLE)
        families: dict[bytes, Message] = {}
        for (family, qualifier), value in zip(self.places, values, strict=True):
            if family not in families:
                families[family] = message.column_value.add(family=family)
            families[family].qualifier_value.add(qualifier=qualifier, value=value)
        return message

    def _encode(self, rows: pa.RecordBatch, name: str) -> list[bytes]:
        return texts(rows, name)

    @abstractmethod
    def _join(self, older: Values, newer: Values) -> Values:
        """Two rows of one key as one."""


@dataclass(frozen=True)
class Put(Mapping):
    """Write the cells, as text (numbers as Arrow writes them) or bytes. The last row of a key wins.

    The first of ``cells`` must not be empty: by its timestamp HBase tells whether a row was written already.
    """

    operation = "PUT"

    def encode(self, rows: pa.RecordBatch) -> dict[bytes, Values]:
        """See :class:`Mapping`."""
        found = super().encode(rows)
        for key, values in found.items():
            if not values[0]:
                raise BadRecordError(
                    f"column {next(iter(self.cells.values()))!r} is empty for row {key!r}: the first of Put's cells must "
                    "have a value, name another one first (such as the key itself)"
                )
        return found

    def _join(self, older: Values, newer: Values) -> Values:
        del older
        return newer


@dataclass(frozen=True)
class Increment(Mapping):
    """Add to the cells, each a 64-bit counter as HBase's own ``Increment`` has them; the columns are integers."""

    operation = "INCREMENT"

    def _encode(self, rows: pa.RecordBatch, name: str) -> list[bytes]:
        return [COUNTER.pack(int(number)) for number in integers(rows, name)]

    def _join(self, older: Values, newer: Values) -> Values:
        return tuple(add(one, other) for one, other in zip(older, newer, strict=True))


@dataclass(frozen=True)
class Append(Mapping):
    """Append to the cells, in the order of the rows."""

    operation = "APPEND"

    def _join(self, older: Values, newer: Values) -> Values:
        return tuple(one + other for one, other in zip(older, newer, strict=True))


def add(one: bytes, other: bytes) -> bytes:
    """The sum of two counters. HBase itself would go over to negative numbers without a word.

    Raises:
        BadRecordError: it is over 64 bits, or one of them is no counter.
    """
    if len(one) != COUNTER.size:
        raise BadRecordError(f"{one[:40]!r} is not a counter, which has {COUNTER.size} bytes")
    total = COUNTER.unpack(one)[0] + COUNTER.unpack(other)[0]
    if total not in _INT64:
        raise BadRecordError(f"the sum {total} would be over 64 bits")
    return COUNTER.pack(total)
