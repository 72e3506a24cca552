"""Columns as the words of Redis commands: checked by name, type and null, and made bytes a column at a time."""

from __future__ import annotations

import string
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sinks.redis_names import PREFIX
from twopc.errors import BadRecordError, ConfigurationError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """A column's values: text and bytes as they are, everything else as Arrow writes it (``1.5``, ``true``, ISO dates)."""
    return _values(_column(rows, name), name)


def integers(rows: pa.RecordBatch, name: str) -> list[bytes]:
    """A column of integers, in 64 bits."""
    column = _column(rows, name)
    if not pa.types.is_integer(column.type):
        raise SchemaError(f"column {name!r} is {column.type}, an integer increment needs an integer: cast it to bigint")
    if pa.types.is_uint64(column.type) and len(column) and pc.max(column).as_py() > _INT64_MAX:
        raise BadRecordError(f"column {name!r} holds {pc.max(column).as_py()}: Redis counts in signed 64 bits")
    return _values(column, name)


def numbers(rows: pa.RecordBatch, name: str) -> list[bytes]:
    """A column of finite numbers."""
    column = _column(rows, name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        raise SchemaError(f"column {name!r} is {column.type}, the command needs a number: cast it to double")
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
        raise BadRecordError(f"column {name!r} holds a NaN or an infinity: Redis takes finite numbers, filter them out")
    return _values(column, name)


def keys(rows: pa.RecordBatch, template: str) -> list[bytes]:
    """The key of every row."""
    parts = parse_template(template)
    if not any(is_column for _, is_column in parts):
        return [template.encode()] * rows.num_rows
    columns: list[Any] = [
        _bytes(_column(rows, text), text) if is_column else pa.scalar(text.encode(), pa.binary())
        for text, is_column in parts
    ]
    joined = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.binary()))
    if pc.any(pc.starts_with(joined, pattern=PREFIX), min_count=0).as_py():
        raise BadRecordError(f"key {template!r} gives a key that begins with {PREFIX!r}: those are the sink's own")
    found: list[bytes] = joined.to_pylist()
    return found


@cache
def parse_template(template: str) -> tuple[tuple[str, bool], ...]:
    """The pieces of a key: text, and whether it names a column.

    Raises:
        ConfigurationError: it is no such template.
    """
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigurationError(
            f"key {template!r}: {error}. Write columns in braces, such as 'total:{{id}}'"
        ) from None
    parts: list[tuple[str, bool]] = []
    for text, name, spec, conversion in fields:
        if text:
            parts.append((text, False))
        if name is not None:
            if not name or spec or conversion:
                raise ConfigurationError(f"key {template!r}: a brace holds the name of a column and nothing else")
            parts.append((name, True))
    if not parts or template.startswith(PREFIX):
        raise ConfigurationError(f"key {template!r}: give a key that is not empty and does not begin with {PREFIX!r}")
    return tuple(parts)


def interleave(columns: Sequence[Sequence[bytes]], rows: int) -> list[bytes]:
    """The first word of each column, then the second of each, and so on."""
    flat = [b""] * (len(columns) * rows)
    for at, column in enumerate(columns):
        flat[at :: len(columns)] = column
    return flat


def _column(rows: pa.RecordBatch, name: str) -> Any:
    if name not in rows.schema.names:
        raise SchemaError(f"the DataFrame has no column {name!r} (it has {', '.join(rows.schema.names)}): select it")
    column: Any = rows.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise BadRecordError(
            f"column {name!r} is null in row {row} of an Arrow batch of {rows.num_rows}: Redis has no null, give it a value "
            "(coalesce) or filter the row out"
        )
    return column


def _values(column: pa.Array[Any], name: str) -> list[bytes]:
    values: list[bytes] = _bytes(column, name).to_pylist()
    return values


def _bytes(column: pa.Array[Any], name: str) -> Any:
    if not any(fits(column.type) for fits in _PLAIN):
        raise SchemaError(
            f"column {name!r} is {column.type}, which is no value of Redis: make it text (to_json) or bytes"
        )
    if pa.types.is_binary(column.type):
        return column
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = column.cast(pa.binary() if pa.types.is_large_binary(column.type) else pa.string())
    return column.cast(pa.binary())
