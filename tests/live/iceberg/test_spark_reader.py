"""Spark's own Iceberg reads what the sink wrote, and its maintenance runs alongside the sink."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, Transform
from pyiceberg.types import LongType, NestedField, StructType, UUIDType

from tests.unit.iceberg_support import SCHEMA, TABLE, TAG, Shop
from tests.unit.lake_support import prepare
from twopc import IcebergSink
from twopc.attempt import Evidence
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.warehouse import RestWarehouse

    Sql = Callable[[str], list[dict[str, Any]]]

_ROOT = Path(__file__).parents[3]
_ANSWER = "answer: "

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not pyspark.__version__.startswith(("3.5.", "4.0.")), reason="Iceberg 1.10 has no jar for this Spark"
    ),
]


@pytest.fixture
def sql(rest_warehouse: RestWarehouse, tmp_path: Path) -> Iterator[Sql]:
    """Runs a statement in Spark."""
    directory = tmp_path / "spark"
    directory.mkdir()
    script = [sys.executable, "-m", "tests.live.iceberg.spark_reader", rest_warehouse.properties["uri"], str(directory)]
    log = tmp_path / "spark.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            script,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            text=True,
        )

    def run(statement: str) -> list[dict[str, Any]]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(statement) + "\n")
        process.stdin.flush()
        line = next((line for line in process.stdout if line.startswith(_ANSWER)), None)
        assert line is not None, log.read_text()[-2000:]
        answer: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
        assert "error" not in answer, f"{statement}: {answer['error']}"
        rows: list[dict[str, Any]] = answer["rows"]
        return rows

    yield run
    with contextlib.suppress(OSError):
        process.communicate(timeout=60)


@pytest.fixture
def shop(rest_warehouse: RestWarehouse) -> Iterator[Shop]:
    yield Shop(rest_warehouse, PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "bucket")))
    close_opened()


def test_spark_reads_and_maintains_the_table_alongside_the_sink(shop: Shop, sql: Sql) -> None:
    driver = Driver(shop.sink)
    written: list[int] = []
    last: tuple[Any, Any] | None = None

    def write(*values: int, batch: int) -> None:
        nonlocal last
        scan_start = driver.begin()
        handle = prepare(driver, shop.sink, *values, batch=batch, attempt=batch)
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
        driver.committer.recover_and_abort([handle])
        written.extend(values)
        last = handle, scan_start

    def read() -> list[int]:
        return [row["value"] for row in sql(f"SELECT value FROM ice.{TABLE} ORDER BY value")]

    assert [field.name for field in SCHEMA.fields] == [row["col_name"] for row in sql(f"DESCRIBE ice.{TABLE}")][:2]
    for batch in range(3):
        write(*range(10 * batch, 10 * batch + 5), batch=batch)
    assert read() == written
    assert sql(f"SELECT count(*) AS n FROM ice.{TABLE} WHERE value = 12") == [{"n": 1}]
    assert sql(f"SELECT sum(record_count) AS n FROM ice.{TABLE}.files") == [{"n": 15}]
    assert sql(f"SELECT count(*) AS n FROM ice.{TABLE} VERSION AS OF '{TAG}'") == [{"n": 15}]

    sql(f"ALTER TABLE ice.{TABLE} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    sql(f"DELETE FROM ice.{TABLE} WHERE value = 11")
    written.remove(11)
    assert sql(f"SELECT count(*) AS n FROM ice.{TABLE}.delete_files")[0]["n"] > 0
    write(11, 30, batch=3)
    assert read() == sorted(written), "a delete must not apply to rows that are added later"

    prepared = prepare(driver, shop.sink, 40, batch=4, attempt=4)
    sql(f"CALL ice.system.rewrite_data_files(table => '{TABLE}', options => map('rewrite-all', 'true'))")
    sql(f"CALL ice.system.rewrite_manifests('{TABLE}')")
    sql(f"INSERT INTO ice.{TABLE} VALUES (50, 'by Spark')")
    written.append(50)
    sql(f"CALL ice.system.expire_snapshots(table => '{TABLE}', older_than => TIMESTAMP '2999-01-01 00:00:00')")
    sql(f"CALL ice.system.remove_orphan_files(table => '{TABLE}', older_than => TIMESTAMP '2020-01-01 00:00:00')")
    assert last is not None
    handle, scan_start = last
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert read() == sorted(written)
    assert [prepared] != [handle]

    driver = restarted
    write(40, batch=4)
    assert read() == sorted(written)
    assert sql(f"SELECT count(*) AS n FROM ice.{TABLE} VERSION AS OF '{TAG}'") == [{"n": len(written)}]


def test_a_stream_that_reads_the_table_continues_after_each_start_of_a_query(shop: Shop, sql: Sql) -> None:
    """Each start adds an empty snapshot to the branch."""
    for batch in range(3):
        Driver(shop.sink)
        driver = Driver(shop.sink)
        scan_start = driver.begin()
        assert driver.commit([prepare(driver, shop.sink, batch, batch=batch)], scan_start) == [Evidence.COMMITTED]
        assert sorted(row["value"] for row in sql(f"STREAM ice.{TABLE}")) == list(range(batch + 1))
        Driver(shop.sink)
        assert len(sql(f"STREAM ice.{TABLE}")) == batch + 1


#: Iceberg for Java compares UUIDs as signed numbers, so it considers the second one smaller.
UUIDS = ("00000000-0000-0000-0000-000000000001", "f79c3e09-677c-4bbd-a479-3f349cb785e7")


@pytest.mark.parametrize("transform", [None, BucketTransform(3)], ids=str)
def test_spark_finds_each_uuid(transform: Transform[Any, Any] | None, rest_warehouse: RestWarehouse, sql: Sql) -> None:
    inner = NestedField(4, "key", UUIDType())
    schema = Schema(
        NestedField(1, "row", LongType()), NestedField(2, "key", UUIDType()), NestedField(3, "s", StructType(inner))
    )
    spec = PartitionSpec(PartitionField(2, 1000, transform, "part")) if transform else PartitionSpec()
    rest_warehouse.create("shop.keys", schema, spec)
    driver = Driver(sink := IcebergSink(name="keys", catalog=rest_warehouse.properties, table="shop.keys"))
    scan_start = driver.begin()
    rows = [{"row": row, "key": key, "s": {"key": key}} for row, key in enumerate(UUIDS)]
    assert driver.commit([driver.prepare(pa.RecordBatch.from_pylist(rows))], scan_start) == [Evidence.COMMITTED]
    close_opened()
    found = {
        (column, row): sql(f"SELECT row FROM ice.{sink.table} WHERE {column} = '{key}'")
        for column in ("key", "s.key")
        for row, key in enumerate(UUIDS)
    }
    assert found == {(column, row): [{"row": row}] for column, row in found}
