"""Values for a table, converted alone: see ``test_iceberg_values.py`` and ``test_delta_values.py`` for those in files."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType

from tests.warehouse import Warehouse
from twopc import DeltaSink, FatalError, IcebergSink
from twopc.attempt import Evidence
from twopc.sinks.lake import values
from twopc.sinks.lake.rows import RowFormat, match
from twopc.sinks.lake.values import convert, problems
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from pathlib import Path


def test_values_hidden_below_a_null_struct_are_neither_checked_nor_converted() -> None:
    """Arrow allows any value below a null."""
    known = uuid.UUID(int=7)
    ids = pa.array(["", str(known)])
    given: Any = pa.StructArray.from_arrays([ids], fields=[pa.field("id", pa.string())], mask=pa.array([True, False]))
    table = pa.struct([pa.field("id", pa.uuid())])
    assert not list(problems(given, pa.field("part", table), "part"))
    assert convert(given, table, table).to_pylist() == [None, {"id": known}]


def required(name: str, kind: Any) -> pa.Field[Any]:
    return pa.field(name, kind, nullable=False)


def struct(*fields: pa.Field[Any]) -> pa.StructType:
    return pa.struct(fields)


def nullable(kind: Any) -> Any:
    """The same type as Spark makes it, in which each part may be null."""
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(at).name, nullable(kind.field(at).type)) for at in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(nullable(kind.value_type))
    return pa.binary() if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind) else kind


#: Types of required fields, each with a value of that type.
LEAVES: dict[str, tuple[Any, Any]] = {
    "bool": (pa.bool_(), True),
    "int": (pa.int16(), 1),
    "double": (pa.float64(), 1.5),
    "decimal": (pa.decimal128(9, 2), Decimal("1.25")),
    "string": (pa.string(), "x"),
    "large": (pa.large_string(), "x"),
    "bytes": (pa.large_binary(), b"x"),
    "fixed": (pa.binary(40), b"x" * 40),
    "date": (pa.date32(), dt.date(2024, 1, 1)),
    "time": (pa.timestamp("us", "UTC"), dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)),
    "list": (pa.list_(pa.int64()), [1, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    "struct": (struct(required("b", pa.int64())), {"b": 1}),
    "structs": (pa.list_(struct(required("b", pa.int64()))), [{"b": 1}, None]),
    "optional": (struct(pa.field("b", struct(required("c", pa.string())))), {"b": None}),
}


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("parent", ["struct", "list", "map", "deep"])
def test_a_null_in_place_of_a_struct_with_a_required_field_is_written(leaf: str, parent: str, tmp_path: Path) -> None:
    """Parquet refuses a null in a required field even below a null."""
    kind, value = LEAVES[leaf]
    inner: Any = struct(required("a", kind), pa.field("n", pa.int64()))
    one = {"a": value, "n": None}
    forms: dict[str, tuple[Any, list[Any]]] = {
        "struct": (inner, [None, one, None]),
        "list": (pa.list_(inner), [[one, None], None, [], [None]]),
        "map": (pa.map_(pa.string(), inner), [[("k", one), ("l", None)], None]),
        "deep": (struct(required("r", inner), pa.field("o", inner)), [None, {"r": one, "o": None}]),
    }
    target, some = forms[parent]
    schema = pa.schema({"row": pa.int64(), "v": target})
    for source in (pa.array(some, nullable(target)), pa.array([None, *some, None], nullable(target))[1:-1]):
        rows = pa.record_batch({"row": pa.array(range(len(some)), pa.int64()), "v": source})
        format_ = RowFormat("t", match(rows.schema, schema, "t"), schema, schema)
        format_.check(rows)
        pq.write_table(format_.convert(rows), tmp_path / "one.parquet")
        assert pq.read_table(tmp_path / "one.parquet").column("v").to_pylist() == some


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("given", [["row"], ["row", "v"]], ids=["missing", "void"])
def test_a_missing_struct_with_a_required_field_is_null(leaf: str, given: list[str], tmp_path: Path) -> None:
    kind, _ = LEAVES[leaf]
    schema = pa.schema(
        {"row": pa.int64(), "v": struct(required("a", kind), pa.field("o", struct(required("b", kind))))}
    )
    rows = pa.record_batch({"row": pa.array([1, 2]), "v": pa.nulls(2)}).select(given)
    table = RowFormat("t", match(rows.schema, schema, "t"), schema, schema).convert(rows)
    pq.write_table(table, tmp_path / "one.parquet")
    assert pq.read_table(tmp_path / "one.parquet").column("v").to_pylist() == [None, None]


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_an_attempt_to_write_rows_that_pyarrow_refuses_is_not_repeated(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema({"row": pa.int64(), "v": struct(required("a", pa.int64()))})
    sink: Any
    if format_ == "delta":
        DeltaTable.create(str(tmp_path / "orders"), schema)
        sink = DeltaSink(name="orders", table_uri=str(tmp_path / "orders"))
    else:
        warehouse = Warehouse(tmp_path / "warehouse", timeout_s=0.2)
        inner = StructType(NestedField(3, "a", LongType(), required=True))
        warehouse.create("shop.orders", Schema(NestedField(1, "row", LongType()), NestedField(2, "v", inner)))
        sink = IcebergSink(name="orders", catalog=warehouse.properties, table="shop.orders")
    rows = pa.RecordBatch.from_pylist([{"row": 1, "v": {"a": 1}}, {"row": 2, "v": None}])
    driver = Driver(sink)
    scan_start = driver.begin()
    assert driver.commit([driver.prepare(rows)], scan_start) == [Evidence.COMMITTED]
    monkeypatch.setattr(values, "filled", lambda some, _: some)
    with pytest.raises(FatalError, match="pyarrow cannot write these rows, so a new attempt would fail, too"):
        Driver(sink).prepare(rows)
    close_opened()


def test_a_null_uuid_that_is_required_below_a_null_struct_is_filled() -> None:
    table = struct(required("id", pa.uuid()))
    found = convert(pa.array([None, {"id": str(uuid.UUID(int=7))}]), table, table)
    assert found.to_pylist() == [None, {"id": uuid.UUID(int=7)}]
    assert found.field("id").null_count == 0
