"""Split rows by partition, and compute the partition values in Iceberg's stored form."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_bytes
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import DecimalType, IntegerType, LongType

from twopc.sinks.lake.partitions import grouped, undivided

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import Transform

    from twopc.sinks.lake.partitions import Group

_UNITS: Final[dict[type, Any]] = {
    YearTransform: "year",
    MonthTransform: "month",
    DayTransform: "day",
    HourTransform: "hour",
}


class Truncation(NamedTuple):
    """A partition field that rounds numbers down to a multiple of its width.

    The multiple may be below the smallest number that the column's type can store.

    Attributes:
        path: the index of the column, then the index of the field in each nested struct.
        kind: the type of the numbers.
        field: the partition field.
    """

    path: tuple[int, ...]
    kind: Any
    field: PartitionField


def truncations(schema: Schema, spec: PartitionSpec) -> Iterator[Truncation]:
    """Yield the partition fields that truncate numbers."""
    for field in spec.fields:
        if isinstance(field.transform, TruncateTransform):
            kind = schema.find_type(field.source_id)
            if isinstance(kind, IntegerType | LongType | DecimalType):
                yield Truncation(tuple(_path(schema.as_struct(), field.source_id) or ()), kind, field)


def find_misfits(column: Any, truncation: Truncation) -> Iterator[tuple[int, str]]:
    """Find numbers whose partition value no manifest can store. Yield each value's row number and the reason.

    Args:
        column: the table's column, in its data-file type.
        truncation: the partition field.
    """
    (_, *inner), kind, field = truncation
    values = _part(column, inner)
    truncate = field.transform.transform(kind)
    least = pc.min(values).as_py()
    if least is None or _fits(truncate(least), kind):  # if the smallest value fits, all larger values fit, too
        return
    for row, value in enumerate(values.to_pylist()):
        if value is not None and not _fits(truncate(value), kind):
            why = (
                f"the value of partition field {field.name!r} ({field.transform}) would be {truncate(value)}, which is not a "
                f"valid {kind}"
            )
            yield row, f"contains {value}, so {why}"


def _fits(value: Any, kind: Any) -> bool:
    try:
        to_bytes(kind, value)
    except (struct.error, OverflowError, ValueError):
        return False
    return True


def split(rows: pa.Table, schema: Schema, spec: PartitionSpec) -> Iterator[Group]:
    """Group rows by partition.

    Args:
        rows: rows with the table's columns and types.
        schema: the table's schema.
        spec: the table's partitioning.
    """
    if not spec.fields:
        yield undivided(rows.num_rows)
        return
    yield from grouped(rows.num_rows, [_transformed(rows, schema, field) for field in spec.fields])


def _transformed(rows: pa.Table, schema: Schema, field: PartitionField) -> tuple[Any, list[Any]]:
    """Return an index for each row, and the list of values to which the indexes refer."""
    if isinstance(field.transform, VoidTransform):
        return pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows), [None]
    kind = schema.find_type(field.source_id)
    source = _floored(_source(rows, schema, field.source_id), field.transform)
    encoded = _stored(source).combine_chunks().dictionary_encode(null_encoding="encode")
    transform = field.transform.transform(kind)
    values: list[Any] = []
    number_of: dict[Any, int] = {}
    by_code: list[int] = []
    for value in encoded.dictionary.to_pylist():
        result = None if value is None else transform(value)
        # All NaN values share one partition, but 0.0 and -0.0 have different partitions.
        key = result if type(result) is int else (type(result), repr(result))
        if key not in number_of:
            number_of[key] = len(values)
            values.append(result)
        by_code.append(number_of[key])
    return pa.array(by_code, pa.int32()).take(encoded.indices), values


def _floored(values: Any, transform: Transform[Any, Any]) -> Any:
    """Round timestamps down to the transform's unit, so that only a few distinct values must be transformed."""
    unit = next((unit for kind, unit in _UNITS.items() if isinstance(transform, kind)), None)
    if unit is None or not pa.types.is_timestamp(values.type):
        return values
    floored: Any = pc.floor_temporal(values.cast(pa.int64()).cast(pa.timestamp("us")), unit=unit)
    return floored


def _source(rows: pa.Table, schema: Schema, field_id: int) -> Any:
    """Return a partition field's source, which is a column or a struct field.

    The rows' columns are in the schema's order.
    """
    path = _path(schema.as_struct(), field_id)
    if path is None:
        raise AssertionError("a partition field has no source column")
    first, *others = path
    return _part(rows.column(first), others)


def _part(column: Any, path: Sequence[int]) -> Any:
    """Return the field of a struct column at this path. The result is null where a struct is null."""
    for index in path:
        column = pc.struct_field(column, [index])
    return column


def _path(kind: Any, field_id: int) -> list[int] | None:
    for index, field in enumerate(getattr(kind, "fields", ())):
        if field.field_id == field_id:
            return [index]
        if inner := _path(field.field_type, field_id):
            return [index, *inner]
    return None


def _stored(values: Any) -> Any:
    """Convert values to Iceberg's stored form. Dates and times become numbers, and UUIDs become bytes."""
    kind = values.type
    if isinstance(kind, pa.UuidType):
        return values.cast(pa.binary(16))
    if pa.types.is_date32(kind):
        return values.cast(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return values.cast(pa.int64())
    return values
