"""Which tables, columns and rows the Iceberg sink refuses, and what its errors say."""

# ruff: noqa: DTZ901 - some columns hold timestamps without a time zone

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    UUIDType,
)

from tests.unit.iceberg_support import TABLE, Shop
from tests.unit.lake_support import prepare
from tests.warehouse import Warehouse
from twopc import BadRecordError, ConfigurationError, IcebergSink, SchemaError
from twopc.attempt import Evidence
from twopc.sink import TYPE_NAME
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    close_opened()


# -- arguments ---------------------------------------------------------------------------------------------------------

REST = {"type": "rest", "uri": "https://catalog.example"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "a.b"}, r"IcebergSink\(name='a.b'\): use 1 to 100 letters"),
        ({"table": "orders"}, r"IcebergSink\(table='orders'\): pass 'namespace.table'"),
        ({"timeout_ms": 0}, r"IcebergSink\(timeout_ms=0\): set a positive number"),
        ({"orphan_age_ms": -1}, r"IcebergSink\(orphan_age_ms=-1\): set a positive number"),
        ({"catalog": "prod"}, r"IcebergSink\(catalog=…\): pass the pyiceberg properties"),
        (
            {"catalog": {"type": "in-memory"}},
            r"IcebergSink\(catalog=…\): an in-memory catalog exists in only one process",
        ),
        ({"catalog": {"type": "sql", "uri": "sqlite:///:memory:"}}, "an in-memory catalog"),
        ({"catalog": {"type": "sql", "uri": "sqlite://"}}, "an in-memory catalog"),
    ],
)
def test_a_wrong_argument_is_reported(wrong: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"name": "orders", "table": TABLE, "catalog": REST}
    with pytest.raises(ConfigurationError, match=message):
        IcebergSink(**{**given, **wrong})


def test_the_credentials_of_the_catalog_are_not_shown() -> None:
    sink = IcebergSink(name="orders", table=TABLE, catalog={**REST, "credential": "id:secret"})
    assert "secret" not in repr(sink)
    assert hash(sink)


def test_a_catalog_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    missing = IcebergSink(name="orders", catalog=shop.warehouse.properties, table="shop.lost")
    with pytest.raises(
        ConfigurationError, match=r"sink 'orders', checking the store: loading table shop.lost: .*Create the table"
    ):
        Driver(missing)
    with pytest.raises(ConfigurationError, match=r"sink 'orders', reading table shop.lost: .*Create the table"):
        missing.check_schema(numbers([1]).schema)


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"format-version": "1"},
            "has format version 1, but the sink writes only version 2. Upgrade the table: ALTER TABLE",
        ),
        (
            {"format-version": "3"},
            "has format version 3, but the sink writes only version 2. Write to a table with format version 2",
        ),
        ({"write.format.default": "orc"}, "has write.format.default='orc', but the sink writes only Parquet"),
        (
            {"write.py-location-provider.impl": "a.B"},
            "has write.py-location-provider.impl='a.B', but the sink itself chooses",
        ),
        ({"encryption.key-id": "k"}, "has encryption.key-id='k', but the sink cannot encrypt"),
    ],
)
def test_a_table_with_features_that_the_sink_does_not_support_is_refused(
    properties: dict[str, str], message: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path)
    version = {"format-version": int(properties.get("format-version", 2)), "next-row-id": 0, "partition-spec": []}
    shop.edit(lambda table: table.update({**version, "properties": properties, "schema": table["schemas"][0]}))
    for refused in (lambda: Driver(shop.sink), lambda: shop.sink.check_schema(numbers([1]).schema)):
        with pytest.raises(
            ConfigurationError, match=f"sink 'orders': table shop.orders {message}.*Nothing was written"
        ):
            refused()
    assert shop.commits() == 0


@pytest.mark.parametrize("place", ["write.data.path", "write.metadata.path", "location"])
@pytest.mark.parametrize("cut", ["#", "?"])
def test_a_location_where_files_would_overwrite_each_other_is_refused(place: str, cut: str, tmp_path: Path) -> None:
    """To pyiceberg, the text from this character on is the fragment or the query of a URL."""
    shop = Shop(tmp_path)
    where = (tmp_path / "a").as_uri() + cut + "b"
    shop.edit(lambda table: table.update({place: where} if place == "location" else {"properties": {place: where}}))
    with pytest.raises(
        ConfigurationError, match=f"has {place}='file.*files would overwrite each other.*Nothing was written"
    ):
        Driver(shop.sink)


