"""The sinks that the contract suite runs against: one function per sink, and one line in :data:`SINKS`."""

from __future__ import annotations

import contextlib
import sqlite3
import time
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
import redis
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from tests.contract.guide import SqliteSink, create_tables
from tests.live import pipeline
from tests.reader import committed
from tests.unit.fake_sink import FakeSink, World
from tests.warehouse import Warehouse
from twopc.sinks.delta import DeltaSink
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.mappings import COUNTER, Append, Increment, Put
from twopc.sinks.iceberg import IcebergSink
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.postgres import PostgresSink
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy, ListPush, Set
from twopc.testing.contract import Case, Crash, Driver, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.live.hbase.services import HBaseService
    from tests.live.hbase.support import Store
    from tests.live.postgres.services import PostgresService
    from tests.live.redis.services import RedisService
    from tests.live.services import KafkaService
    from twopc.sinks.hbase import mappings as hbase_mappings
    from twopc.sinks.redis.mappings import Mapping

_READY_TIMEOUT_S = 30


# -- the sinks ---------------------------------------------------------------------------------------------------------


def fake(request: pytest.FixtureRequest) -> Case:
    """The in-memory sink of the unit tests."""
    del request
    world = World()

    def crash() -> None:
        world.generation += 1
        raise Crash

    @contextlib.contextmanager
    def silence() -> Iterator[None]:
        world.store().unreachable = True
        yield
        world.store().unreachable = False

    return Case(FakeSink(world), numbers, world.store().visible, crash, silence, is_outside=False, notices_copies=False)


def guide(request: pytest.FixtureRequest) -> Case:
    """The sink that docs/writing-a-sink.md builds."""
    path: Path = request.getfixturevalue("tmp_path") / "payments.db"
    create_tables(path)

    def rows(values: Sequence[int]) -> pa.RecordBatch:
        return pa.record_batch(
            {
                "customer": pa.array([f"c{value}" for value in values], pa.string()),
                "cents": pa.array(values, pa.int64()),
            }
        )

    def visible() -> list[int]:
        with contextlib.closing(sqlite3.connect(path)) as db:
            return [cents for (cents,) in db.execute("SELECT cents FROM payments ORDER BY cents")]

    @contextlib.contextmanager
    def silence() -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")  # takes SQLite's only write lock
            yield

    return Case(SqliteSink("payments", str(path), timeout_ms=200), rows, visible, silence=silence)


def kafka(request: pytest.FixtureRequest) -> Case:
    service: KafkaService = request.getfixturevalue("kafka")
    name = f"c{uuid.uuid4().hex[:10]}"
    topic = pipeline.create_topic(service.bootstrap_servers, f"{name}-out")
    sink = KafkaSink(name=name, bootstrap_servers=service.bootstrap_servers, topic=topic, timeout_ms=5_000)

    def rows(values: Sequence[int]) -> pa.RecordBatch:
        return pipeline.record_batch([str(value) for value in values])

    def visible() -> list[int]:
        return sorted(int(value) for value in committed(service.bootstrap_servers, topic).elements())

    silence = _pausing(service.local, lambda: _has_controller(service))
    return Case(sink, rows, visible, silence=silence, notices_copies=False)


def _has_controller(service: KafkaService) -> bool:
    """Whether the broker serves again; its controller takes a silent broker out of service."""
    metadata = AdminClient({"bootstrap.servers": service.bootstrap_servers}).list_topics(timeout=10)
    return metadata.controller_id in metadata.brokers


def redis_strings(request: pytest.FixtureRequest) -> Case:
    return _redis(
        request, lambda name: Set(f"{name}:{{value}}", "value"), lambda client, key: [int(client.get(key) or 0)]
    )


def redis_counters(request: pytest.FixtureRequest) -> Case:
    def counted(client: redis.Redis, key: bytes) -> list[int]:
        return [int(key.rpartition(b":")[2])] * int(client.get(key) or 0)

    return _redis(request, lambda name: IncrBy(f"{name}:{{value}}"), counted)


def redis_lists(request: pytest.FixtureRequest) -> Case:
    def pushed(client: redis.Redis, key: bytes) -> list[int]:
        return [int(value) for value in client.lrange(key, 0, -1)]

    return _redis(request, lambda name: ListPush(f"{name}:rows", "value"), pushed)


