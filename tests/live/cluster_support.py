"""A cluster of three brokers for tests, and who leads what in it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.protocol.metadata import FindCoordinatorRequest

from integration.services.kafka_cluster import LocalKafkaCluster
from tests.live.rules.schedules import until
from tests.live.services import chosen

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRANSACTION_COORDINATOR = 1
_TIMEOUT_S = 30
_QUESTION_MS = 3_000


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[LocalKafkaCluster]:
    """The module's own cluster; see `cluster`."""
    if chosen() != "local":
        pytest.skip(f"needs brokers that it may kill: TWOPC_SERVICES is {chosen()!r}, not 'local'")
    with LocalKafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(three_brokers: LocalKafkaCluster) -> LocalKafkaCluster:
    """Three brokers, all of them running."""
    three_brokers.start()
    return three_brokers


def replicated_topic(cluster: LocalKafkaCluster, name: str, partitions: int) -> str:
    """A topic with the cluster's default replication."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions)])[name].result(_TIMEOUT_S)
    return name


def leader(cluster: LocalKafkaCluster, topic: str, partition: int) -> int:
    """The node that leads a partition, as soon as the broker that is asked knows one."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    found: list[int] = []

    def is_known() -> bool:
        known = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        found.append(int(known[partition].leader) if partition in known else -1)
        return found[-1] >= 0

    assert until(is_known, _TIMEOUT_S), f"{topic}/{partition} has no leader"
    return found[-1]


def in_sync(cluster: LocalKafkaCluster, topic: str, partition: int) -> set[int]:
    """The nodes that have all that is acknowledged in a partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    return set(admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions[partition].isrs)


def coordinator(cluster: LocalKafkaCluster, transactional_id: str) -> int:
    """The node that coordinates a transactional id, as soon as there is one that says so."""
    request = FindCoordinatorRequest(
        key_type=_TRANSACTION_COORDINATOR, coordinator_keys=[transactional_id], min_version=4
    )
    found: list[int] = []

    async def ask(admin: KafkaAdminClient) -> None:
        [row] = (await admin._manager.send(request)).coordinators
        if row.error_code == 0:
            found.append(int(row.node_id))

    def is_known() -> bool:
        with contextlib.suppress(KafkaError):  # the node that was asked is the one that is down
            admin = KafkaAdminClient(
                bootstrap_servers=cluster.bootstrap_servers.split(","),
                request_timeout_ms=_QUESTION_MS,  # one that is paused may be the first that is asked
                bootstrap_timeout_ms=_QUESTION_MS,  # it begins with one by chance, and would wait for that one until the end
            )
            try:
                admin._manager.run(ask, admin)
            finally:
                admin.close()
        return bool(found)

    assert until(is_known, _TIMEOUT_S), f"{transactional_id} has no coordinator"
    return found[0]
