"""The partition of each row: the values of the table's partition fields, as Iceberg stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import VoidTransform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema

#: The values of a partition, one for each partition field.
Partition = tuple[Any, ...]


def split(rows: pa.Table, schema: Schema, spec: PartitionSpec) -> Iterator[tuple[Partition, pa.Table]]:
    """The rows of each partition.

    Args:
        rows: rows with the table's columns and types.
        schema: the table's schema.
        spec: the table's partitioning.
    """
    if not spec.fields:
        yield (), rows
        return
    columns = [_transformed(rows, schema, field) for field in spec.fields]
    # Each distinct value has a number, so that rows are grouped by integers, whatever the types.
    numbers = [pa.array(codes, pa.int32()) for codes, _ in columns]
    names = [f"f{index}" for index in range(len(numbers))]
    keyed = pa.table([*numbers, pa.array(range(rows.num_rows), pa.int64())], names=[*names, "row"])
    groups = keyed.group_by(names, use_threads=False).aggregate([("row", "list")])
    for group in groups.to_pylist():
        partition = tuple(values[group[name]] for name, (_, values) in zip(names, columns, strict=True))
        taken = group["row_list"]
        yield partition, rows if len(taken) == rows.num_rows else rows.take(pa.array(taken, pa.int64()))


def _transformed(rows: pa.Table, schema: Schema, field: PartitionField) -> tuple[list[int], list[Any]]:
    """For each row the number of its value, and the values by number."""
    if isinstance(field.transform, VoidTransform):
        return [0] * rows.num_rows, [None]
    kind = schema.find_type(field.source_id)
    encoded = _stored(_source(rows, schema, field.source_id)).combine_chunks().dictionary_encode(null_encoding="encode")
    transform = field.transform.transform(kind)
    values: list[Any] = []
    number_of: dict[Any, int] = {}
    by_code: list[int] = []
    for value in encoded.dictionary.to_pylist():
        result = None if value is None else transform(value)
        key = (type(result), repr(result))  # NaN is one partition, and so are -0.0 and 0.0 two
        if key not in number_of:
            number_of[key] = len(values)
            values.append(result)
        by_code.append(number_of[key])
    return [by_code[code] for code in encoded.indices.to_pylist()], values


def _source(rows: pa.Table, schema: Schema, field_id: int) -> Any:
    """The column, or the part of a struct, from which a partition field is made. The columns are in the schema's order."""
    path = _path(schema.as_struct(), field_id)
    if path is None:
        raise AssertionError("a partition field has no source")
    first, *others = path
    column: Any = rows.column(first)
    for index in others:
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
    """The values as Iceberg stores them: dates and times are numbers, and a UUID is its bytes."""
    kind = values.type
    if isinstance(kind, pa.UuidType):
        return values.cast(pa.binary(16))
    if pa.types.is_date32(kind):
        return values.cast(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return values.cast(pa.int64())
    return values