def redis_cluster_counters(request: pytest.FixtureRequest) -> Case:
    servers = request.getfixturevalue("redis_cluster")
    name = f"c{uuid.uuid4().hex[:10]}"
    sink = RedisSink(name=name, url=servers[0].url, cluster=True, mapping=IncrBy(f"{name}:{{value}}"), timeout_ms=2_000)

    def visible() -> list[int]:
        with contextlib.closing(redis.RedisCluster.from_url(servers[0].url)) as client:
            found = {
                int(k.rpartition(b":")[2]): int(client.get(k) or 0) for k in client.scan_iter(f"{name}:*", count=1000)
            }
        return sorted(number for number, count in found.items() for _ in range(count))

    return Case(sink, numbers, visible)


def _redis(
    request: pytest.FixtureRequest,
    mapping: Callable[[str], Mapping],
    read: Callable[[redis.Redis, bytes], list[int]],
) -> Case:
    service: RedisService = request.getfixturevalue("redis_server")
    name = f"c{uuid.uuid4().hex[:10]}"
    # Two commands per chunk: the smallest chunk with a first and a last command.
    sink = RedisSink(name=name, url=service.url, mapping=mapping(name), timeout_ms=1_000, chunk_rows=2)

    def visible() -> list[int]:
        with contextlib.closing(redis.Redis.from_url(service.url)) as client:
            return sorted(value for key in client.scan_iter(f"{name}:*", count=1000) for value in read(client, key))

    return Case(sink, numbers, visible, silence=_pausing(service.local))


def hbase_puts(request: pytest.FixtureRequest) -> Case:
    return _hbase(request, lambda row: Put(row + ":{value}", {"d:v": "value"}), lambda _, value: [int(value)])


def hbase_counters(request: pytest.FixtureRequest) -> Case:
    def counted(row: bytes, value: bytes) -> list[int]:
        return [int(row.rpartition(b":")[2])] * int(COUNTER.unpack(value)[0])

    return _hbase(request, lambda row: Increment(row + ":{value}", {"d:v": "one"}), counted)


def hbase_appends(request: pytest.FixtureRequest) -> Case:
    def appended(row: bytes, value: bytes) -> list[int]:
        number = row.rpartition(b":")[2]
        assert value == number * (len(value) // len(number))
        return [int(number)] * (len(value) // len(number))

    return _hbase(request, lambda row: Append(row + ":{value}", {"d:v": "value"}), appended)


def _hbase(
    request: pytest.FixtureRequest,
    mapping: Callable[[str], hbase_mappings.Mapping],
    read: Callable[[bytes, bytes], list[int]],
) -> Case:
    service: HBaseService = request.getfixturevalue("hbase_server")
    store: Store = request.getfixturevalue("store")
    # Two rows per chunk: the smallest chunk with a first and a last row.
    sink = HBaseSink(
        name=store.prefix,
        zookeeper=service.zookeeper,
        table=store.table,
        mapping=mapping(store.prefix),
        timeout_ms=2_000,
        chunk_rows=2,
    )

    def visible() -> list[int]:
        return sorted(n for row, cells in store.all_cells().items() for n in read(row, cells[b"d", b"v"].value))

    def rows(values: Sequence[int]) -> pa.RecordBatch:
        return pa.record_batch({"value": pa.array(values, pa.int64()), "one": pa.array([1] * len(values), pa.int64())})

    return Case(sink, rows, visible, silence=_pausing(service.local))


def postgres_append(request: pytest.FixtureRequest) -> Case:
    return _postgres(request, "value bigint NOT NULL, note text DEFAULT 'none'")


def postgres_upsert(request: pytest.FixtureRequest) -> Case:
    return _postgres(request, "value bigint PRIMARY KEY, note text", mode="upsert", key="value")


def postgres_prepared(request: pytest.FixtureRequest) -> Case:
    service: PostgresService = request.getfixturevalue("postgres_server")
    known = f"k{uuid.uuid4().hex[:10]}"
    with psycopg.connect(service.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {known} (value bigint PRIMARY KEY)".encode())
        connection.execute(f"INSERT INTO {known} SELECT generate_series(0, 999)".encode())
    case = _postgres(request, f"value bigint REFERENCES {known}", vote="prepared")

    def roll_back_votes() -> None:  # votes outlive the test, and even the server
        Driver(case.sink).committer.recover_and_abort([])

    request.addfinalizer(roll_back_votes)
    return case


def _postgres(request: pytest.FixtureRequest, columns: str, **how: Any) -> Case:
    service: PostgresService = request.getfixturevalue("postgres_server")
    name, dsn = f"c{uuid.uuid4().hex[:10]}", service.dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} ({columns})".encode())
    sink = PostgresSink(name=name, dsn=dsn, table=name, timeout_ms=2_000, **how)

    def visible() -> list[int]:
        with psycopg.connect(dsn) as connection:
            return [row[0] for row in connection.execute(f"TABLE {name} ORDER BY value".encode())]

    return Case(sink, numbers, visible, silence=_pausing(service.local))


def iceberg(request: pytest.FixtureRequest) -> Case:
    return _iceberg(request, UNPARTITIONED_PARTITION_SPEC)


def iceberg_partitioned(request: pytest.FixtureRequest) -> Case:
    return _iceberg(request, PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "bucket")))


