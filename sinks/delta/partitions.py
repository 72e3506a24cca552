"""Split rows by partition, and format the partition values for a Delta table's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twopc.sinks.delta.moments import date_text, numbers, time_text
from twopc.sinks.lake.partitions import grouped, undivided

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.sinks.lake.partitions import Group


def split(rows: pa.Table, columns: Sequence[str]) -> Iterator[Group]:
    """Group rows by partition. Partition values are strings; None stands for null.

    Args:
        rows: rows with the table's columns and types.
        columns: the partition columns.
    """
    if not columns:
        yield undivided(rows.num_rows)
        return
    yield from grouped(rows.num_rows, [_encoded(rows.column(name)) for name in columns])


def _encoded(column: Any) -> tuple[Any, list[str | None]]:
    """Return an index for each row, and the list of formatted values to which the indexes refer."""
    found = numbers(column).combine_chunks().dictionary_encode(null_encoding="encode")
    return found.indices, [
        None if value is None else text_of(value, column.type) for value in found.dictionary.to_pylist()
    ]


def text_of(value: Any, kind: pa.DataType) -> str:
    """Format a partition value for the log. A timestamp with a time zone ends in ``Z`` (UTC).

    Without the ``Z``, readers would assume their own time zone.
    """
    if pa.types.is_date(kind):
        return date_text(value)
    if pa.types.is_timestamp(kind):
        return f"{time_text(value)}Z" if kind.tz else time_text(value, separator=" ")
    if pa.types.is_boolean(kind):
        return "true" if value else "false"
    return format(value, "f") if pa.types.is_decimal(kind) else str(value)


def is_unchanged(text: str, kind: pa.DataType) -> bool:
    """Return whether a value of this type has exactly this text in the log."""
    try:
        [value] = numbers(pa.array([text]).cast(kind)).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return text_of(value, kind) == text
