"""The network in front of three brokers: late and replayed commits, where each broker offers a way past the proxy.

One broker cannot show this: a transaction's coordinator, the leaders of its partitions and the node that answers for the
metadata differ, and a client that learns one unchanged address would leave the proxy.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.live.cluster_support import cluster, coordinator, leader, replicated_topic, three_brokers
from tests.live.rules.batches import seen
from tests.live.services import KafkaService
from tests.nemesis.conftest import playing_behind
from tests.nemesis.frames import FENCED, NONE, Api
from tests.nemesis.proxy import KafkaProxy
from tests.nemesis.schedules import let_a_commit_arrive_late, of_tasks, process
from twopc.sinks.kafka.reports import CONCURRENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.rules.schedules import Play
    from tests.services.kafka_cluster import LocalKafkaCluster

#: Three brokers on two cores are slow, so only `make whole` runs these tests.
pytestmark = pytest.mark.whole

__all__ = ["cluster", "three_brokers"]

_PARTITIONS = 3


@pytest.fixture
def proxy(cluster: LocalKafkaCluster) -> Iterator[KafkaProxy]:
    with KafkaProxy(cluster.bootstrap_servers) as proxy:
        yield proxy


@pytest.fixture
def play(cluster: LocalKafkaCluster, proxy: KafkaProxy, tmp_path: Path) -> Iterator[Play]:
    """The same as `tests.nemesis.conftest.play`, with an output in which every broker leads one partition."""
    with playing_behind(proxy, KafkaService(cluster.bootstrap_servers), tmp_path) as play:
        play.topic = replicated_topic(cluster, f"{play.name}-replicated", _PARTITIONS)
        play.sink = dataclasses.replace(play.sink, topic=play.topic)
        coordinator(cluster, f"{play.name}.driver")  # on a new cluster this takes longer than a step here may
        assert len({leader(cluster, play.topic, partition) for partition in range(_PARTITIONS)}) == len(list(cluster))
        yield play


def test_a_client_behind_the_proxy_sees_no_brokers_own_address(
    cluster: LocalKafkaCluster, proxy: KafkaProxy, play: Play
) -> None:
    process(play.driver(), play, 0)
    brokers = AdminClient({"bootstrap.servers": proxy.bootstrap_servers}).list_topics(timeout=10).brokers
    learned = {f"{broker.host}:{broker.port}" for broker in brokers.values()}
    assert len(learned) == len(list(cluster))
    assert learned == set(proxy.bootstrap_servers.split(","))
    assert not learned & set(cluster.bootstrap_servers.split(","))


def test_a_late_commit_of_a_task_ends_no_later_transaction_on_any_broker(play: Play, proxy: KafkaProxy) -> None:
    """KAFKA-17754, rule 5."""
    let_a_commit_arrive_late(play, proxy)


def test_commits_replayed_at_every_coordinator_end_no_transaction_of_a_later_batch(
    play: Play, proxy: KafkaProxy
) -> None:
    """Rule 5: every EndTxn of batches 0 to 3 is replayed while the transactions of batch 4 are open."""
    driver = play.driver()
    for batch in range(4):
        process(driver, play, batch)
    old = proxy.recorded(Api.END_TXN, of_tasks(play), committed=True)
    assert len({exchange.broker for exchange in old}) > 1, "all transactional ids have the same coordinator"
    answers: list[str] = []

    def replay(partition: int) -> None:
        if partition == 1:  # both tasks have voted
            opened = play.open_transactions()
            answers.extend(proxy.replay(exchange) for exchange in old)
            assert play.open_transactions() == opened

    process(driver, play, 4, between=replay)
    assert len(answers) == len(old)
    # NONE: the id was not used again. CONCURRENT: it is being initialised for a later batch.
    assert set(answers) <= {NONE, CONCURRENT, *FENCED}
    assert set(answers) & FENCED
    assert play.visible() == seen(5)
