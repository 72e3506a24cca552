"""The committing client, and a coordinator on a broker that was not running when the client connected."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.live.cluster_support import cluster, coordinator, three_brokers
from tests.live.rules.schedules import until
from twopc.sinks.kafka import broker_connection
from twopc.sinks.kafka.reports import NOT_FOUND, until_final
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.services.kafka_cluster import LocalKafkaCluster

#: Three brokers on two cores are slow, so only `make whole` runs this test.
pytestmark = pytest.mark.whole

__all__ = ["cluster", "three_brokers"]

_STATE = "__transaction_state"
_TIMEOUT_S = 120


def test_a_coordinator_is_found_on_a_broker_that_comes_back_late(
    cluster: LocalKafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling restart, a request that misses the broker asks for the metadata.

    Here, the client has no other reason to request the metadata.
    """
    monkeypatch.setattr(broker_connection, "_METADATA_MAX_AGE_MS", 300_000)
    tid = uuid.uuid4().hex
    late = coordinator(cluster, tid)
    with connected_while_away(cluster, late) as (client, admin):
        assert until(lambda: _leads_again(admin, cluster, tid, late), _TIMEOUT_S)

        def describe(some: Sequence[str]) -> dict[str, str]:
            return {one: found.error for one, found in client.describe(some).items()}

        assert until_final([tid], describe, timeout_ms=60_000) == {tid: NOT_FOUND}
        assert client.coordinator_of(tid) == f"broker {late}"


def test_a_broker_that_comes_back_late_is_asked_for_its_open_transactions(cluster: LocalKafkaCluster) -> None:
    """A sweep that assumes it has asked all brokers would leave its transactions open until they run out."""
    late = next(iter(cluster))
    with connected_while_away(cluster, late) as (client, admin):
        assert until(lambda: late in admin.list_topics(timeout=_TIMEOUT_S).brokers, _TIMEOUT_S)
        assert until(lambda: late in client._connection.nodes, 60), "the client did not find the broker within a minute"


@contextlib.contextmanager
def connected_while_away(cluster: LocalKafkaCluster, late: int) -> Iterator[tuple[TransactionClient, AdminClient]]:
    """A client that connected while a broker was down, and a client that knows all brokers. That broker is running again."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    cluster[late].kill()
    assert until(lambda: late not in admin.list_topics(timeout=_TIMEOUT_S).brokers, _TIMEOUT_S)
    others = [cluster[node].bootstrap_servers for node in cluster if node != late]
    with contextlib.closing(TransactionClient({"bootstrap_servers": others})) as client:
        assert late not in client._connection.nodes
        cluster[late].restart()
        yield client, admin


def _leads_again(admin: AdminClient, cluster: LocalKafkaCluster, tid: str, node: int) -> bool:
    """Ask the controller to move each partition's leader to its first replica, as it does by itself from time to time."""
    count = len(admin.list_topics(_STATE, timeout=_TIMEOUT_S).topics[_STATE].partitions)
    try:
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(_STATE, one) for one in range(count)]).result()
    except KafkaException:
        return False
    return coordinator(cluster, tid) == node
