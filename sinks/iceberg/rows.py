"""Match a batch's columns with an Iceberg table's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import sanitize_column_names

from twopc.sinks.iceberg.partitions import Truncation, find_misfits, truncations
from twopc.sinks.lake.rows import RowFormat, match
from twopc.sinks.lake.values import convert

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema


@dataclass(frozen=True)
class IcebergRows(RowFormat):
    """See :class:`RowFormat`.

    Attributes:
        truncations: the partition fields whose values may be outside the range of their type.
    """

    truncations: tuple[Truncation, ...]

    def problems(self, column: Any, field: pa.Field[Any], source: str) -> Iterator[tuple[int, str]]:
        """See :class:`RowFormat`."""
        found = list(super().problems(column, field, source))
        yield from found
        number = self.target.get_field_index(field.name)
        own = [one for one in self.truncations if one.path[0] == number]
        if own and not found:  # a column with problems cannot be converted
            values = convert(column, field.type, self.stored.field(number).type)
            for truncation in own:
                yield from ((row, f"column {source!r} {why}") for row, why in find_misfits(values, truncation))


def fit_rows(schema: pa.Schema, table: Schema, spec: PartitionSpec, title: str) -> IcebergRows:
    """Determine how to convert a batch to rows of the table. Data files have field ids and sanitized column names.

    Raises:
        SchemaError: the columns do not fit the table; see :func:`match`.
    """
    target: pa.Schema = schema_to_pyarrow(table, include_field_ids=False)
    stored: pa.Schema = schema_to_pyarrow(sanitize_column_names(table), include_field_ids=True)
    return IcebergRows(title, match(schema, target, title), target, stored, tuple(truncations(table, spec)))
