"""A file's column bounds never make a reader skip a row, or a DELETE remove a row that it does not match."""

from __future__ import annotations

import math
import random
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, StructType, UUIDType

from tests.unit.iceberg_support import Shop
from tests.warehouse import Warehouse
from twopc import IcebergSink
from twopc.sinks.iceberg.private import ParquetFile
from twopc.sinks.iceberg.rows import fit_rows
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

_LAST_BEFORE_SURROGATES, _LAST = "\ud7ff", "\U0010ffff"
_CHARACTERS = ("", "a", "b", "z", "é", _LAST_BEFORE_SURROGATES, "\ue000", _LAST, "b" * 15, "c" * 17, "z" * 5_000)


def written(table: Table, *groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of a file with these row groups."""
    file = ParquetFile(table.io, table.metadata, f"{table.location()}/data/{random.getrandbits(64)}.parquet")
    for rows in groups:
        found = pa.RecordBatch.from_pylist(rows)
        file.write(fit_rows(found.schema, table.schema(), table.spec(), "t").convert(found))
    return file.close()


@pytest.mark.parametrize("mode", ["", "full", "truncate(3)", "counts", "none"])
def test_no_text_is_outside_the_bounds(mode: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    draw = random.Random(seed)
    properties = {"write.metadata.metrics.default": mode} if mode else {}
    table = Shop(tmp_path, UNPARTITIONED_PARTITION_SPEC, **properties).table()
    for _ in range(60):
        groups = [
            ["".join(draw.choices(_CHARACTERS, k=draw.randrange(4))) for _ in range(draw.randrange(1, 4))]
            for _ in range(draw.randrange(1, 4))
        ]
        found = written(table, *([{"value": 1, "note": note} for note in group] for group in groups))
        notes = [note.encode() for group in groups for note in group]
        assert found["lower_bounds"].get(2, b"") <= min(notes), (seed, groups)
        assert found["upper_bounds"].get(2, max(notes)) >= max(notes), (seed, groups)
        assert found["null_value_counts"].get(2, 0) == 0


def test_a_row_group_with_a_long_text_leaves_no_bounds_of_the_other_groups(tmp_path: Path) -> None:
    found = written(Shop(tmp_path).table(), [{"value": 1, "note": "a"}], [{"value": 2, "note": "z" * 5_000}])
    assert (set(found["lower_bounds"]), set(found["upper_bounds"])) == ({1}, {1})
    assert found["upper_bounds"][1] == to_bytes(LongType(), 2)


def test_a_text_cut_before_a_surrogate_can_be_written(tmp_path: Path) -> None:
    text = "a" * 15 + _LAST_BEFORE_SURROGATES
    table = Shop(tmp_path).table()
    assert 2 not in written(table, [{"value": 1, "note": text + "more"}])["upper_bounds"]
    assert written(table, [{"value": 1, "note": text}])["upper_bounds"][2] == text.encode()


def test_a_uuid_has_neither_bounds_nor_a_dictionary(tmp_path: Path) -> None:
    """Iceberg for Java compares UUIDs as signed numbers, and fails on a UUID in a Parquet file's bounds or dictionary."""
    warehouse = Warehouse(tmp_path / "warehouse")
    fields = [
        NestedField(0, "n", LongType()),
        NestedField(0, "a b", UUIDType()),
        NestedField(0, "s", StructType(NestedField(0, "key", UUIDType()), NestedField(0, "n", LongType()))),
        NestedField(0, "l", ListType(0, UUIDType(), element_required=False)),
    ]
    warehouse.create("shop.keys", Schema(*fields))
    some = [str(uuid.UUID(int=1)), str(uuid.UUID(int=2**128 - 1))]
    rows = [{"n": 1, "a b": key, "s": {"key": key, "n": 1}, "l": [key, None]} for key in some]
    found = written(warehouse.table("shop.keys"), rows)
    assert set(found["lower_bounds"]) == set(found["upper_bounds"]) == {1}
    [file] = tmp_path.rglob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert all(one.is_stats_set is one.has_dictionary_page for one in columns)
    assert {one.path_in_schema: one.is_stats_set for one in columns} == {
        "n": True,
        "a_x20b": False,
        "s.key": False,
        "s.n": True,
        "l.list.element": False,
    }


def test_a_delete_spares_rows_that_it_does_not_match(tmp_path: Path) -> None:
    """NaN is not less than 5, although no bound says that it is there."""
    warehouse = Warehouse(tmp_path / "warehouse", timeout_s=0.2)
    inner = NestedField(4, "x", DoubleType())
    fields = [
        NestedField(1, "id", LongType()),
        NestedField(2, "x", DoubleType()),
        NestedField(3, "s", StructType(inner)),
    ]
    warehouse.create("shop.points", Schema(*fields, NestedField(5, "note", StringType())))
    sink = IcebergSink(name="points", catalog=warehouse.properties, table="shop.points")
    driver = Driver(sink)
    scan_start = driver.begin()
    xs = [1.0, math.nan]
    rows = pa.RecordBatch.from_pylist([{"id": number, "x": x, "s": {"x": x}} for number, x in enumerate(xs)])
    driver.commit([driver.prepare(rows)], scan_start)
    assert driver.committer.blockers() == []
    with warehouse.catalog() as catalog:
        for column in ("x", "s.x"):
            catalog.load_table("shop.points").delete(f"{column} < 5")
    assert sorted(warehouse.column("shop.points", "id")) == [1]
    close_opened()
