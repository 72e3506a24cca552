"""Match a batch's columns with a Delta table's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from twopc.sinks.lake.rows import RowFormat, match
from twopc.sinks.lake.values import true_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sinks.delta.table import Definition


@dataclass(frozen=True)
class DeltaRows(RowFormat):
    """See :class:`RowFormat`.

    Attributes:
        partitions: the names of the partition columns.
    """

    partitions: tuple[str, ...]

    def problems(self, column: Any, field: pa.Field[Any], source: str) -> Iterator[tuple[int, str]]:
        """See :class:`RowFormat`."""
        yield from super().problems(column, field, source)
        if field.name in self.partitions and pa.types.is_string(field.type) and not pa.types.is_null(column.type):
            length: Any = pc.binary_length(column)
            reason = f"column {source!r} contains an empty string, which Delta stores as null in a partition column"
            yield from ((row, reason) for row in true_rows(pc.invert(length.cast(pa.bool_()))))


def fit_rows(schema: pa.Schema, table: Definition, title: str) -> DeltaRows:
    """Determine how to convert a batch with this schema to rows of the table.

    Raises:
        SchemaError: the columns do not fit the table; see :func:`match`.
    """
    return DeltaRows(title, match(schema, table.schema, title), table.schema, table.schema, table.partitions)
