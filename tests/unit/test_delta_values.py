"""Values arrive as they are, and rows that the table can never hold are named before they are written."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twopc import BadRecordError, DeltaSink, SchemaError
from twopc.attempt import Evidence
from twopc.sinks.delta.data_files import NewFiles
from twopc.sinks.delta.moments import time_text
from twopc.sinks.delta.stats import FileStats
from twopc.sinks.delta.table import definition_of
from twopc.sinks.lake.rolling import Limits, RollingFiles
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

UTC = dt.timezone.utc
_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
_TIMES = st.datetimes()


def _decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_ENTRIES = st.dictionaries(_TEXT, st.none() | _integers(32), max_size=3)
_TEXTS = st.lists(st.none() | _TEXT, max_size=2)
INNER = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
#: Each type that a table's column may have, with the Arrow type and its values.
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), _integers(8)),
    "short": (pa.int16(), _integers(16)),
    "int": (pa.int32(), _integers(32)),
    "long": (pa.int64(), _integers(64)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "text": (pa.string(), _TEXT),
    "bytes": (pa.binary(), st.binary(max_size=8)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us", "UTC"), _TIMES.map(lambda time: time.replace(tzinfo=UTC))),
    "local": (pa.timestamp("us"), _TIMES),
    "small": (pa.decimal128(9, 2), _decimals(9, 2)),
    "large": (pa.decimal128(38, 10), _decimals(38, 10)),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | _integers(64), max_size=3)),
    "map": (pa.map_(pa.string(), pa.int32()), _ENTRIES.map(lambda entries: list(entries.items()))),
    "struct": (INNER, st.fixed_dictionaries({"a": st.none() | _integers(32), "b": st.none() | _TEXTS})),
}  # fmt: skip
REQUIRED: Any = pa.field("a", pa.int64(), nullable=False)
ELEMENT: Any = pa.field("element", pa.int64(), nullable=False)
TIMES: Any = pa.list_(pa.timestamp("us"))
PARTITIONED = ("byte", "long", "text", "flag", "day", "time", "local", "small")
_ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}), max_size=6)


def schema_of(names: Sequence[str]) -> pa.Schema:
    fields: list[Any] = [
        pa.field("row", pa.int64(), nullable=False),
        *(pa.field(name, TYPES[name][0]) for name in names),
    ]
    return pa.schema(fields)


def written(directory: Path, batch: pa.RecordBatch, schema: pa.Schema, **how: Any) -> DeltaTable:
    DeltaTable.create(str(directory), schema, **how)
    sink = DeltaSink(name="orders", table_uri=str(directory))
    sink.check_schema(batch.schema)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch)
    if handle is not None:
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    close_opened()
    return DeltaTable(str(directory))


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """As text, because NaN is not equal to itself, and -0.0 is equal to 0.0."""
    return [repr(row).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc") for row in rows]


@pytest.mark.parametrize("partition", [None, *PARTITIONED])
def test_values_are_read_back_as_they_were_written(partition: str | None, tmp_path: Path) -> None:
    schema = schema_of(list(TYPES))
    DeltaTable.create(str(tmp_path), schema, partition_by=[partition] if partition else None)
    sink = DeltaSink(name="orders", table_uri=str(tmp_path))
    driver = Driver(sink)
    numbers = itertools.count()

    @settings(max_examples=25 if partition is None else 10, suppress_health_check=list(HealthCheck))
    @given(_ROWS)
    def check(rows: list[dict[str, Any]]) -> None:
        rows = [{"row": next(numbers), **row} for row in rows if partition is None or not is_odd(row[partition])]
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        scan_start = driver.begin()
        if (handle := driver.prepare(batch)) is None:
            return
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
        table = DeltaTable(str(tmp_path)).to_pyarrow_table(filters=[("row", ">=", rows[0]["row"])])
        found: Any = table.select(schema.names).sort_by("row")
        assert comparable(found.to_pylist()) == comparable(batch.to_pylist())

    check()
    close_opened()


def is_odd(value: Any) -> bool:
    """Whether the value cannot be a partition's value, or deltalake's Arrow reader would turn it into ``-3.-14``."""
    return value == "" or (isinstance(value, Decimal) and value < 0)


def test_the_value_of_a_partition_with_a_negative_fraction_is_in_the_log(tmp_path: Path) -> None:
    fields: list[Any] = [("row", pa.int64()), ("part", pa.decimal128(9, 2))]
    batch = pa.record_batch([pa.array([1]), pa.array([Decimal("-0.01")], fields[1][1])], names=["row", "part"])
    table = written(tmp_path / "orders", batch, pa.schema(fields), partition_by=["part"])
    found: Any = (
        QueryBuilder().register("orders", table).execute("SELECT row FROM orders WHERE part = -0.01").read_all()
    )
    assert found.num_rows == 1


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.array([1, None], pa.int8()), pa.int64()),
        (pa.array([1, None], pa.uint16()), pa.int32()),
        (pa.array([1.5, None], pa.float32()), pa.float64()),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array([b"a", None], pa.large_binary()), pa.binary()),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
        (pa.array([Decimal("1.25"), None], pa.decimal128(5, 2)), pa.decimal128(9, 2)),
        (pa.array([[1], None], pa.large_list(pa.int8())), pa.list_(pa.int64())),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
        (pa.array([None, None], pa.null()), pa.string()),
        (pa.array([{"B": 1, "a": "x"}, None]), pa.struct([("a", pa.string()), ("b", pa.int64()), ("c", pa.int64())])),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_converted_if_no_information_is_lost(source: Any, target: Any, tmp_path: Path) -> None:
    batch = pa.record_batch([pa.array(range(len(source))), source], names=["row", "value"])
    fields: list[Any] = [("row", pa.int64()), ("value", target)]
    found = written(tmp_path / "orders", batch, pa.schema(fields)).to_pyarrow_table().column("value")
    expected = source.to_pylist()
    if pa.types.is_struct(target):
        expected = [{"a": "x", "b": 1, "c": None}, None]
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (pa.array([1]), pa.int32(), "column 'value' is int64, but"),
        (pa.array([1.5]), pa.int64(), "column 'value' is double"),
        (pa.array(["x"]), pa.int64(), "Cast the column, or change the table"),
        (pa.array([Decimal("1.25")], pa.decimal128(9, 3)), pa.decimal128(9, 2), "is decimal"),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC"), r"is timestamp\[us\]"),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("us"), r"is timestamp\[us, tz=UTC\]"),
        (pa.array([{"a": 1, "z": 2}]), pa.struct([("a", pa.int64())]), "column 'value.z' is not in"),
        (pa.array([[{"a": "x"}]]), pa.list_(pa.struct([("a", pa.int64())])), "column 'value.element.a' is string"),
        (pa.array([{"b": 1}]), pa.struct([REQUIRED, pa.field("b", pa.int64())]), "value.a' is missing"),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_the_table_cannot_store_is_refused(source: Any, target: Any, why: str, tmp_path: Path) -> None:
    fields: list[Any] = [("row", pa.int64()), ("value", target)]
    DeltaTable.create(str(tmp_path / "orders"), pa.schema(fields))
    sink = DeltaSink(name="orders", table_uri=str(tmp_path / "orders"))
    with pytest.raises(SchemaError, match=why):
        sink.check_schema(pa.schema([("value", source.type)]))


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (pa.array([1, None]), pa.field("value", pa.int64(), nullable=False), "column 'value' is null, but"),
        (pa.array(["a", ""]), pa.field("part", pa.string()), "an empty string, which Delta stores as null"),
        (
            pa.array([{"a": 1}, {"a": None}]),
            pa.field("value", pa.struct([REQUIRED])),
            "column 'value.a' is null",
        ),
        (pa.array([[1], [None]]), pa.field("value", pa.list_(ELEMENT)), "'value.element' is null"),
        (pa.array([0, -10**6], pa.date32()), pa.field("value", pa.date32()), "a date outside the years 1 to 9999"),
        (pa.array([0, 2**62], pa.timestamp("us")), pa.field("value", pa.timestamp("us")), "a time outside the years"),
        (pa.array([[0], [2**62]], TIMES), pa.field("value", TIMES), "column 'value.element' contains"),
        (pa.array([b"a", b"\xff"]).view(pa.string()), pa.field("value", pa.string()), "bytes that are not UTF-8"),
    ],
    ids=str,
)  # fmt: skip
def test_a_row_that_the_table_can_never_hold_counts_as_a_bad_record(
    source: Any, target: Any, why: str, tmp_path: Path
) -> None:
    fields: list[Any] = [pa.field("row", pa.int64()), target]
    partitions = ["part"] if target.name == "part" else None
    DeltaTable.create(str(tmp_path / "orders"), pa.schema(fields), partition_by=partitions)
    sink = DeltaSink(name="orders", table_uri=str(tmp_path / "orders"))
    good, bad = (pa.record_batch([source.slice(at, 1)], names=[target.name]) for at in (0, 1))
    sink.check_rows(good)
    with pytest.raises(BadRecordError, match=why):
        sink.check_rows(bad)
    with pytest.raises(BadRecordError, match="in row 1 of an Arrow batch of 2 rows"):
        Driver(sink).prepare(pa.record_batch([source], names=[target.name]))
    close_opened()


def test_columns_are_matched_by_name_and_missing_ones_are_null(tmp_path: Path) -> None:
    fields: list[Any] = [("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())]
    batch = pa.record_batch({"B": [2], "a": [1]})
    assert written(tmp_path / "orders", batch, pa.schema(fields)).to_pyarrow_table().to_pylist() == [
        {"a": 1, "b": 2, "c": None}
    ]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["row", "z"], "column 'z' is not in"),
        (["row", "ROW"], "both match"),
        (["value"], "has no column 'row'"),
        (["row", "row"], "unclear which"),
    ],
)
def test_columns_that_do_not_fit_are_reported(names: list[str], why: str, tmp_path: Path) -> None:
    fields: list[Any] = [pa.field("row", pa.int64(), nullable=False), pa.field("value", pa.int64())]
    DeltaTable.create(str(tmp_path / "orders"), pa.schema(fields))
    with pytest.raises(SchemaError, match=why):
        DeltaSink(name="orders", table_uri=str(tmp_path / "orders")).check_schema(
            pa.schema([(n, pa.int64()) for n in names])
        )


# -- statistics --------------------------------------------------------------------------------------------------------


def stats(kind: Any, *values: Any, **configuration: str) -> dict[str, Any]:
    found = FileStats(pa.schema([("v", kind)]), configuration)
    for value in values:
        found.add(pa.table({"v": pa.array([value], kind)}))
    said: dict[str, Any] = json.loads(found.encode())
    return said


@settings(max_examples=200)
@given(st.lists(st.text(st.sampled_from(["a", "\U0010ffff", "é"]), min_size=28, max_size=40), min_size=1, max_size=4))
def test_the_bounds_of_strings_are_never_too_narrow(values: list[str]) -> None:
    found = stats(pa.string(), *values)
    for value in values:
        assert found["minValues"]["v"].encode() <= value.encode()
        assert value.encode() <= found["maxValues"].get("v", "\U0010ffff" * 50).encode()


@settings(max_examples=200)
@given(st.lists(_TIMES, min_size=1, max_size=4))
def test_the_bounds_of_times_are_never_too_narrow(values: list[dt.datetime]) -> None:
    found = stats(pa.timestamp("us"), *values)
    epoch = dt.datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
    for value in values:
        assert found["minValues"]["v"] <= time_text((value - epoch) // dt.timedelta(microseconds=1))
        assert found["maxValues"].get("v", "9999-13") + "000" >= value.isoformat(timespec="microseconds")


def test_bounds_that_readers_order_differently_are_omitted() -> None:
    for value in (math.nan, math.inf, -math.inf):
        assert stats(pa.float64(), 1.0, value) == {"numRecords": 2, "nullCount": {"v": 0}}
    assert str(stats(pa.float64(), 0.0)["minValues"]["v"]) == "-0.0"
    assert stats(pa.decimal128(5, 2), Decimal("1.25"), None)["minValues"] == {"v": 1.25}
    assert stats(pa.binary(), b"a", None) == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"v": 1}}


@settings(max_examples=200)
@given(st.lists(_decimals(38, 10), min_size=1, max_size=4))
def test_the_bounds_of_decimals_are_never_too_narrow(values: list[Decimal]) -> None:
    found = FileStats(pa.schema([("v", pa.decimal128(38, 10))]), {})
    found.add(pa.table({"v": pa.array(values, pa.decimal128(38, 10))}))
    said = json.loads(found.encode(), parse_float=Decimal, parse_int=Decimal)
    for value in values:
        assert said["minValues"]["v"] <= value <= said["maxValues"]["v"]


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(value=True),
        pa.scalar(value=False),
        pa.scalar(math.inf),
        pa.scalar(-math.inf),
        pa.scalar(0.0),
        pa.scalar("a" * 32 + "\U0010ffff"),
        pa.scalar("\U0010ffff" * 40),
        pa.scalar(b"a"),
        pa.scalar(Decimal("9" * 38), pa.decimal128(38, 0)),
        pa.scalar(Decimal("-0.0000000001"), pa.decimal128(38, 10)),
        pa.scalar(Decimal("12345678901234567.89"), pa.decimal128(20, 2)),
        pa.scalar(dt.datetime.max, pa.timestamp("us")),  # noqa: DTZ901 - timestamps without a time zone
        pa.scalar(dt.datetime.min, pa.timestamp("us")),  # noqa: DTZ901 - timestamps without a time zone
        pa.scalar(dt.date.max),
    ],
    ids=ascii,
)
def test_a_filter_finds_a_value_next_to_a_null(value: Any, tmp_path: Path) -> None:
    """The Arrow reader of deltalake treats a missing bound as null, and no comparison with null is true."""
    batch = pa.record_batch([pa.array([1, 2]), pa.array([value.as_py(), None], value.type)], names=["row", "v"])
    table = written(tmp_path / "orders", batch, batch.schema)
    for _ in range(2):
        assert table.to_pyarrow_table(filters=pc.field("v") == value).column("row").to_pylist() == [1]
        assert table.to_pyarrow_table(filters=pc.field("v").is_null()).column("row").to_pylist() == [2]
        table.create_checkpoint()
        table = DeltaTable(table.table_uri)


DEEP = pa.struct([("deeper", pa.struct([("x", pa.int64())])), ("y", pa.int64())])
NESTED: dict[str, tuple[Any, Any]] = {
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": "x"}),
    "deep": (DEEP, {"deeper": {"x": 1}, "y": None}),
    "lists": (pa.struct([("l", pa.list_(pa.int64())), ("b", pa.binary())]), {"l": [1], "b": b"x"}),
    "list": (pa.list_(pa.int64()), [1]),
    "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
}


@pytest.mark.parametrize(
    "configuration",
    [{}, *({"delta.dataSkippingNumIndexedCols": n} for n in "012"), {"delta.dataSkippingStatsColumns": "v"}],
    ids=str,
)
@pytest.mark.parametrize("name", NESTED)
def test_a_null_in_a_nested_column_is_found_by_a_filter(
    name: str, configuration: dict[str, str], tmp_path: Path
) -> None:
    """The Arrow reader of deltalake compares even a struct with its bounds, unless they are an empty struct."""
    kind, value = NESTED[name]
    batch = pa.record_batch([pa.array([value, None], kind), pa.array([1, 2])], names=["v", "row"])
    table = written(tmp_path / "orders", batch, batch.schema, configuration=configuration)
    for _ in range(2):
        filters: list[tuple[Any, list[int]]] = [(pc.field("v").is_null(), [2]), (pc.field("v").is_valid(), [1])]
        for only, rows in filters:
            assert table.to_pyarrow_table(filters=only).column("row").to_pylist() == rows
        for condition, row in (("v IS NULL", 2), ("v IS NOT NULL", 1)):
            query = f"SELECT row FROM orders WHERE {condition}"  # noqa: S608 - the test's own SQL
            found: Any = QueryBuilder().register("orders", table).execute(query).read_all()
            assert pa.table(found).column("row").to_pylist() == [row]
        table.create_checkpoint()
        table = DeltaTable(table.table_uri)


@pytest.mark.parametrize(
    "names",
    [
        "",
        "row",
        " row , last",
        "`a b`,row",
        "`c,d`,row",
        "`e``f`",
        "*",
        "größe",
        "a-b",
        "1x",
        "`row",
        "row.x",
        "row,",
        ",",
        "a b",
    ],
)
def test_a_filter_finds_a_row_no_matter_which_columns_have_statistics(names: str, tmp_path: Path) -> None:
    """If deltalake cannot parse a list, it expects the bounds of the first 32 columns."""
    columns = ["row", "größe", "a-b", "1x", "a b", "c,d", "e`f", "last"]
    batch = pa.record_batch([pa.array([1, None])] * len(columns), names=columns)
    listed = {"delta.dataSkippingStatsColumns": names, "delta.dataSkippingNumIndexedCols": "4"}
    table = written(tmp_path / "orders", batch, batch.schema, configuration=listed)
    for _ in range(2):
        for column in columns:
            assert len(table.to_pyarrow_table(filters=pc.field(column) == 1)) == 1, column
            assert len(table.to_pyarrow_table(filters=pc.field(column).is_null())) == 1, column
        table.create_checkpoint()
        table = DeltaTable(table.table_uri)


def test_the_table_says_which_columns_have_statistics() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    rows = pa.table({"a": [1], "b": [2], "c": [3]})

    def bounds(configuration: dict[str, str]) -> list[str]:
        found = FileStats(schema, configuration)
        found.add(rows)
        return sorted(json.loads(found.encode())["minValues"])

    assert bounds({}) == ["a", "b", "c"]
    assert bounds({"delta.dataSkippingNumIndexedCols": "1"}) == ["a"]
    assert bounds({"delta.dataSkippingNumIndexedCols": "-1"}) == ["a", "b", "c"]
    assert bounds({"delta.dataSkippingStatsColumns": "b, `c`"}) == ["b", "c"]


def test_readers_find_rows_by_means_of_statistics(tmp_path: Path) -> None:
    times = [dt.datetime(2024, 1, 1, 0, 0, 0, 1, UTC), dt.datetime(2024, 1, 1, 0, 0, 0, 999_999, UTC)]
    fields: list[Any] = [("row", pa.int64()), ("text", pa.string()), ("time", pa.timestamp("us", "UTC"))]
    batch = pa.record_batch(
        [pa.array([1, 2]), pa.array(["a" * 50, "b" * 50]), pa.array(times, fields[2][1])], names=["row", "text", "time"]
    )
    table = written(tmp_path / "orders", batch, pa.schema(fields))
    for column, value in (("text", "b" * 50), ("text", "a" * 50), ("time", times[0]), ("time", times[1])):
        assert len(table.to_pyarrow_table(filters=[(column, "=", value)])) == 1


@pytest.mark.parametrize("condition", ["v > 5", "v = 'NaN'::double", "v <> 1", "NOT v <= 5"])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_a_nan_is_found_by_a_filter(kind: Any, condition: str, tmp_path: Path) -> None:
    """A Parquet file's own bounds leave NaN out, which readers order above every number."""
    inner = pa.struct([("v", kind)])
    values = [1.0, math.nan, 2.0, None]
    batch = pa.record_batch(
        [pa.array(range(4)), pa.array(values, kind), pa.array([{"v": value} for value in values], inner)],
        names=["row", "v", "s"],
    )
    table = written(tmp_path / "orders", batch, batch.schema)
    for where in (condition, condition.replace("v ", "s['v'] ")):
        query = f"SELECT row FROM orders WHERE {where}"  # noqa: S608 - the test's own SQL
        found: Any = QueryBuilder().register("orders", table).execute(query).read_all()
        assert 1 in pa.table(found).column("row").to_pylist(), where
    file = next((tmp_path / "orders").glob("twopc-*/*/*/*/*/*.parquet"))
    leaves = pq.read_metadata(file).row_group(0)
    assert [leaves.column(index).is_stats_set for index in range(3)] == [True, False, False]


