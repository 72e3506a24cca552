"""Convert columns to bytes, one column at a time, and check their names, types and nulls. Several sinks use this module."""

from __future__ import annotations

import string
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import BadRecordError, ConfigurationError, SchemaError
from twopc.sink import type_name
from twopc.sinks.years import count_text, counted

_PLAIN: Final = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_timestamp,
    pa.types.is_date,
)
_INT64_MAX: Final = 2**63 - 1


def texts(rows: pa.RecordBatch, name: str) -> list[bytes]:
    """Return a column's values.

    Text and bytes stay unchanged; values of other types are converted to Arrow's text form (``1.5``, ``true``, ISO
    dates).
    """
    return _values(_column(rows, name), name)


def integers(rows: pa.RecordBatch, name: str) -> list[bytes]:
    """Convert a column of signed integers (up to 64 bits) to text."""
    column = _column(rows, name)
    if not pa.types.is_integer(column.type):
        raise SchemaError(f"column {name!r} is {column.type}, but an increment needs an integer: cast it to bigint")
    if pa.types.is_uint64(column.type) and len(column) and pc.max(column).as_py() > _INT64_MAX:
        raise BadRecordError(
            f"column {name!r} contains {pc.max(column).as_py()}, but a counter is a signed 64-bit integer"
        )
    return _values(column, name)


def numbers(rows: pa.RecordBatch, name: str) -> list[bytes]:
    """Convert a column of finite numbers to text."""
    column = _column(rows, name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        raise SchemaError(f"column {name!r} is {column.type}, but the command needs a number: cast it to double")
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
        raise BadRecordError(
            f"column {name!r} contains NaN or infinity, but the command accepts only finite numbers. Filter out such rows"
        )
    return _values(column, name)


def keys(rows: pa.RecordBatch, template: str) -> Any:
    """Return the key of every row, as an Arrow array of bytes."""
    parts = parse_template(template)
    if not any(is_column for _, is_column in parts):
        return pa.array(["".join(text for text, _ in parts).encode()] * rows.num_rows, pa.binary())
    columns: list[Any] = [
        _bytes(_column(rows, text), text) if is_column else pa.scalar(text.encode(), pa.binary())
        for text, is_column in parts
    ]
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.binary()))


@cache
def parse_template(template: str) -> tuple[tuple[str, bool], ...]:
    """Split a key template into parts. Each part is a string with a flag that says whether the string is a column name.

    Raises:
        ConfigurationError: the template is not valid.
    """
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigurationError(
            f"key {template!r}: {error}. Write column names in braces, such as 'total:{{id}}'"
        ) from None
    parts: list[tuple[str, bool]] = []
    for text, name, spec, conversion in fields:
        if text:
            parts.append((text, False))
        if name is not None:
            if not name or spec or conversion:
                raise ConfigurationError(f"key {template!r}: put only a column name between the braces")
            parts.append((name, True))
    if not parts:
        raise ConfigurationError(f"key {template!r}: the key must not be empty")
    return tuple(parts)


def _column(rows: pa.RecordBatch, name: str) -> Any:
    if name not in rows.schema.names:
        raise SchemaError(
            f"the DataFrame has no column {name!r} (it has {', '.join(rows.schema.names)}): include this column in the DataFrame"
        )
    column: Any = rows.column(name)
    if pa.types.is_null(column.type):  # the null type also stands for a type that Arrow does not have
        raise SchemaError(
            f"column {name!r} is {type_name(rows.schema.field(name))}, which cannot be stored. Convert the column to text "
            "(to_json) or bytes"
        )
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise BadRecordError(
            f"column {name!r} is null in row {row} of an Arrow batch of {rows.num_rows} rows, but a null cannot be stored. "
            "Replace the null (coalesce), or filter out the row"
        )
    return column


def _values(column: pa.Array[Any], name: str) -> list[bytes]:
    values: list[bytes] = _bytes(column, name).to_pylist()
    return values


def _bytes(column: pa.Array[Any], name: str) -> Any:
    if not any(fits(column.type) for fits in _PLAIN):
        raise SchemaError(
            f"column {name!r} is {column.type}, which cannot be stored. Convert the column to text (to_json) or bytes"
        )
    if pa.types.is_binary(column.type):
        return column
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        _require_years(column, name)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = column.cast(pa.binary() if pa.types.is_large_binary(column.type) else pa.string())
    return column.cast(pa.binary())


def _require_years(column: pa.Array[Any], name: str) -> None:
    numbers, years = counted(column)
    extremes: Any = pc.min_max(numbers).as_py()
    wrong = [number for number in extremes.values() if number is not None and number not in years]
    if wrong:
        row = numbers.to_pylist().index(wrong[0])
        raise BadRecordError(
            f"column {name!r} contains a date outside the years 1 to 9999 in row {row} of an Arrow batch of "
            f"{len(column)} rows: {count_text(column, row)}. Converted to text, this date could end up with a "
            "different year. Correct the value (milliseconds may have been read as seconds), or filter out the row"
        )


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return an empty batch with these columns. Callers convert this batch to check the column types."""
    return pa.RecordBatch.from_pylist([], schema=schema)
