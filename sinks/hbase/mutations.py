"""How rows become mutations of HBase; the base of the classes in ``sinks.hbase.mappings``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from sinks.columns import keys, parse_template
from sinks.hbase.messages import Message, client_pb
from sinks.hbase.row_ops import DURABLE, Column
from twopc.errors import BadRecordError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    import pyarrow as pa

_MAX_KEY_BYTES: Final = 32_767

Values = tuple[bytes, ...]


@dataclass(frozen=True)
class Mapping(ABC):
    """Rows to mutations.

    Attributes:
        row: the row key's template.
        cells: each ``family:qualifier`` that it changes.

    Raises:
        ConfigurationError: an argument is not what the operation takes.
    """

    operation: ClassVar[str]
    row: str
    cells: Collection[str]

    def __post_init__(self) -> None:
        parse_template(self.row)
        for place in self.cells:
            if not all(place.partition(":")):
                raise ConfigurationError(f"{type(self).__name__}(cells=…): {place!r} is not a 'family:qualifier'")

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it needs."""
        return frozenset(text for text, is_column in parse_template(self.row) if is_column)

    @property
    def places(self) -> tuple[Column, ...]:
        """Family and qualifier of each cell."""
        parts = [place.encode().partition(b":") for place in self.cells]
        return tuple((family, qualifier) for family, _, qualifier in parts)

    def encode(self, rows: pa.RecordBatch) -> dict[bytes, Values]:
        """For each row key the value of each cell; rows of one key are joined in their order.

        Raises:
            SchemaError: a column is missing or has a type that the operation cannot take.
            BadRecordError: a value cannot be written.
        """
        found: dict[bytes, Values] = {}
        row_keys: list[bytes] = keys(rows, self.row).to_pylist()
        for key, values in zip(row_keys, self._values(rows), strict=True):
            if not 0 < len(key) <= _MAX_KEY_BYTES:
                raise BadRecordError(
                    f"row key {self.row!r} gives {len(key)} bytes for {key[:40]!r}: HBase takes 1 to {_MAX_KEY_BYTES}"
                )
            found[key] = self._join(found[key], values) if key in found else values
        return found

    def mutations(self, rows: Iterable[tuple[bytes, Values]]) -> Iterator[Message]:
        """Each row's mutation, without a timestamp, which comes with the decision."""
        shape, positions = self._shape()
        for row, values in rows:
            # Copying a message and filling it in takes half the time of building it.
            message = client_pb.MutationProto()
            message.CopyFrom(shape)
            message.row = row
            for (family, qualifier), value in zip(positions, values, strict=True):
                message.column_value[family].qualifier_value[qualifier].value = value
            yield message

    def _shape(self) -> tuple[Message, list[tuple[int, int]]]:
        """A mutation without row and values, and the position of each value in it."""
        kind = getattr(client_pb.MutationProto, self.operation)
        message = client_pb.MutationProto(row=b"", mutate_type=kind, durability=DURABLE)
        families: list[bytes] = []
        positions = []
        for family, qualifier in self.places:
            if family not in families:
                families.append(family)
                message.column_value.add(family=family)
            at = families.index(family)
            positions.append((at, len(message.column_value[at].qualifier_value)))
            message.column_value[at].qualifier_value.add(qualifier=qualifier)
        return message, positions

    @abstractmethod
    def _values(self, rows: pa.RecordBatch) -> Iterable[Values]:
        """The values that each row writes into the cells."""

    @abstractmethod
    def _join(self, older: Values, newer: Values) -> Values:
        """Two rows of one key as one."""
