"""The partition of each row: the values of the table's partition columns, as the log of a Delta table has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twopc.sinks.delta.moments import date_text, numbers, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The text of a partition's values, one for each partition column; None is null.
Partition = tuple[str | None, ...]


def split(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.Table]]:
    """The rows of each partition, without the partition columns.

    Args:
        rows: rows with the table's columns and types.
        columns: the partition columns.
    """
    if not columns:
        yield (), rows
        return
    stored = rows.drop_columns(list(columns))
    encoded = [_encoded(rows.column(name)) for name in columns]
    # Each distinct value has a number, so that rows are grouped by integers, whatever the types.
    names = [f"f{index}" for index in range(len(encoded))]
    keyed = pa.table(
        [*(codes for codes, _ in encoded), pa.array(range(rows.num_rows), pa.int64())], names=[*names, "row"]
    )
    groups = keyed.group_by(names, use_threads=False).aggregate([("row", "list")])
    for group in groups.to_pylist():
        partition = tuple(texts[group[name]] for name, (_, texts) in zip(names, encoded, strict=True))
        taken = group["row_list"]
        yield partition, stored if len(taken) == rows.num_rows else stored.take(pa.array(taken, pa.int64()))


def _encoded(column: Any) -> tuple[Any, list[str | None]]:
    """For each row the number of its value, and the texts by number."""
    found = numbers(column).combine_chunks().dictionary_encode(null_encoding="encode")
    return found.indices, [
        None if value is None else text_of(value, column.type) for value in found.dictionary.to_pylist()
    ]


def text_of(value: Any, kind: pa.DataType) -> str:
    """A value of a partition column, as the log has it. A time with a zone names its zone, else each reader would use its own."""
    if pa.types.is_date(kind):
        return date_text(value)
    if pa.types.is_timestamp(kind):
        return f"{time_text(value)}Z" if kind.tz else time_text(value, separator=" ")
    if pa.types.is_boolean(kind):
        return "true" if value else "false"
    return format(value, "f") if pa.types.is_decimal(kind) else str(value)
