"""The tests' old broker is a real Kafka 0.10.2.2 with its own ZooKeeper.

The broker keeps acknowledged records, and supports neither idempotence nor transactions.
"""

from __future__ import annotations

import uuid

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.live.pipeline import create_topic
from tests.live.spark_support import wait_until
from tests.reader import committed
from twopc.integration.services.old_kafka import LocalOldKafka

_TIMEOUT_S = 60


def produce(servers: str, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    errors: list[KafkaError] = []
    for number in values:
        producer.produce(topic, str(number), on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(_TIMEOUT_S) == 0
    assert not errors


def new_topic(kafka: LocalOldKafka) -> str:
    return create_topic(kafka.bootstrap_servers, f"t{uuid.uuid4().hex[:10]}")


def test_a_consumer_group_reads_the_produced_records(old_kafka: LocalOldKafka) -> None:
    topic = new_topic(old_kafka)
    produce(old_kafka.bootstrap_servers, topic, range(100))
    facts = {
        "bootstrap.servers": old_kafka.bootstrap_servers,
        "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(facts)
    consumer.subscribe([topic])
    found = [message for message in consumer.consume(100, _TIMEOUT_S) if message.error() is None]
    consumer.close()
    assert sorted(int(message.value() or b"") for message in found) == list(range(100))


@pytest.mark.whole
def test_acknowledged_records_survive_kill_9_and_a_restart_on_the_same_address(
    fragile_old_kafka: LocalOldKafka,
) -> None:
    kafka = fragile_old_kafka
    topic, address, pid = new_topic(kafka), kafka.bootstrap_servers, kafka.pid
    for round_ in range(2):
        produce(address, topic, range(round_ * 100, round_ * 100 + 100))
        kafka.kill()
        kafka.start()
    assert kafka.bootstrap_servers == address
    assert not psutil.pid_exists(pid)
    assert committed(address, topic) == {str(number): 1 for number in range(200)}


@pytest.mark.whole
def test_both_processes_end_with_their_owner() -> None:
    with LocalOldKafka() as kafka:
        pids = [kafka.pid, kafka.zookeeper.pid]
        directory = kafka.data_dir
    assert not any(map(psutil.pid_exists, pids))
    assert not directory.exists()


def test_kafka_0_10_has_no_transactions(old_kafka: LocalOldKafka) -> None:
    producer = Producer({"bootstrap.servers": old_kafka.bootstrap_servers, "log_level": 0, "transactional.id": "t"})
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(_TIMEOUT_S)
    assert raised.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE


def test_kafka_0_10_has_no_idempotent_producer(old_kafka: LocalOldKafka) -> None:
    producer = Producer({"bootstrap.servers": old_kafka.bootstrap_servers, "log_level": 0, "enable.idempotence": True})
    with pytest.raises(KafkaException) as raised:
        wait_until(lambda: producer.poll(0.1) < 0, "the client raises what the broker lacks")
    assert raised.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