@pytest.mark.parametrize("names", [("a", "A"), ("a.b", "a_x2Eb")])
@pytest.mark.parametrize("is_nested", [True, False])
def test_columns_whose_names_are_equal_in_parquet_are_refused(
    *, names: tuple[str, str], is_nested: bool, tmp_path: Path
) -> None:
    """One value of the batch would go to both, or the statistics of one would count for the other."""
    fields = [NestedField(number, name, LongType()) for number, name in enumerate(names, 3)]
    inner = NestedField(1, "rows", ListType(2, StructType(*fields)))
    warehouse = Warehouse(tmp_path / "warehouse", timeout_s=0.2)
    warehouse.create("shop.alike", Schema(*([inner] if is_nested else fields)))
    sink = IcebergSink(name="alike", catalog=warehouse.properties, table="shop.alike")
    with pytest.raises(ConfigurationError, match=f"the same name in Parquet: '{names[0]}', '{names[1]}'. Rename one"):
        Driver(sink)


def test_a_partition_field_whose_column_was_dropped_is_refused(tmp_path: Path) -> None:
    """No reader can read a manifest that pyiceberg writes for it, not even pyiceberg."""
    shop = Shop(tmp_path, PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "old")))

    def drop(table: dict[str, Any]) -> None:
        table["partition-specs"][0]["fields"][0] |= {"source-id": 99, "transform": "void"}

    shop.edit(drop)
    why = "has the partition field 'old', whose source column was dropped.*DROP PARTITION FIELD `old`. Nothing was written"
    for refused in (lambda: Driver(shop.sink), lambda: shop.sink.check_schema(numbers([1]).schema)):
        with pytest.raises(ConfigurationError, match=why):
            refused()
    shop.change(lambda table: table.update_spec().remove_field("old").commit())
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, 1, 2)], scan_start)
    assert shop.values() == [1, 2]


def test_a_table_partitioned_by_uuids_is_refused(tmp_path: Path) -> None:
    """Spark would skip manifests (``tests/live/iceberg/test_spark_reader.py``)."""
    warehouse = Warehouse(tmp_path / "warehouse", timeout_s=0.2)
    keys = StructType(NestedField(2, "key", UUIDType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    warehouse.create(TABLE, Schema(NestedField(1, "s", keys)), spec)
    with pytest.raises(
        ConfigurationError, match=r"partitioned by the UUID column 'key' without a transform.*bucket\(n, key\) instead"
    ):
        Driver(IcebergSink(name="orders", catalog=warehouse.properties, table=TABLE))


def test_a_change_that_the_sink_does_not_support_stops_the_batch_before_its_decision(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    driver = Driver(shop.sink)
    handle = prepare(driver, shop.sink, 1)
    shop.edit(lambda table: table.update({"format-version": 3, "next-row-id": 0}))
    with pytest.raises(ConfigurationError, match="has format version 3"):
        driver.committer.confirm([handle], 0)


@pytest.mark.parametrize(
    "properties",
    [
        {"write.parquet.compression-codec": "gzip", "write.parquet.bloom-filter-enabled.column.value": "true"},
        {"write.metadata.metrics.default": "none"},
        {"write.metadata.metrics.column.value": "counts"},
        {"write.object-storage.enabled": "true"},
        {"write.parquet.row-group-size-bytes": "1000", "write.parquet.row-group-limit": "2"},
        {"write.avro.compression-codec": "zstd"},
        {"history.expire.max-ref-age-ms": "1"},
    ],
    ids=lambda properties: next(iter(properties)),
)
def test_properties_of_the_table_are_honored_or_harmless(properties: dict[str, str], tmp_path: Path) -> None:
    shop = Shop(tmp_path, UNPARTITIONED_PARTITION_SPEC, **properties)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, *range(5))], scan_start)
    assert shop.values() == list(range(5))


def test_files_and_metadata_are_written_to_the_tables_configured_directories(tmp_path: Path) -> None:
    data, metadata = tmp_path / "elsewhere", tmp_path / "notes"
    shop = Shop(
        tmp_path,
        UNPARTITIONED_PARTITION_SPEC,
        **{"write.data.path": data.as_uri(), "write.metadata.path": metadata.as_uri()},
    )
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, 1)], scan_start)
    prepare(driver, shop.sink, 2, batch=1)
    Driver(shop.sink).committer.recover_and_abort([])
    [file] = [path.relative_to(data) for path in data.rglob("*.parquet")]
    assert (file.parts[0], *file.parts[2:5]) == ("twopc-orders", "1", "0", "0")
    assert len(list(metadata.glob("snap-*.avro"))) == shop.commits()
    assert shop.values() == [1]


