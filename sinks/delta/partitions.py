"""Split rows by partition, with the values of the partition columns as a Delta table's log writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twopc.sinks.delta.moments import date_text, numbers, time_text
from twopc.sinks.lake.partitions import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.sinks.lake.partitions import Partition


def split(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.Table]]:
    """Group rows by partition, without the partition columns. A partition's values are texts; None is null.

    Args:
        rows: rows with the table's columns and types.
        columns: the partition columns.
    """
    if not columns:
        yield (), rows
        return
    yield from grouped(rows.drop_columns(list(columns)), [_encoded(rows.column(name)) for name in columns])


def _encoded(column: Any) -> tuple[Any, list[str | None]]:
    """Return the number of each row's value, and the texts by number."""
    found = numbers(column).combine_chunks().dictionary_encode(null_encoding="encode")
    return found.indices, [
        None if value is None else text_of(value, column.type) for value in found.dictionary.to_pylist()
    ]


def text_of(value: Any, kind: pa.DataType) -> str:
    """Format a partition value for the log. A time with a zone names its zone; otherwise each reader would use its own zone."""
    if pa.types.is_date(kind):
        return date_text(value)
    if pa.types.is_timestamp(kind):
        return f"{time_text(value)}Z" if kind.tz else time_text(value, separator=" ")
    if pa.types.is_boolean(kind):
        return "true" if value else "false"
    return format(value, "f") if pa.types.is_decimal(kind) else str(value)
