"""A partition accepts no record: librdkafka retries, and knows only that time ran out. The error says what to check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.live import ways
from tests.live.cluster_support import cluster, in_sync, leader, replicated_topic, three_brokers
from tests.live.services import KafkaService
from tests.live.spark_support import wait_until
from tests.live.ways import BOTH, Way
from tests.reader import records
from twopc.errors import RetriableError, TwoPhaseCommitError
from twopc.sinks.kafka.driver_producer import DriverProducer

if TYPE_CHECKING:
    from tests.services.kafka_cluster import LocalKafkaCluster
    from twopc.sinks.kafka.writer import KafkaWriter

__all__ = ["cluster", "three_brokers"]

pytestmark = pytest.mark.whole  # brokers die, and the others must notice

ADVICE = "only while it has a leader and at least min.insync.replicas replicas are in sync"
TIMEOUT_MS = 5_000


def rows() -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array([b"k"] * 3, pa.binary()), "value": pa.array([b"v"] * 3, pa.binary())})


@pytest.fixture
def brokers(cluster: LocalKafkaCluster, monkeypatch: pytest.MonkeyPatch) -> KafkaService:
    """Three brokers, each with a replica of each topic."""
    monkeypatch.setattr(ways, "create_topic", lambda _, name, partitions=1: replicated_topic(cluster, name, partitions))
    return KafkaService(cluster.bootstrap_servers)


def require_named(writer: KafkaWriter) -> None:
    with pytest.raises(RetriableError) as caught:  # noqa: PT012 - either call may raise it
        writer.write(rows())
        writer.pre_commit()
    writer.abort()
    assert ADVICE in str(caught.value)


def lose_replica(cluster: LocalKafkaCluster, way: Way, topic: str) -> None:
    """Two of three replicas are in sync, but three are required."""
    way.change(topic, {"min.insync.replicas": "3"})
    wait_until(lambda: in_sync(cluster, topic, 0) == set(cluster), "all are in sync")
    victim = next(node for node in cluster if node != leader(cluster, topic, 0))
    cluster[victim].kill()
    wait_until(lambda: victim not in in_sync(cluster, topic, 0), "one has left")


@BOTH
@pytest.mark.parametrize("guarantee", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_rows_for_a_partition_with_too_few_replicas_fail_with_advice(
    cluster: LocalKafkaCluster,
    brokers: KafkaService,
    monkeypatch: pytest.MonkeyPatch,
    guarantee: str,
    *,
    native: bool,
) -> None:
    way = Way(brokers, monkeypatch, native=native, timeout_ms=TIMEOUT_MS, guarantee=guarantee)
    writer = way.writer()
    lose_replica(cluster, way, way.topics[0])
    require_named(writer)


def test_the_error_for_a_decision_mentions_the_ledger_with_too_few_replicas(
    cluster: LocalKafkaCluster, brokers: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(brokers, monkeypatch, native=True, timeout_ms=TIMEOUT_MS)
    driver = DriverProducer(way.sink, {})
    lose_replica(cluster, way, way.sink.ledger)
    with pytest.raises(TwoPhaseCommitError) as caught:
        driver.write([(0, b"a decision")], point=None)
    assert ADVICE in str(caught.value)
    assert way.sink.ledger in str(caught.value)


@BOTH
def test_rows_for_a_partition_without_a_leader_fail_with_advice(
    cluster: LocalKafkaCluster, brokers: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(brokers, monkeypatch, native=native, timeout_ms=TIMEOUT_MS)
    topic = replicated_topic(cluster, f"{way.name}-alone", 1, replicas=1)
    object.__setattr__(way.sink, "topic", topic)
    writer = way.writer()
    cluster[leader(cluster, topic, 0)].kill()
    require_named(writer)
    cluster.start()
    way.write([rows()])
    assert len(records(way.servers, topic)) == 3
