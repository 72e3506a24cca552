"""Disaster recovery without a mirror: one cluster spans several places, and one of them is lost permanently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.live.cluster_support import cluster, coordinator, leader, replicated_topic, three_brokers
from tests.live.rules.schedules import until
from tests.live.spark_support import Pipeline, spark
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.ledger_topic import LedgerTopic

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.services.kafka_cluster import LocalKafkaCluster

__all__ = ["cluster", "spark", "three_brokers"]

#: Spark's source may keep asking a dead leader for as long as a minute (docs/protocol.md, "When a broker dies").
_SOURCE = {"kafka.default.api.timeout.ms": "10000", "kafka.request.timeout.ms": "10000"}
_NAMES = 40


def name_on_one_broker(cluster: LocalKafkaCluster, prefix: str) -> tuple[str, int]:
    """A sink's name for which one broker leads the decisions and coordinates the driver."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for number in range(_NAMES):
        name = f"{prefix}-{number}"
        ledger = KafkaSink(name=name, bootstrap_servers=cluster.bootstrap_servers).ledger
        LedgerTopic(admin, ledger, timeout_ms=20_000).ensure()
        assert until(lambda ledger=ledger: ledger in admin.list_topics(timeout=10).topics)  # type: ignore[misc]
        node = leader(cluster, ledger, 0)
        if node == coordinator(cluster, f"{name}.driver"):
            return name, node
    raise AssertionError(f"none of {_NAMES} sink names has its ledger's leader and its coordinator on the same broker")


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_query_continues_when_the_site_of_its_ledger_is_lost_between_decision_and_commit(
    cluster: LocalKafkaCluster, tmp_path: Path, spark: SparkSession
) -> None:
    """The broker never returns. The two other brokers store its data: the decision, the transactions and the rows."""
    name, node = name_on_one_broker(cluster, f"stretched-{tmp_path.name}".replace("_", "-"))
    topics = {way: replicated_topic(cluster, f"{name}-{way}", 3) for way in ("source", "output")}
    servers = cluster.bootstrap_servers
    pipeline = Pipeline(
        servers,
        tmp_path,
        name=name,
        sources=(topics["source"],),
        topic=topics["output"],
        max_offsets=20,
        reader=_SOURCE,
        sink={"timeout_ms": 60_000},  # the controller's failover may take most of the default timeout
    )
    pipeline.feed(60)
    pipeline.run(spark)
    pipeline.feed(20)
    pipeline.fail_at(spark, "driver.decided")
    assert (leader(cluster, f"twopc-ledger-{name}", 0), coordinator(cluster, f"{name}.driver")) == (node, node)
    cluster[node].kill()
    pipeline.run(spark)
    pipeline.require_exactly_once()
    pipeline.feed(60)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    assert not cluster[node].is_running