def iceberg_rest(request: pytest.FixtureRequest) -> Case:
    return _iceberg(request, UNPARTITIONED_PARTITION_SPEC, request.getfixturevalue("rest_warehouse"))


def iceberg_s3(request: pytest.FixtureRequest) -> Case:
    return _iceberg(request, UNPARTITIONED_PARTITION_SPEC, request.getfixturevalue("s3_warehouse"))


def _iceberg(request: pytest.FixtureRequest, spec: PartitionSpec, warehouse: Warehouse | None = None) -> Case:
    if warehouse is None:
        warehouse = Warehouse(request.getfixturevalue("tmp_path") / "warehouse", timeout_s=0.2)
    schema = Schema(NestedField(1, "value", LongType(), required=True), NestedField(2, "note", StringType()))
    warehouse.create("shop.orders", schema, spec)
    sink = IcebergSink(name="orders", catalog=warehouse.properties, table="shop.orders", timeout_ms=2_000)
    return Case(sink, numbers, lambda: sorted(warehouse.column("shop.orders", "value")), silence=warehouse.silent)


def delta(request: pytest.FixtureRequest) -> Case:
    return _delta(request)


def delta_partitioned(request: pytest.FixtureRequest) -> Case:
    return _delta(request, partition_by=["value"])


def _delta(request: pytest.FixtureRequest, **how: Any) -> Case:
    directory: Path = request.getfixturevalue("tmp_path")
    table = directory / "orders"
    columns: list[Any] = [pa.field("value", pa.int64(), nullable=False), pa.field("note", pa.string())]
    DeltaTable.create(str(table), pa.schema(columns), configuration={"delta.checkpointInterval": "3"}, **how)
    sink = DeltaSink(name="orders", table_uri=str(table), timeout_ms=300)

    def visible() -> list[int]:
        found: list[Any] = DeltaTable(str(table)).to_pyarrow_table().column("value").to_pylist()
        return sorted(found)

    @contextlib.contextmanager
    def silence() -> Iterator[None]:
        away = table.rename(directory / "away")
        yield
        away.rename(table)

    return Case(sink, numbers, visible, silence=silence)


def _pausing(
    server: Any, is_ready: Callable[[], bool] = lambda: True
) -> Callable[[], AbstractContextManager[None]] | None:
    @contextlib.contextmanager
    def silence() -> Iterator[None]:
        server.pause()
        try:
            yield
        finally:
            server.resume()
            deadline = time.monotonic() + _READY_TIMEOUT_S
            while not is_ready():
                assert time.monotonic() < deadline, "the server still does not respond"
                time.sleep(0.1)

    return None if server is None else silence


#: Each new sink in this repository needs one more line here.
SINKS = [
    pytest.param(fake, id="fake"),
    pytest.param(guide, id="guide"),
    pytest.param(redis_strings, id="redis-strings"),
    pytest.param(redis_counters, id="redis-counters"),
    pytest.param(redis_lists, id="redis-lists"),
    pytest.param(redis_cluster_counters, id="redis-cluster"),
    pytest.param(hbase_puts, id="hbase-puts"),
    pytest.param(hbase_counters, id="hbase-counters"),
    pytest.param(hbase_appends, id="hbase-appends"),
    pytest.param(postgres_append, id="postgres-append"),
    pytest.param(postgres_upsert, id="postgres-upsert"),
    pytest.param(postgres_prepared, id="postgres-prepared"),
    pytest.param(iceberg, id="iceberg"),
    pytest.param(iceberg_partitioned, id="iceberg-partitioned"),
    pytest.param(iceberg_rest, id="iceberg-rest", marks=pytest.mark.whole),
    pytest.param(iceberg_s3, id="iceberg-s3", marks=pytest.mark.whole),
    pytest.param(delta, id="delta"),
    pytest.param(delta_partitioned, id="delta-partitioned"),
    pytest.param(kafka, id="kafka"),
]
