from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.live.cluster_support import cluster, in_sync, leader, replicated_topic, three_brokers
from tests.live.rules.schedules import until
from tests.live.test_local_kafka import TIMEOUT_S, consume, produce

if TYPE_CHECKING:
    from tests.services.kafka_cluster import LocalKafkaCluster

#: Three brokers on two cores are slow, so only `make whole` runs these tests.
pytestmark = pytest.mark.whole

__all__ = ["cluster", "three_brokers"]


def test_acknowledged_records_survive_a_killed_leader_which_catches_up_after_its_restart(
    cluster: LocalKafkaCluster,
) -> None:
    topic = replicated_topic(cluster, f"t-{uuid.uuid4().hex[:12]}", 1)
    produce(cluster.bootstrap_servers, topic, 1000)
    first = leader(cluster, topic, 0)
    cluster[first].kill()
    assert consume(cluster.bootstrap_servers, topic, 1000) == list(range(1000))
    assert leader(cluster, topic, 0) != first

    produce(cluster.bootstrap_servers, topic, 1000)
    cluster[first].restart()
    assert until(lambda: in_sync(cluster, topic, 0) == set(cluster), TIMEOUT_S)
    second = leader(cluster, topic, 0)
    cluster[second].kill()
    assert consume(cluster.bootstrap_servers, topic, 2000) == [*range(1000), *range(1000)]


def test_a_paused_node_loses_its_partitions_to_other_nodes(cluster: LocalKafkaCluster) -> None:
    topic = replicated_topic(cluster, f"t-{uuid.uuid4().hex[:12]}", 1)
    first = leader(cluster, topic, 0)
    cluster[first].pause()
    produce(cluster.bootstrap_servers, topic, 10)
    assert leader(cluster, topic, 0) != first
    cluster[first].resume()
    assert until(lambda: in_sync(cluster, topic, 0) == set(cluster), TIMEOUT_S)
    assert consume(cluster.bootstrap_servers, topic, 10) == list(range(10))


def test_the_cluster_has_the_given_number_of_brokers(cluster: LocalKafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    # The node paused by the previous test may not be back yet.
    assert until(lambda: set(admin.list_topics(timeout=TIMEOUT_S).brokers) == set(cluster) == {1, 2, 3}, TIMEOUT_S)
