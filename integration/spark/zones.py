"""Relabel timestamps as UTC. Spark labels timestamps in Arrow data with the session's time zone (``ArrowUtils.toArrowType``).

The label does not change a timestamp's number of microseconds. Java recognizes names that Arrow and Python do not recognize
(``GMT+8``, ``UTC+01:00``, ``ACT``; SPARK-59467). Also, the text that Arrow makes from a timestamp would depend on the label.
So this module replaces the label before other code uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

#: PyArrow's function also accepts fields, which say whether a value may be null. Its type hints allow only types.
_MAP: Final[Callable[..., pa.DataType]] = pa.map_


def in_utc(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows with every zoned timestamp, at any depth, in UTC."""
    kinds = [_in_utc(kind) for kind in rows.schema.types]
    if kinds == rows.schema.types:
        return rows
    columns = [
        column if column.type == kind else column.cast(kind) for column, kind in zip(rows.columns, kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.TimestampType):
        return kind if kind.tz in {None, "UTC"} else pa.timestamp(cast("Any", kind.unit), "UTC")
    if isinstance(kind, pa.StructType):
        return pa.struct([_of_field(field) for field in kind])
    if isinstance(kind, pa.MapType):
        return _MAP(_of_field(kind.key_field), _of_field(kind.item_field))
    if isinstance(kind, pa.ListType):
        return pa.list_(_of_field(kind.value_field))
    if isinstance(kind, pa.LargeListType):
        return pa.large_list(_of_field(kind.value_field))
    return kind


def _of_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return field.with_type(_in_utc(field.type))
