"""A 0.10.2.2 broker is upgraded, release by release, to a broker without ZooKeeper, and keeps its log directories."""

from __future__ import annotations

import psutil
import pytest
from confluent_kafka import Producer

from tests.live.pipeline import create_topic
from tests.reader import committed
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION
from twopc.integration.services.kafka_upgrade import UPGRADE, UpgradedKafka

_TIMEOUT_S = 60


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_every_record_and_the_address_survive_each_step_and_transactions_work_at_the_end() -> None:
    with UpgradedKafka() as kafka:
        servers = kafka.bootstrap_servers
        topic = create_topic(servers, "orders", 2)
        for number, step in enumerate(UPGRADE):
            producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
            producer.produce(topic, f"before {number}")
            assert producer.flush(_TIMEOUT_S) == 0
            kafka.upgrade(step)
            assert (kafka.bootstrap_servers, kafka.version) == (servers, step.version)
            assert committed(servers, topic) == {f"before {n}": 1 for n in range(number + 1)}, str(step)
        assert kafka.version == DEFAULT_KAFKA_VERSION
        assert not kafka.zookeeper.is_running
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "t", "log_level": 0})
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(topic, "in a transaction")
        producer.commit_transaction(_TIMEOUT_S)
        assert committed(servers, topic)["in a transaction"] == 1
        assert kafka.controller is not None
        pids = [kafka.pid, kafka.controller.pid]
    assert not any(map(psutil.pid_exists, pids))
