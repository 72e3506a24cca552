"""Several sinks with one decision, under Spark: two Kafka clusters and Redis, and Redis or HBase without Kafka."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.broker_changes import alter_topic
from tests.live.file_query import (
    BATCHES,
    SUMS,
    VALUES,
    Query,
    adding,
    counted,
    counters,
    counting,
    kafka_sink,
    redis_client,
    unique,
    values,
)
from tests.live.hbase.conftest import _shared_store, hbase_server, store
from tests.live.hbase.support import sink_of as hbase_sink
from tests.live.redis.conftest import redis_server
from tests.live.spark_support import spark
from tests.reader import committed, records
from twopc import CheckpointConfig
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.hbase.mappings import Increment
from twopc.sinks.kafka.handle import ProducerIdentity
from twopc.sinks.kafka.transactions import TransactionClient
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy, ListPush
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.hbase.support import Store
    from tests.live.redis.services import RedisService
    from tests.live.services import KafkaService

__all__ = ["_shared_store", "hbase_server", "redis_server", "spark", "store"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def whole(*points: str | None) -> list[Any]:
    """Parameters that only `make whole` runs."""
    return [pytest.param(point, marks=pytest.mark.whole) for point in points]


@pytest.fixture(scope="module")
def other_kafka() -> Iterator[LocalKafka]:
    """A second cluster."""
    with LocalKafka() as kafka:
        yield kafka


@pytest.mark.whole
@pytest.mark.parametrize(
    "point", ["driver.committing@2", *whole("driver.prepared", "driver.decided", "driver.committed")]
)
def test_two_kafka_clusters_and_redis_contain_every_row_once_after_a_crash_at_any_point(
    point: str,
    kafka: KafkaService,
    other_kafka: LocalKafka,
    redis_server: RedisService,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    here, there, totals = (
        kafka_sink(kafka.bootstrap_servers),
        kafka_sink(other_kafka.bootstrap_servers),
        adding(redis_server),
    )
    query = Query(spark, tmp_path, (totals, there, here))
    query.run_over_a_crash_at(point)
    assert values(here) == values(there) == VALUES
    assert counters(redis_server, totals.name) == SUMS


def test_a_batch_is_evaluated_once_for_all_sinks(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    evaluated = tmp_path / "evaluated"
    sinks = (kafka_sink(kafka.bootstrap_servers), adding(redis_server))
    query = Query(spark, tmp_path, sinks, plan=counting(evaluated))
    for rows in BATCHES:
        query.feed(*rows)
    query.run()
    assert counted(evaluated) == sum(map(len, BATCHES))


@pytest.mark.parametrize("beside", ["beside Kafka", *whole("alone")])
@pytest.mark.parametrize("way", ["tasks", *whole("driver")])
def test_a_counter_that_takes_no_column_counts_every_row(
    way: str, beside: str, kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    """The counter stood still, and the batch counted as complete."""
    name = unique()
    total = RedisSink(name=name, url=redis_server.url, mapping=IncrBy(f"{name}:count"))
    events = [] if beside == "alone" else [kafka_sink(kafka.bootstrap_servers)]
    query = Query(spark, tmp_path, (total, *events), {"write_by": way})
    for rows in BATCHES:
        query.feed(*rows)
    query.fail_at("driver.committing")
    query.run()
    assert counters(redis_server, name) == {"count": sum(map(len, BATCHES))}
    assert all(values(sink) == VALUES for sink in events)


@pytest.mark.whole
@pytest.mark.parametrize("settings", [{"write_by": "driver"}, {"write_by": "tasks"}, {"staging": True}], ids=str)
def test_a_lost_count_of_rows_is_repaired_although_the_sink_takes_no_column(
    settings: dict[str, Any], kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    name = unique()
    total = RedisSink(name=name, url=redis_server.url, mapping=IncrBy(f"{name}:count"))
    letters = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (total,), {**settings, "dead_letter": letters})
    query.feed(*BATCHES[0])
    query.fail_at("driver.decided")
    with contextlib.closing(redis_client(redis_server)) as client:
        client.delete(*client.scan_iter(f"twopc:{name}:*:slice:*", count=1000))
    query.run()
    assert counters(redis_server, name) == {"count": len(BATCHES[0])}


def test_a_batch_becomes_visible_in_kafka_before_it_does_in_redis(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    # By name, the Redis sink would come first.
    events = dataclasses.replace(kafka_sink(kafka.bootstrap_servers), name=f"z{unique()}")
    totals = dataclasses.replace(adding(redis_server), name=f"a{unique()}")
    query = Query(spark, tmp_path, (totals, events))
    query.feed(*BATCHES[0])
    seen: list[Any] = []
    crash_points.arm("driver.committing", lambda: None)
    crash_points.arm(
        "driver.committing", lambda: seen.append(counters(redis_server, totals.mapping.key.partition(":")[0]))
    )
    try:
        query.run()
    finally:
        crash_points.disarm()
    assert seen == [{}]
    assert sum(values(events).values()) == 2


@pytest.mark.parametrize(
    "point", ["driver.decided", *whole("driver.prepared", "driver.committing", "driver.committed")]
)
def test_redis_alone_contains_every_row_once_after_a_crash_at_any_point(
    point: str, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    totals = adding(redis_server)
    query = Query(spark, tmp_path, (totals,), {"staging": True})
    query.run_over_a_crash_at(point)
    assert counters(redis_server, totals.name) == SUMS


@pytest.mark.whole
@pytest.mark.parametrize("point", ["driver.prepared", "driver.decided", "driver.committing", "driver.committed"])
def test_hbase_alone_contains_every_row_once_after_a_crash_at_any_point(
    point: str, store: Store, spark: SparkSession, tmp_path: Path
) -> None:
    mapping = Increment(f"{store.prefix}:{{id}}", {"d:v": "n"})
    query = Query(spark, tmp_path, (hbase_sink(store, mapping),))
    query.run_over_a_crash_at(point)
    assert {kind: store.total(kind) for kind in SUMS} == SUMS


def test_transactions_lost_in_redis_are_applied_from_staged_rows(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    events, totals = kafka_sink(kafka.bootstrap_servers), adding(redis_server)
    query = Query(spark, tmp_path, (events, totals), {"staging": True})
    query.feed(*BATCHES[0])
    query.fail_at("driver.decided")
    with contextlib.closing(redis_client(redis_server)) as client:
        client.delete(*client.scan_iter(f"twopc:{totals.name}:*:slice:*", count=1000))
    query.run()
    assert counters(redis_server, totals.name) == {"odd": 3, "even": 2}
    assert values(events) == Counter(["3", "2"])


# -- columns -----------------------------------------------------------------------------------------------------------


def test_each_sink_may_have_its_own_columns(kafka: KafkaService, spark: SparkSession, tmp_path: Path) -> None:
    plain, written = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)
    query = Query(
        spark, tmp_path, (plain, written), {"select": {written.name: ["id AS key", "to_json(struct(*)) AS value"]}}
    )
    query.feed({"id": "a", "n": 1})
    query.run()
    assert values(plain) == Counter(["1"])
    assert [json.loads(value)["id"] for value in values(written)] == ["a"]


@pytest.mark.parametrize(
    ("expressions", "named"),
    [(("id AS name", "n"), "has no column 'id'"), (("id", "CAST(n AS DOUBLE) AS n"), "column 'n' is double")],
)
def test_a_missing_or_wrong_column_for_redis_is_reported_before_any_row_is_read(
    expressions: tuple[str, ...], named: str, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    totals = adding(redis_server)
    query = Query(spark, tmp_path, (totals,))
    query.feed({"id": "a", "n": 1})
    message = query.refused(*expressions)
    assert "SchemaError" in message and named in message and totals.name in message
    assert counters(redis_server, totals.name) == {}


# -- rows that a sink cannot store -------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["driver.decided", *whole(None, "driver.prepared", "driver.committing")])
def test_a_bad_row_is_in_the_dead_letters_once_and_nowhere_else(
    point: str | None, kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    events, letters = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)
    name = unique()
    lists = RedisSink(name=name, url=redis_server.url, mapping=ListPush(f"{name}:{{id}}", "n"))
    settings = {"dead_letter": letters}
    query = Query(spark, tmp_path, (events, lists), settings)
    query.feed({"id": "a", "n": 1}, {"id": None, "n": 2}, {"id": "a", "n": 3})
    if point is not None:
        query.fail_at(point)
    query.feed({"id": "a", "n": 4})
    query.run()
    assert values(events) == Counter(["1", "3", "4"])
    with contextlib.closing(redis_client(redis_server)) as client:
        assert client.lrange(f"{name}:a", 0, -1) == [b"1", b"3", b"4"]
    [letter] = records(kafka.bootstrap_servers, letters.topic or "")
    assert json.loads(letter.value() or b"") == {"id": None, "n": 2, "key": None, "value": "2"}
    cause = dict(letter.headers() or [])["twopc.cause"]
    assert isinstance(cause, bytes) and f"sink '{name}': column 'id' is null" in cause.decode()


@pytest.mark.parametrize("direct", ["driver", "tasks"])
def test_a_bad_rows_columns_of_any_type_are_in_its_dead_letter(
    direct: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """No sink takes these columns, but the dead letter contains them.

    All columns except the map used to stop the query, the last five even without a bad row.
    """
    columns = {
        "TIMESTAMP_SECONDS(1700000000000L) AS milliseconds": {"microseconds": 1_700_000_000_000_000_000},
        "DATE_ADD(DATE'1970-01-01', 4000000) AS day": {"days": 4_000_000},
        "MAP('k', 1) AS map": [["k", 1]],
        "ARRAY(MAP('k', 1)) AS maps": [[["k", 1]]],
        "ARRAY(MAP(X'FF01', TIMESTAMP'1970-01-01 00:00:00Z')) AS keys": [
            [[{"base64": "/wE="}, "1970-01-01T00:00:00Z"]]
        ],
        "NAMED_STRUCT('k', MAP(1, 2), 'K', 3) AS cases": "{{1 -> 2}, 3}",
        "INTERVAL '1-2' YEAR TO MONTH AS years": "INTERVAL '1-2' YEAR TO MONTH",
        "NAMED_STRUCT('x', 1, 'x', 2) AS twice": "{1, 2}",
    }
    events, letters = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)
    settings = {"dead_letter": letters, "write_by": direct}
    partition = "CAST(IF(n = 2, -1, 0) AS INT) AS partition"
    query = Query(
        spark, tmp_path, (events,), settings, plan=lambda frame: frame.selectExpr("value", partition, *columns)
    )
    query.feed({"id": "a", "n": 1}, {"id": "b", "n": 2})
    query.run()
    assert values(events) == Counter(["1"])
    [letter] = records(kafka.bootstrap_servers, letters.topic or "")
    others = {name.rpartition(" ")[2]: expected for name, expected in columns.items()}
    assert json.loads(letter.value() or b"") == {"value": "2", "partition": -1, **others}


@pytest.mark.parametrize(
    ("limited", "direct"),
    [("client", "driver"), pytest.param("topic", "tasks", marks=pytest.mark.whole)],
)
def test_a_dead_letter_fits_its_own_sink(
    limited: str, direct: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """The value and the cause both contain the large topic. A refused letter would stop the query at every start."""
    events = dataclasses.replace(kafka_sink(kafka.bootstrap_servers), topic=None)
    letters = kafka_sink(
        kafka.bootstrap_servers, options={"kafka.message.max.bytes": "2000"} if limited == "client" else {}
    )
    if limited == "topic":
        alter_topic(kafka.bootstrap_servers, letters.topic or "", {"max.message.bytes": "2000"})
    settings = {"dead_letter": letters, "write_by": direct, "checkpoints": CheckpointConfig(max_attempts=1)}
    query = Query(spark, tmp_path, (events,), settings, schema="topic STRING, value STRING")
    large = "x" * 300_000
    query.feed({"topic": events.name, "value": "good"}, {"topic": large, "value": "bad"})
    query.run("topic", "value")
    assert committed(kafka.bootstrap_servers, events.name) == Counter(["good"])
    [letter] = records(kafka.bootstrap_servers, letters.topic or "")
    topic = {"text": large[:1_000], "cut": True, "characters": 300_000}
    assert json.loads(letter.value() or b"") == {"topic": topic, "value": "bad"}
    cause = dict(letter.headers() or [])["twopc.cause"]
    assert isinstance(cause, bytes) and cause.startswith(f"sink '{events.name}': 'xxx".encode())


@pytest.mark.whole
def test_a_sink_with_a_weaker_guarantee_duplicates_only_its_own_rows(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    events, letters = (kafka_sink(kafka.bootstrap_servers, guarantee="AT_LEAST_ONCE") for _ in range(2))
    name = unique()
    lists = RedisSink(name=name, url=redis_server.url, mapping=ListPush(f"{name}:{{id}}", "n"))
    query = Query(
        spark, tmp_path, (events, lists), {"dead_letter": letters, "checkpoints": CheckpointConfig(max_attempts=1)}
    )
    query.feed({"id": "a", "n": 1}, {"id": None, "n": 2}, {"id": "a", "n": 3})
    query.fail_at("driver.confirmed")
    query.feed({"id": "a", "n": 4})
    query.run()
    assert values(events) == Counter({"1": 2, "3": 2, "4": 1})
    with contextlib.closing(redis_client(redis_server)) as client:
        assert client.lrange(f"{name}:a", 0, -1) == [b"1", b"3", b"4"]
    found = records(kafka.bootstrap_servers, letters.topic or "")
    assert [json.loads(letter.value() or b"")["n"] for letter in found] == [2, 2]


def test_a_row_that_is_no_longer_bad_in_a_replay_is_not_duplicated(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """Its dead letter is committed, so the lost transaction may only be rewritten without it (rule 9)."""
    limited = kafka_sink(kafka.bootstrap_servers, options={"kafka.message.max.bytes": "1000"})
    letters = kafka_sink(kafka.bootstrap_servers)
    settings = {"dead_letter": letters}
    query = Query(spark, tmp_path, (limited,), settings, schema="id STRING, n STRING")
    query.feed({"id": "a", "n": "small"}, {"id": "a", "n": "b" * 1001})
    query.fail_at("driver.decided")
    with contextlib.closing(TransactionClient({"bootstrap_servers": [kafka.bootstrap_servers]})) as client:
        client.fence([ProducerIdentity(name) for name in client.list_open(f"{limited.name}.").transactional_ids])

    # The operator raises the limit and restarts.
    query.sinks = (dataclasses.replace(limited, options={"kafka.message.max.bytes": "2000"}),)
    message = query.refused()
    assert "InDoubtError" in message and limited.name in message
    assert not values(limited)

    query.sinks = (limited,)
    query.run()
    assert values(limited) == Counter(["small"])
    [letter] = records(kafka.bootstrap_servers, letters.topic or "")
    assert json.loads(letter.value() or b"")["n"] == "b" * 1001


def test_a_bad_row_without_dead_letters_stops_the_batch_and_nothing_is_visible(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    events, totals = kafka_sink(kafka.bootstrap_servers), adding(redis_server)
    query = Query(spark, tmp_path, (events, totals))
    query.feed({"id": "a", "n": 1}, {"id": None, "n": 2})
    message = query.refused()
    assert "BadRecordError" in message and "column 'id' is null" in message
    assert not values(events) and counters(redis_server, totals.name) == {}