# -- columns -----------------------------------------------------------------------------------------------------------

ADDRESS = StructType(NestedField(0, "city", StringType(), required=True), NestedField(0, "zip", IntegerType()))
COLUMNS: dict[str, Any] = {
    "id": LongType(),
    "price": DecimalType(9, 2),
    "day": DateType(),
    "at": TimestampType(),
    "key": UUIDType(),
    "code": FixedType(3),
    "note": StringType(),
    "address": ADDRESS,
    "tags": ListType(0, StringType(), element_required=True),
    "counts": MapType(0, StringType(), 0, IntegerType(), value_required=True),
}


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> IcebergSink:
    warehouse = Warehouse(tmp_path_factory.mktemp("tables") / "warehouse")
    fields = [NestedField(0, name, kind, required=name == "id") for name, kind in COLUMNS.items()]
    warehouse.create(TABLE, Schema(*fields))
    return IcebergSink(name="orders", catalog=warehouse.properties, table=TABLE)


def schema_of(field: pa.Field[Any]) -> pa.Schema:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), field]
    return pa.schema(fields)


def rows(**columns: pa.Array[Any]) -> pa.RecordBatch:
    length = len(next(iter(columns.values())))
    given = {"id": pa.array(range(length), pa.int64()), **columns}
    return pa.record_batch({name: column for name, column in given.items() if column is not None})


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        (
            "id",
            pa.float64(),
            "column 'id' is double, but shop.orders.id is int64. Nothing was written. Cast the column",
        ),
        ("id", pa.uint64(), "column 'id' is uint64"),
        (
            "price",
            pa.decimal128(9, 3),
            r"column 'price' is decimal128\(9, 3\), but shop.orders.price is decimal128\(9, 2\)",
        ),
        ("price", pa.float64(), "column 'price' is double"),
        (
            "at",
            pa.timestamp("us", "UTC"),
            r"column 'at' is timestamp\[us, tz=UTC\], but shop.orders.at is timestamp\[us\]",
        ),
        ("at", pa.timestamp("ns"), "column 'at' is timestamp"),
        ("at", pa.date32(), "column 'at' is date32"),
        ("key", pa.binary(), "column 'key' is binary"),
        ("tags", pa.list_(pa.int64()), "column 'tags.element' is int64, but shop.orders.tags.element is large_string"),
        ("counts", pa.map_(pa.string(), pa.int64()), "column 'counts.value' is int64"),
        (
            "address",
            pa.struct([("zip", pa.int32())]),
            "column 'address.city' is missing, but shop.orders.address.city is",
        ),
        (
            "address",
            pa.struct([("city", pa.string()), ("x", pa.int32())]),
            "column 'address.x' is not in shop.orders. Nothing was written. Drop this field from the struct",
        ),
        ("other", pa.int64(), "column 'other' is not in shop.orders"),
        ("ID", pa.int64(), "the columns 'id' and 'ID' both match shop.orders.id"),
    ],
)
def test_a_column_that_does_not_fit_is_reported(
    sink: IcebergSink, column: str, kind: pa.DataType, message: str
) -> None:
    fields = {"id": pa.int64(), column: kind}
    with pytest.raises(SchemaError, match=message):
        sink.check_schema(pa.schema(fields))


def test_a_type_unknown_to_arrow_is_reported_with_the_engines_name(sink: IcebergSink) -> None:
    odd: pa.Field[Any] = pa.field("price", pa.null(), metadata={TYPE_NAME: b"interval month"})
    with pytest.raises(SchemaError, match="column 'price' is interval month"):
        sink.check_schema(schema_of(odd))
    sink.check_schema(schema_of(odd.remove_metadata()))


