"""Values written by the Iceberg sink are read back by pyiceberg as they were, and rows that cannot be written are named."""

# ruff: noqa: DTZ901 - some columns hold timestamps without a time zone

from __future__ import annotations

import datetime as dt
import math
import shutil
import tempfile
import uuid
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.warehouse import Warehouse
from twopc import IcebergSink
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "shop.orders"
DAY_ONE, LAST = dt.datetime.min, dt.datetime.max
#: An Iceberg type, the Arrow types that it accepts, and values that all of these types can represent.
PRIMITIVES: list[tuple[Any, list[pa.DataType], st.SearchStrategy[Any]]] = [
    (BooleanType(), [pa.bool_()], st.booleans()),
    (IntegerType(), [pa.int32()], st.integers(-(2**31), 2**31 - 1)),
    (IntegerType(), [pa.int8(), pa.int16()], st.integers(-128, 127)),
    (LongType(), [pa.int64()], st.integers(-(2**63), 2**63 - 1)),
    (LongType(), [pa.int32(), pa.int16(), pa.int8()], st.integers(-128, 127)),
    (FloatType(), [pa.float32()], st.floats(width=32)),
    (DoubleType(), [pa.float64()], st.floats()),
    (DoubleType(), [pa.float32()], st.floats(width=32)),
    (DecimalType(38, 9), [pa.decimal128(20, 9)], st.decimals(-(10**10), 10**10, places=9)),
    (DecimalType(9, 2), [pa.decimal128(9, 2), pa.decimal128(5, 2)], st.decimals(-999, 999, places=2)),
    (DecimalType(38, 0), [pa.decimal128(38, 0)], st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    (StringType(), [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], st.text(max_size=40)),
    (BinaryType(), [pa.binary(), pa.large_binary()], st.binary(max_size=40)),
    (FixedType(3), [pa.binary(), pa.binary(3)], st.binary(min_size=3, max_size=3)),
    (UUIDType(), [pa.string()], st.uuids().map(str)),
    (DateType(), [pa.date32()], st.dates()),
    (TimeType(), [pa.time64("us")], st.times()),
    (TimestampType(), [pa.timestamp("us")], st.datetimes(DAY_ONE, LAST)),
    (TimestamptzType(), [pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")], st.datetimes(DAY_ONE, LAST)),
]


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> tuple[Any, pa.DataType, st.SearchStrategy[Any]]:
    """A type of Iceberg with its own field ids, a type of Arrow, and values."""
    form = draw(st.sampled_from(["primitive", "struct", "list", "map"] if depth else ["primitive"]))
    if form == "primitive":
        kind, arrow, values = draw(st.sampled_from(PRIMITIVES))
        return kind, draw(st.sampled_from(arrow)), values
    inner, arrow, values = draw(columns(depth - 1))
    if form == "list":
        return ListType(0, inner, element_required=False), pa.list_(arrow), st.lists(values | st.none(), max_size=4)
    if form == "map":
        keyed = st.dictionaries(st.text(max_size=5), values | st.none(), max_size=4)
        return MapType(0, StringType(), 0, inner, value_required=False), pa.map_(pa.string(), arrow), keyed
    other, other_arrow, other_values = draw(columns(depth - 1))
    struct = StructType(
        NestedField(0, "a b", inner), NestedField(0, "other", other), NestedField(0, "lacking", LongType())
    )
    fields = pa.struct([pa.field("OTHER", other_arrow), pa.field("a b", arrow)])
    return struct, fields, st.fixed_dictionaries({"OTHER": other_values | st.none(), "a b": values | st.none()})


@contextmanager
def written(kind: Any, *batches: pa.RecordBatch) -> Iterator[Warehouse]:
    directory = Path(tempfile.mkdtemp())
    try:
        warehouse = Warehouse(directory / "warehouse")
        warehouse.create(TABLE, Schema(NestedField(0, "row", LongType()), NestedField(0, "größe", kind)))
        sink = IcebergSink(name="orders", catalog=warehouse.properties, table=TABLE)
        for rows in batches:
            sink.check_schema(rows.schema)
            sink.check_rows(rows)
        driver = Driver(sink)
        scan_start = driver.begin()
        handles = [driver.prepare(rows, partition=number) for number, rows in enumerate(batches)]
        driver.commit(handles, scan_start)
        yield warehouse
    finally:
        close_opened()
        shutil.rmtree(directory)


def plain(value: Any, kind: Any) -> Any:
    """A value as Iceberg's type holds it."""
    if value is None:
        # pyiceberg reads a null list or map of structs as an empty one (apache/arrow#38809); the test below counts
        # nulls itself.
        inner = getattr(kind, "element_type", getattr(kind, "value_type", None))
        value = None if not isinstance(inner, StructType) else [] if isinstance(kind, ListType) else {}
    if value is None or kind.is_primitive:
        return plain_part(value)
    if isinstance(kind, StructType):
        given = {
            "a b": value.get("a b"),
            "other": value.get("OTHER", value.get("other")),
            "lacking": value.get("lacking"),
        }
        return {field.name: plain(given[field.name], field.field_type) for field in kind.fields}
    if isinstance(kind, ListType):
        return [plain(one, kind.element_type) for one in value]
    return {key: plain(one, kind.value_type) for key, one in (value.items() if isinstance(value, dict) else value)}


def plain_part(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return str(value) if isinstance(value, uuid.UUID) else value


@settings(max_examples=40)
@given(st.data())
def test_values_are_read_back_unchanged(data: st.DataObject) -> None:
    kind, arrow, values = data.draw(columns())
    some = data.draw(st.lists(values | st.none(), min_size=2, max_size=8))
    cut = data.draw(st.integers(0, len(some) - 1))
    column: Any = pa.array(some, arrow)
    given = column.to_pylist()
    rows = pa.record_batch({"row": pa.array(range(len(some)), pa.int64()), "größe": column})
    # Sliced, because the elements of a sliced list or struct do not begin at the start of their buffers.
    with written(kind, *(part for part in (rows.slice(cut), rows.slice(0, cut)) if part.num_rows)) as warehouse:
        ordered = warehouse.rows(TABLE).sort_by("row").column("größe").to_pylist()
        stored = pa.concat_tables(pq.read_table(path) for path in warehouse.directory.rglob("*.parquet"))
    assert [plain(value, kind) for value in ordered] == [plain(value, kind) for value in given]
    assert stored.column(1).null_count == column.null_count
