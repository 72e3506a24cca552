"""A cluster of three brokers, and functions that find out which of them leads or coordinates what."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.protocol.metadata import FindCoordinatorRequest

from tests.live.rules.schedules import until
from tests.live.services import chosen
from tests.services.kafka_cluster import LocalKafkaCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRANSACTION_COORDINATOR = 1
_TIMEOUT_S = 30
_QUESTION_MS = 3_000


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[LocalKafkaCluster]:
    """One cluster for the module; see `cluster`."""
    if chosen() != "local":
        pytest.skip(f"this test needs brokers that it may kill, but TWOPC_SERVICES is {chosen()!r}, not 'local'")
    with LocalKafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(three_brokers: LocalKafkaCluster) -> LocalKafkaCluster:
    """Three running brokers."""
    three_brokers.start()
    return three_brokers


def replicated_topic(cluster: LocalKafkaCluster, name: str, partitions: int, replicas: int = -1) -> str:
    """A topic, by default with the cluster's own replication. Every running broker knows it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(_TIMEOUT_S)
    for node in (cluster[number] for number in cluster if cluster[number].is_running):
        alone = AdminClient({"bootstrap.servers": node.bootstrap_servers, "log_level": 0})

        def is_known(alone: AdminClient = alone) -> bool:
            return len(alone.list_topics(name, timeout=_TIMEOUT_S).topics[name].partitions) == partitions

        assert until(is_known, _TIMEOUT_S), f"{node.bootstrap_servers} does not know {name}"
    return name


def leader(cluster: LocalKafkaCluster, topic: str, partition: int) -> int:
    """The node that leads a partition; waits until the queried broker knows a leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    found: list[int] = []

    def is_known() -> bool:
        known = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        found.append(int(known[partition].leader) if partition in known else -1)
        return found[-1] >= 0

    assert until(is_known, _TIMEOUT_S), f"{topic}/{partition} has no leader"
    return found[-1]


def in_sync(cluster: LocalKafkaCluster, topic: str, partition: int) -> set[int]:
    """The nodes that store every acknowledged record of a partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    return set(admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions[partition].isrs)


def coordinator(cluster: LocalKafkaCluster, transactional_id: str) -> int:
    """Wait until a node says that it coordinates a transactional id; return the node."""
    request = FindCoordinatorRequest(
        key_type=_TRANSACTION_COORDINATOR, coordinator_keys=[transactional_id], min_version=4
    )
    found: list[int] = []

    async def ask(admin: KafkaAdminClient) -> None:
        [row] = (await admin._manager.send(request)).coordinators
        if row.error_code == 0:
            found.append(int(row.node_id))

    def is_known() -> bool:
        with contextlib.suppress(KafkaError):  # the queried node may be the one that is down
            admin = KafkaAdminClient(
                bootstrap_servers=cluster.bootstrap_servers.split(","),
                request_timeout_ms=_QUESTION_MS,  # the first queried node may be the paused one
                bootstrap_timeout_ms=_QUESTION_MS,  # the client starts with a random node and would wait only for that node
            )
            try:
                admin._manager.run(ask, admin)
            finally:
                admin.close()
        return bool(found)

    assert until(is_known, _TIMEOUT_S), f"{transactional_id} has no coordinator"
    return found[0]