def test_a_required_column_must_exist(sink: IcebergSink) -> None:
    with pytest.raises(SchemaError, match="the DataFrame has no column 'id'"):
        sink.check_schema(pa.schema({"price": pa.decimal128(9, 2)}))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("id", pa.array([1, None], pa.int64()), "column 'id' is null, but the table requires a value"),
        ("id", pa.nulls(2), "column 'id' is null, but the table requires a value"),
        ("key", pa.array([None, "f79c3e09"]), "column 'key' contains a string that is not a UUID: 'f79c3e09'"),
        (
            "key",
            pa.array([None, b"\xff"]).view(pa.string()),
            r"column 'key' contains a string that is not a UUID: b'\\xff'",
        ),
        ("code", pa.array([b"abc", b"ab"]), "column 'code' contains a binary value that is not 3 bytes long: b'ab'"),
        ("note", pa.array([b"a", b"\xff"]).view(pa.string()), "column 'note' contains bytes that are not UTF-8"),
        ("day", pa.array([0, 2_932_897], pa.int32()).cast(pa.date32()), "a date outside the years 1 to 9999: 2932897"),
        ("at", pa.array([0, -(2**62)], pa.int64()).cast(pa.timestamp("us")), "a time outside the years 1 to 9999"),
        (
            "address",
            pa.array([None, {"city": None}], pa.struct([("city", pa.string())])),
            "column 'address.city' is null",
        ),
        ("tags", pa.array([["a", "b"], ["c", None]]), "column 'tags.element' is null"),
        (
            "counts",
            pa.array([[("a", 1)], [("b", 2), ("c", None)]], pa.map_(pa.string(), pa.int32())),
            "column 'counts.value' is null",
        ),
    ],
)
def test_a_row_that_cannot_be_written_is_reported(sink: IcebergSink, column: str, values: Any, message: str) -> None:
    row = 0 if pa.types.is_null(values.type) else 1
    with pytest.raises(BadRecordError, match=f"{message}.*, in row {row} of an Arrow batch of 2 rows"):
        sink.check_rows(rows(**{column: values}))


def test_bad_rows_in_slices_and_below_null_parents_are_found(sink: IcebergSink) -> None:
    good = [None, {"city": "Ulm", "zip": 1}, None, {"city": "Bonn", "zip": None}]
    tags = [["x"], None, [], ["y", "z"]]
    kind = pa.struct([("city", pa.string()), ("zip", pa.int32())])
    some = rows(address=pa.array(good, kind), tags=pa.array(tags, pa.list_(pa.string())))
    sink.check_rows(some)
    bad = rows(address=pa.array([*good, {"city": None, "zip": 2}], kind), tags=pa.array([*tags, ["x", None]]))
    sink.check_rows(bad.slice(0, 4))
    with pytest.raises(BadRecordError, match="in row 1 of an Arrow batch of 2 rows"):
        sink.check_rows(bad.slice(3))


@pytest.mark.parametrize("name", ["a b", "A B"])
def test_a_field_with_a_different_name_in_the_file_is_written_correctly(tmp_path: Path, name: str) -> None:
    """In a Parquet file, the name is ``a_x20b``. The case of the DataFrame's name does not matter."""
    warehouse = Warehouse(tmp_path / "warehouse")
    warehouse.create(TABLE, Schema(NestedField(0, "address", StructType(NestedField(0, "a b", LongType())))))
    one = IcebergSink(name="orders", catalog=warehouse.properties, table=TABLE)
    driver = Driver(one)
    scan_start = driver.begin()
    driver.commit([driver.prepare(pa.record_batch({"address": pa.array([{name: 1}])}))], scan_start)
    assert warehouse.column(TABLE, "address") == [{"a b": 1}]


def test_the_limits_of_dates_and_times_are_written(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path / "warehouse")
    warehouse.create(TABLE, Schema(NestedField(0, "day", DateType()), NestedField(0, "at", TimestampType())))
    one = IcebergSink(name="orders", catalog=warehouse.properties, table=TABLE)
    days = [dt.date.min, dt.date.max]
    times = [dt.datetime.min, dt.datetime.max]
    some = pa.record_batch({"day": pa.array(days), "at": pa.array(times, pa.timestamp("us"))})
    driver = Driver(one)
    scan_start = driver.begin()
    driver.commit([driver.prepare(some)], scan_start)
    assert sorted(warehouse.column(TABLE, "day")) == days
    assert sorted(warehouse.column(TABLE, "at")) == times


def test_a_table_upgraded_after_the_decision_blocks_the_batch(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    driver.committer.confirm([handle], 0)
    shop.edit(lambda table: table.update({"format-version": 3, "next-row-id": 0}))
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    [blocker] = driver.committer.blockers()
    assert "shop.orders was upgraded to format version 3 after the batch was decided" in blocker
    assert "register the table's previous metadata file" in blocker and "#new-checkpoint" in blocker
    assert shop.values() == []
