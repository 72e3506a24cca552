"""A PostgreSQL sink under Spark: alone, and in one decision with Kafka."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.live.file_query import BATCHES, VALUES, Query, kafka_sink, unique, values
from tests.live.spark_support import spark
from twopc import exactly_once
from twopc.sinks.postgres import PostgresSink
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.live.postgres.services import PostgresService
    from tests.live.services import KafkaService
    from twopc.testing.kill_loop import Outcome

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

ROWS = sorted((row["id"], row["n"]) for batch in BATCHES for row in batch)


def created(service: PostgresService, *columns: str) -> str:
    name = unique()
    execute(service, f"CREATE TABLE {name} ({', '.join(columns)})")
    return name


def execute(service: PostgresService, statement: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(psycopg.connect(service.dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def sink_of(service: PostgresService, table: str, **arguments: Any) -> PostgresSink:
    return PostgresSink(name=table, dsn=service.dsn, table=table, timeout_ms=20_000, **arguments)


@pytest.mark.parametrize(
    "point",
    [
        "driver.decided",
        *(pytest.param(point, marks=pytest.mark.whole) for point in ("driver.prepared", "driver.committed")),
    ],
)
def test_a_table_and_a_topic_contain_every_row_once_after_a_crash_at_any_point(
    point: str, kafka: KafkaService, postgres_server: PostgresService, spark: SparkSession, tmp_path: Path
) -> None:
    table = created(postgres_server, "id text NOT NULL", "n bigint", "key text", "value text")
    topic = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink_of(postgres_server, table), topic))
    query.run_over_a_crash_at(point)
    assert sorted(execute(postgres_server, f"SELECT id, n FROM {table}")) == ROWS
    assert values(topic) == VALUES


def test_all_tasks_of_a_batch_share_one_vote_on_a_table_that_only_the_publish_can_check(
    kafka: KafkaService, postgres_server: PostgresService, spark: SparkSession, tmp_path: Path
) -> None:
    """The driver dies between the decision and the commit of the vote."""
    table = created(postgres_server, "id text NOT NULL", "n bigint UNIQUE", "key text", "value text")
    topic = kafka_sink(kafka.bootstrap_servers)
    sink = sink_of(postgres_server, table, vote="prepared")
    tasks = {"write_by": "tasks"}
    query = Query(spark, tmp_path, (sink, topic), tasks, plan=lambda frame: frame.repartition(3))
    seen: list[tuple[int, int]] = []

    def look() -> None:
        votes = execute(postgres_server, f"SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE 'twopc-{table}-%'")
        slices = execute(postgres_server, f"SELECT count(*) FROM twopc.slice WHERE sink = '{table}'")
        seen.append((votes[0][0], slices[0][0]))

    crash_points.arm("driver.confirmed", look)
    query.run_over_a_crash_at("driver.decided")
    assert sorted(execute(postgres_server, f"SELECT id, n FROM {table}")) == ROWS
    assert values(topic) == VALUES
    assert seen == [(1, 2)]  # two tasks have a row each
    assert execute(postgres_server, f"SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'twopc-{table}-%'") == []


def test_readers_see_all_rows_of_a_batch_or_none(
    postgres_server: PostgresService, spark: SparkSession, tmp_path: Path
) -> None:
    table = created(postgres_server, "id text", "n bigint", "key text", "value text")
    tasks, sinks = {"write_by": "tasks"}, (sink_of(postgres_server, table),)
    query = Query(spark, tmp_path, sinks, tasks, plan=lambda frame: frame.repartition(3))
    query.require_whole_batches(lambda: execute(postgres_server, f"SELECT count(*) FROM {table}")[0][0])
    assert sorted(execute(postgres_server, f"SELECT id, n FROM {table}")) == ROWS


def test_sparks_types_arrive_unchanged(postgres_server: PostgresService, spark: SparkSession, tmp_path: Path) -> None:
    table = created(
        postgres_server,
        "id uuid PRIMARY KEY",
        "amount numeric(12,2)",
        "at timestamptz",
        "day date",
        "tags text[]",
        "more jsonb",
    )
    sink = sink_of(postgres_server, table, mode="upsert", key="id")
    query = Query(spark, tmp_path, (sink,))
    name = "6f1c2a56-0d65-4c3c-9e58-1f7e1c1b2a01"
    query.feed({"id": name, "n": 1}, {"id": name[:-1] + "2", "n": -7})
    expressions = (
        "id",
        "CAST(n / 4 AS DECIMAL(10, 2)) AS amount",
        "TIMESTAMP '2026-03-29 01:30:00.123456Z' AS at",
        "DATE '2026-02-28' AS day",
        "array('a,b', NULL, '\"') AS tags",
        "to_json(struct(n)) AS more",
    )
    query.run(*expressions)
    at = dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.timezone.utc)
    rest = (at, dt.date(2026, 2, 28), ["a,b", None, '"'])
    found = execute(postgres_server, f"SELECT id::text, amount, at, day, tags, more FROM {table} ORDER BY id")
    assert found == [
        (name, decimal.Decimal("0.25"), *rest, {"n": 1}),
        (name[:-1] + "2", decimal.Decimal("-1.75"), *rest, {"n": -7}),
    ]


def test_a_column_missing_from_the_table_is_reported_before_anything_is_written(
    postgres_server: PostgresService, spark: SparkSession, tmp_path: Path
) -> None:
    table = created(postgres_server, "id text")
    query = Query(spark, tmp_path, (sink_of(postgres_server, table),))
    query.feed(*BATCHES[0])
    refused = query.refused("id", "n")
    assert f"column 'n' is not in public.{table} (it has 'id'). Nothing was written" in refused


def numbers_in(service: PostgresService, table: str) -> list[int]:
    return [number for (number,) in execute(service, f"SELECT number FROM {table}")]


@pytest.mark.whole
def test_a_killed_query_writes_every_row_once(
    postgres_server: PostgresService, kill_loop: Callable[..., Outcome]
) -> None:
    table = created(postgres_server, "number bigint NOT NULL", "key text")
    sink = sink_of(postgres_server, table)

    def query(frame: DataFrame, _checkpoint: str) -> DataStreamWriter:
        return frame.select("number").writeStream.foreachBatch(exactly_once(sink))

    kill_loop(lambda: numbers_in(postgres_server, table), query=query).require_exactly_once()


@pytest.mark.whole
def test_a_typical_user_function_duplicates_rows(
    postgres_server: PostgresService, kill_loop: Callable[..., Outcome]
) -> None:
    """One transaction for each partition, as in Spark's own writer."""
    table, dsn = created(postgres_server, "number bigint NOT NULL"), postgres_server.dsn

    def insert(rows: Iterator[Row]) -> None:
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES (%s)".encode(), [(row.number,) for row in rows])

    def write(frame: DataFrame, _batch_id: int) -> None:
        frame.select("number").foreachPartition(insert)

    outcome = kill_loop(lambda: numbers_in(postgres_server, table), foreach_batch=write, rows=40, kills=1)
    with pytest.raises(AssertionError, match="duplicated"):
        outcome.require_exactly_once()
