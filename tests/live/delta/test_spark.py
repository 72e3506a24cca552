"""A Delta sink under Spark: alone, and in one decision with Kafka."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions

from tests.live.file_query import BATCHES, VALUES, Query, kafka_sink, values
from tests.live.spark_support import spark
from twopc import exactly_once
from twopc.sinks.delta import DeltaSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.live.services import KafkaService
    from twopc.testing.kill_loop import Outcome

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

ROWS = sorted((row["id"], row["n"]) for batch in BATCHES for row in batch)
COLUMNS: list[Any] = [
    pa.field("id", pa.string(), nullable=False),
    ("n", pa.int64()),
    ("key", pa.string()),
    ("value", pa.string()),
]


def created(directory: Path, columns: list[Any], *partitions: str) -> DeltaSink:
    path = str(directory / "orders")
    DeltaTable.create(path, pa.schema(columns), partition_by=list(partitions))
    return DeltaSink(name="orders", table_uri=path)


def contents(sink: DeltaSink) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(sink.table_uri).to_pyarrow_table().to_pylist()
    return found


def rows(sink: DeltaSink) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["n"]) for row in contents(sink))


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
    sink = created(tmp_path, COLUMNS, "id")
    topic = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink, topic))
    query.run_over_a_crash_at(point)
    assert rows(sink) == ROWS
    assert values(topic) == VALUES


def test_two_sinks_of_a_query_write_to_the_same_table_even_if_the_query_crashes_between_their_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each sink finds its own commit, although the other sink's commit is newer."""
    sink = created(tmp_path, COLUMNS)
    query = Query(spark, tmp_path, (sink, DeltaSink(name="again", table_uri=sink.table_uri)))
    query.run_over_a_crash_at("driver.committing@2")
    assert rows(sink) == sorted(2 * ROWS)


def test_readers_see_all_rows_of_a_batch_or_none(spark: SparkSession, tmp_path: Path) -> None:
    sink = created(tmp_path, COLUMNS)
    query = Query(spark, tmp_path, (sink,), {"write_by": "tasks"}, plan=lambda frame: frame.repartition(3))
    query.require_whole_batches(lambda: len(rows(sink)))
    assert rows(sink) == ROWS


@pytest.mark.parametrize("write_by", ["driver", "tasks"])
def test_sparks_types_arrive_unchanged(write_by: str, spark: SparkSession, tmp_path: Path) -> None:
    counts = pa.map_(pa.string(), pa.int64())
    columns: list[Any] = [
        pa.field("id", pa.string(), nullable=False),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("counts", counts),
        ("more", pa.struct([("n", pa.int64()), ("lacking", pa.string())])),
        ("maps", pa.list_(counts)),
        ("inside", pa.struct([("counts", counts)])),
        ("groups", pa.map_(pa.string(), counts)),
    ]
    sink = created(tmp_path, columns, "day", "at")
    query = Query(spark, tmp_path, (sink,), settings={"write_by": write_by})
    query.feed({"id": "a", "n": 1}, {"id": "b", "n": -7})
    query.run(
        "id",
        "CAST(n / 4 AS DECIMAL(10, 2)) AS amount",
        "TIMESTAMP '2026-03-29 01:30:00.123456Z' AS at",
        "TIMESTAMP_NTZ '2026-03-29 02:30:00.123456' AS local",
        "DATE '2026-02-28' AS day",
        "array('a,b', NULL, '\"') AS tags",
        "map('n', n, 'none', NULL) AS counts",
        "struct(n) AS more",
        "array(map('x', n), NULL) AS maps",
        "struct(map('x', n) AS counts) AS inside",
        "map('k', map('x', n)) AS groups",
    )
    found = sorted(contents(sink), key=lambda row: str(row["id"]))
    assert [row.pop("at").timestamp() for row in found] == [
        dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.timezone.utc).timestamp()
    ] * 2
    rest = {
        "local": dt.datetime.fromisoformat("2026-03-29T02:30:00.123456"),
        "day": dt.date(2026, 2, 28),
        "tags": ["a,b", None, '"'],
    }
    assert found == [
        {
            "id": name, "amount": decimal.Decimal(amount), **rest,
            "counts": [("n", n), ("none", None)], "more": {"n": n, "lacking": None},
            "maps": [[("x", n)], None], "inside": {"counts": [("x", n)]}, "groups": [("k", [("x", n)])],
        }
        for name, amount, n in (("a", "0.25", 1), ("b", "-1.75", -7))
    ]  # fmt: skip


def test_bad_rows_become_dead_letters_and_good_rows_are_written(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = created(tmp_path, COLUMNS)
    letters = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), settings={"dead_letter": letters})
    query.feed({"id": "a", "n": 1}, {"id": None, "n": 2}, {"id": "c", "n": 3})
    query.run("id", "n")
    assert rows(sink) == [("a", 1), ("c", 3)]
    assert len(values(letters)) == 1


def test_a_query_in_the_output_mode_complete_adds_its_whole_result_in_each_batch_and_logs_this(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = created(tmp_path, COLUMNS)
    query = Query(
        spark,
        tmp_path,
        (sink,),
        plan=lambda frame: frame.groupBy("id").agg(functions.sum("n").alias("n")),
        output_mode="complete",
    )
    for batch in BATCHES[:2]:
        query.feed(*batch)
    query.run("id", "n")
    assert rows(sink) == [("even", 2), ("even", 6), ("odd", 3), ("odd", 8)]
    assert sum("outputMode('complete')" in record.getMessage() for record in caplog.records) == 1


def test_a_column_missing_from_the_table_is_reported_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = created(tmp_path, COLUMNS[:1] + COLUMNS[2:])
    query = Query(spark, tmp_path, (sink,))
    query.feed(*BATCHES[0])
    assert "column 'n' is not in" in query.refused("id", "n")
    assert contents(sink) == []


@pytest.mark.whole
def test_a_killed_query_writes_every_row_once(kill_loop: Callable[..., Outcome], tmp_path: Path) -> None:
    sink = created(tmp_path, [pa.field("number", pa.int64(), nullable=False), ("key", pa.string())])

    def query(frame: DataFrame, _checkpoint: str) -> DataStreamWriter:
        return frame.select("number").writeStream.foreachBatch(exactly_once(sink))

    kill_loop(lambda: [row["number"] for row in contents(sink)], query=query).require_exactly_once()