# -- files -------------------------------------------------------------------------------------------------------------


def test_every_file_says_which_calendar_its_dates_use(tmp_path: Path) -> None:
    table = written(tmp_path / "orders", pa.RecordBatch.from_pydict({"row": [1]}), schema_of([]))
    (file,) = table.file_uris()
    assert (pq.read_metadata(file).metadata or {})[b"org.apache.spark.version"] == b"3.5.0"


def test_files_are_closed_when_they_are_large_or_numerous(tmp_path: Path) -> None:
    fields: list[Any] = [("row", pa.int64()), ("part", pa.int64())]
    DeltaTable.create(str(tmp_path), pa.schema(fields), partition_by=["part"])
    store = DeltaSink(name="orders", table_uri=str(tmp_path)).store()
    definition = definition_of(DeltaTable(str(tmp_path)))
    small = NewFiles(store, definition, file_size=1)
    files = RollingFiles(store, small, "twopc-orders/1/0", "t", Limits(waiting=0, open=2))
    for _ in range(2):
        files.write(pa.table({"row": list(range(10)), "part": [n % 5 for n in range(10)]}))
    entries = files.finish()
    assert sorted(entry.rows for entry in entries) == [2] * 10
    many = RollingFiles(store, NewFiles(store, definition), "twopc-orders/1/0", "u", Limits(waiting=0, open=2))
    for _ in range(2):
        many.write(pa.table({"row": list(range(10)), "part": [n % 5 for n in range(10)]}))
    entries = many.finish()
    assert sum(entry.rows for entry in entries) == 20 and 5 <= len(entries) <= 10
    assert {tuple(entry.partition.items()) for entry in entries} == {(("part", str(n)),) for n in range(5)}


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
def test_files_written_through_arrow_and_through_the_storage_of_deltalake_are_identical(
    tmp_path: Path, *, is_local: bool
) -> None:
    store = DeltaSink(name="orders", table_uri=str(tmp_path)).store()
    if not is_local:
        store._local = None
    content = bytes(range(256)) * 10_000
    with store.writing("a/b/one.bin") as stream:
        for at in range(0, len(content), 100_000):
            stream.write(content[at : at + 100_000])
        assert stream.tell() == len(content)
    assert store.read("a/b/one.bin") == content
    assert (store.size_of("a/b/one.bin"), store.size_of("a/b/two.bin"), store.size_of("a/b")) == (
        len(content),
        None,
        None,
    )
    assert (store.listed("a/b"), store.listed("a"), store.listed("c")) == (["one.bin"], [], [])
    assert store.listed("a", directories=True) == ["b"]
    assert store.read("a/b/two.bin") is None
    for _ in range(2):
        store.delete("a/b/one.bin")
    assert store.listed("a/b") == []
    store.close()


def test_a_remote_table_is_written_through_the_storage_of_deltalake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc.sinks.delta.store.local_path", lambda _: None)
    fields: list[Any] = [("row", pa.int64()), ("text", pa.string())]
    DeltaTable.create(str(tmp_path), pa.schema(fields), partition_by=["row"])
    sink = DeltaSink(name="orders", table_uri=str(tmp_path))
    driver = Driver(sink)
    driver.begin()
    driver.prepare(pa.record_batch({"row": [8], "text": ["orphan"]}))
    scan_start = driver.begin()
    handle = driver.prepare(pa.record_batch({"row": [1, 2], "text": ["a", "b"]}))
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    driver.committer.recover_and_abort([handle])
    assert driver.committer.orphans_ended() == 1
    found: Any = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("row")
    assert found.to_pylist() == [{"row": 1, "text": "a"}, {"row": 2, "text": "b"}]
    close_opened()
