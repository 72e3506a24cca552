"""An Iceberg sink under Spark: alone, and in one decision with Kafka."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from tests.live.file_query import BATCHES, VALUES, Query, kafka_sink, values
from tests.live.spark_support import spark
from tests.warehouse import Warehouse
from twopc import exactly_once
from twopc.sinks.iceberg import IcebergSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.live.services import KafkaService
    from twopc.testing.kill_loop import Outcome

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

TABLE = "shop.orders"
ROWS = sorted((row["id"], row["n"]) for batch in BATCHES for row in batch)
SCHEMA = Schema(
    NestedField(1, "id", StringType(), required=True),
    NestedField(2, "n", LongType()),
    NestedField(3, "key", StringType()),
    NestedField(4, "value", StringType()),
)


def created(
    directory: Path, schema: Schema = SCHEMA, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
) -> tuple[Warehouse, IcebergSink]:
    warehouse = Warehouse(directory / "warehouse", timeout_s=20)
    warehouse.create(TABLE, schema, spec)
    return warehouse, IcebergSink(name="orders", catalog=warehouse.properties, table=TABLE)


def rows(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["n"]) for row in warehouse.rows(TABLE).to_pylist())


@pytest.mark.parametrize(
    "point",
    [
        "driver.decided",
        *(pytest.param(point, marks=pytest.mark.whole) for point in ("driver.prepared", "driver.committed")),
    ],
)
def test_a_table_and_a_topic_contain_every_row_once_after_a_crash_at_any_point(
    point: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    warehouse, sink = created(tmp_path, spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "bucket")))
    topic = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink, topic))
    query.run_over_a_crash_at(point)
    assert rows(warehouse) == ROWS
    assert values(topic) == VALUES


def test_two_sinks_of_a_query_write_to_the_same_table_even_if_the_query_crashes_between_their_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each sink finds its own snapshot, although the other sink's snapshot is newer."""
    warehouse, sink = created(tmp_path)
    other = IcebergSink(name="again", catalog=warehouse.properties, table=TABLE)
    query = Query(spark, tmp_path, (sink, other))
    query.run_over_a_crash_at("driver.committing@2")
    assert rows(warehouse) == sorted(2 * ROWS)


def test_readers_see_all_rows_of_a_batch_or_none(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, sink = created(tmp_path)
    query = Query(spark, tmp_path, (sink,), {"write_by": "tasks"}, plan=lambda frame: frame.repartition(3))
    query.require_whole_batches(lambda: len(rows(warehouse)))
    assert rows(warehouse) == ROWS


@pytest.mark.parametrize("write_by", ["driver", "tasks"])
def test_sparks_types_arrive_unchanged(write_by: str, spark: SparkSession, tmp_path: Path) -> None:
    counts = MapType(11, StringType(), 12, LongType(), value_required=False)
    schema = Schema(
        NestedField(1, "id", StringType(), required=True),
        NestedField(2, "amount", DecimalType(12, 2)),
        NestedField(3, "at", TimestamptzType()),
        NestedField(4, "local", TimestampType()),
        NestedField(5, "day", DateType()),
        NestedField(6, "tags", ListType(10, StringType(), element_required=False)),
        NestedField(7, "counts", counts),
        NestedField(8, "more", StructType(NestedField(13, "n", LongType()), NestedField(14, "lacking", StringType()))),
        NestedField(15, "maps", ListType(16, counts, element_required=False)),
        NestedField(17, "inside", StructType(NestedField(18, "counts", counts))),
        NestedField(19, "groups", MapType(20, StringType(), 21, counts, value_required=False)),
    )
    warehouse, sink = created(tmp_path, schema, PartitionSpec(PartitionField(3, 1000, DayTransform(), "day_of")))
    query = Query(spark, tmp_path, (sink,), settings={"write_by": write_by})
    query.feed({"id": "a", "n": 1}, {"id": "b", "n": -7})
    query.run(
        "id",
        "CAST(n / 4 AS DECIMAL(10, 2)) AS amount",
        "TIMESTAMP '2026-03-29 01:30:00.123456Z' AS at",
        "TIMESTAMP_NTZ '2026-03-29 02:30:00.5' AS local",
        "DATE '2026-02-28' AS day",
        "array('a,b', NULL) AS tags",
        "map('x', CAST(n AS INT), 'y', NULL) AS counts",
        "named_struct('n', n) AS more",
        "array(map('x', n), NULL) AS maps",
        "named_struct('counts', map('x', n)) AS inside",
        "map('k', map('x', n)) AS groups",
    )
    found = sorted(warehouse.rows(TABLE).to_pylist(), key=lambda row: row["id"])
    for row, (name, n) in zip(found, [("a", 1), ("b", -7)], strict=True):
        assert row == {
            "id": name,
            "amount": decimal.Decimal(n) / 4,
            "at": dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.timezone.utc),
            "local": dt.datetime(2026, 3, 29, 2, 30, 0, 500_000),  # noqa: DTZ001 - the column has no time zone
            "day": dt.date(2026, 2, 28),
            "tags": ["a,b", None],
            "counts": [("x", n), ("y", None)],
            "more": {"n": n, "lacking": None},
            "maps": [[("x", n)], None],
            "inside": {"counts": [("x", n)]},
            "groups": [("k", [("x", n)])],
        }


def test_a_column_missing_from_the_table_is_reported_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = Schema(NestedField(1, "id", StringType()))
    warehouse, sink = created(tmp_path, schema)
    query = Query(spark, tmp_path, (sink,))
    query.feed(*BATCHES[0])
    refused = query.refused("id", "n")
    assert f"column 'n' is not in {TABLE} (it has 'id'). Nothing was written" in refused
    assert warehouse.rows(TABLE).num_rows == 0


def test_rows_that_the_table_cannot_store_go_to_the_dead_letters(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    warehouse, sink = created(tmp_path)
    letters = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), settings={"dead_letter": letters, "write_by": "tasks"})
    query.feed({"id": "a", "n": 1}, {"id": None, "n": 2}, {"id": "c", "n": 3})
    query.run("id", "n")
    assert rows(warehouse) == [("a", 1), ("c", 3)]
    [letter] = values(letters)
    assert "2" in letter


@pytest.mark.whole
def test_a_killed_query_writes_every_row_once(tmp_path: Path, kill_loop: Callable[..., Outcome]) -> None:
    warehouse, sink = created(
        tmp_path, Schema(NestedField(1, "number", LongType(), required=True), NestedField(2, "key", StringType()))
    )

    def query(frame: DataFrame, _checkpoint: str) -> DataStreamWriter:
        return frame.select("number").writeStream.foreachBatch(exactly_once(sink, write_by="tasks"))

    kill_loop(lambda: warehouse.column(TABLE, "number"), query=query).require_exactly_once()
    named = {task.file.file_path.rpartition("/")[2] for task in warehouse.table(TABLE).scan().plan_files()}
    assert {path.name for path in warehouse.directory.rglob("*.parquet")} >= named
