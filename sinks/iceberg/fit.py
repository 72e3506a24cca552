"""Find the columns of an altered table that older files no longer fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, ListType, LongType, MapType, StructType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

#: The type promotions of format version 2, except those of decimals (see :func:`_is_readable`). pyiceberg's ``promote`` allows
#: more promotions than other readers do.
_PROMOTIONS: Final = {(IntegerType(), LongType()), (FloatType(), DoubleType())}


def children(kind: IcebergType) -> Sequence[NestedField]:
    """List the fields of a nested type. A type that is not nested has none."""
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return [kind.element_field]
    return [kind.key_field, kind.value_field] if isinstance(kind, MapType) else []


def find_unreadable(written: Schema, now: Schema) -> Iterator[str]:
    """Yield the table's columns and nested fields that do not fit files with an older schema.

    A reader finds columns by their ids. It ignores a column that the table no longer has, and returns null for a column that
    the file does not have. ``CREATE OR REPLACE TABLE`` may give an id a different type.
    """
    yield from _misfits(written.as_struct(), now.as_struct(), "")


def _misfits(written: IcebergType, now: IcebergType, path: str) -> Iterator[str]:
    known = {field.field_id: field for field in children(written)}
    for field in children(now):
        if before := known.get(field.field_id):
            yield from _changes(before, field, path + field.name)
        elif field.required and field.initial_default is None:
            yield f"the column {path + field.name!r} was added as NOT NULL"


def _changes(written: NestedField, now: NestedField, path: str) -> Iterator[str]:
    if now.required and not written.required:
        yield f"the column {path!r} is now NOT NULL"
    before, after = written.field_type, now.field_type
    if children(before) and type(before) is type(after):
        yield from _misfits(before, after, f"{path}.")
    elif not _is_readable(before, after):
        yield f"the column {path!r} is now {after}"


def _is_readable(written: IcebergType, now: IcebergType) -> bool:
    if isinstance(written, DecimalType) and isinstance(now, DecimalType):
        return written.scale == now.scale and written.precision <= now.precision
    return written == now or (written, now) in _PROMOTIONS
