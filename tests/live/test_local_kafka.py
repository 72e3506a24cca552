from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from twopc.integration.services import server as local_server
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION
from twopc.integration.services.kafka import LocalKafka, ServiceError
from twopc.integration.services.ports import free_ports

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from tests.live.services import KafkaService

TIMEOUT_S = 30


def new_topic(servers: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": servers})  # must live until the request is done
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(TIMEOUT_S)
    return name


def produce(servers: str, topic: str, count: int, **config: str) -> None:
    """Produce records and wait until all are acknowledged."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": servers, "acks": "all", **config})
    for n in range(count):
        producer.produce(topic, str(n).encode(), on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed


def consume(servers: str, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[int] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                values.append(int(message.value() or b""))
        return values
    finally:
        consumer.close()


def test_produced_records_can_be_consumed(kafka: KafkaService) -> None:
    topic = new_topic(kafka.bootstrap_servers)
    produce(kafka.bootstrap_servers, topic, 100)
    assert consume(kafka.bootstrap_servers, topic, 100) == list(range(100))


def test_acknowledged_records_survive_a_kill_and_a_restart_on_the_same_address(fresh_kafka: LocalKafka) -> None:
    servers, pid = fresh_kafka.bootstrap_servers, fresh_kafka.pid
    topic = new_topic(servers)
    produce(servers, topic, 1000)
    fresh_kafka.kill()
    assert not fresh_kafka.is_running
    assert not psutil.pid_exists(pid)
    fresh_kafka.restart()
    assert fresh_kafka.bootstrap_servers == servers
    assert consume(servers, topic, 1000) == list(range(1000))


def test_a_paused_broker_is_silent_until_it_is_resumed(local_kafka: LocalKafka) -> None:
    admin = AdminClient({"bootstrap.servers": local_kafka.bootstrap_servers, "log_level": 0})
    admin.list_topics(timeout=TIMEOUT_S)
    local_kafka.pause()
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    assert local_kafka.is_running
    local_kafka.resume()
    admin.list_topics(timeout=TIMEOUT_S)


def test_every_thread_is_stopped_when_pause_returns(local_kafka: LocalKafka) -> None:
    """A busy thread keeps running for a few milliseconds after the signal, and could still respond."""
    for _ in range(10):
        local_kafka.pause()
        assert _states_of_threads(local_kafka.pid) == {"T"}
        local_kafka.resume()


def _states_of_threads(pid: int) -> set[str]:
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}


def test_a_paused_broker_can_be_stopped(tmp_path: Path) -> None:
    kafka = LocalKafka(data_dir=tmp_path)
    kafka.start()
    pid = kafka.pid
    kafka.pause()
    kafka.stop()
    assert not psutil.pid_exists(pid)
    kafka.stop()
    with pytest.raises(ServiceError, match="not running"):
        kafka.pause()


def test_extra_properties_and_listeners_reach_the_broker() -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    with LocalKafka(
        listeners={"SASL": "SASL_PLAINTEXT"},
        properties={
            "message.max.bytes": "54321",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{login} user_ann="a\\"pw";',
        },
    ) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        broker = ConfigResource(ResourceType.BROKER, "1")
        assert admin.describe_configs([broker])[broker].result(TIMEOUT_S)["message.max.bytes"].value == "54321"

        topic, address = new_topic(kafka.bootstrap_servers), kafka.address("SASL")
        sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
        produce(address, topic, 3, **sasl, **{"sasl.password": 'a"pw'})
        assert consume(kafka.bootstrap_servers, topic, 3) == [0, 1, 2]
        stranger = AdminClient({"bootstrap.servers": address, **sasl, "sasl.password": "wrong", "log_level": 0})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=1)


@pytest.mark.whole
def test_another_version_uses_the_given_directory_and_overridden_listeners(tmp_path: Path) -> None:
    public, controller = free_ports(2)
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{public},QUORUM://127.0.0.1:{controller}",
        "controller.listener.names": "QUORUM",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,QUORUM:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    with LocalKafka(version="3.9.1", data_dir=tmp_path / "kafka", properties=properties) as kafka:
        assert kafka.bootstrap_servers == f"127.0.0.1:{public}"
        topic = new_topic(kafka.bootstrap_servers)
        produce(kafka.bootstrap_servers, topic, 5)
    with LocalKafka(version="3.9.1", data_dir=tmp_path / "kafka") as kafka:
        assert consume(kafka.bootstrap_servers, topic, 5) == [0, 1, 2, 3, 4]


def test_the_environment_chooses_the_version_and_the_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPC_KAFKA", "4.1.1,transaction.version=1,group.version=0")
    chosen = LocalKafka(data_dir=tmp_path)
    assert chosen.version == "4.1.1"
    assert chosen._features == ["--feature", "transaction.version=1", "--feature", "group.version=0"]
    given = LocalKafka(version="3.9.1", data_dir=tmp_path)
    assert (given.version, given._features) == ("3.9.1", [])
    monkeypatch.delenv("TWOPC_KAFKA")
    assert LocalKafka(data_dir=tmp_path).version == DEFAULT_KAFKA_VERSION


OWNER = """
import pathlib, sys, threading
from twopc.integration.services.kafka import LocalKafka
kafka = LocalKafka(data_dir=pathlib.Path(sys.argv[1]))
thread = threading.Thread(target=kafka.start)
thread.start()
thread.join()
print(kafka.pid, kafka.bootstrap_servers, flush=True)
sys.stdin.read()
"""


def test_the_broker_outlives_the_thread_that_started_it_but_not_a_kill_of_the_threads_process(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout
        pid, servers = owner.stdout.readline().split()
        broker = psutil.Process(int(pid))
        AdminClient({"bootstrap.servers": servers}).list_topics(timeout=TIMEOUT_S)
        owner.kill()
    assert broker.wait(TIMEOUT_S) is None


def test_the_error_of_a_start_with_a_bad_property_contains_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(
        ServiceError, match=r"broker\.log\):[\s\S]*Invalid value many for configuration num\.io\.threads"
    ):
        LocalKafka(data_dir=tmp_path, properties={"num.io.threads": "many"}).start()


@pytest.mark.whole
def test_a_port_occupied_before_the_broker_binds_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(4)
    choices = [ports[:2], ports[2:]]
    monkeypatch.setattr(local_server, "free_ports", lambda _: choices.pop(0))
    with (
        socket.create_server(("127.0.0.1", ports[0])),
        LocalKafka() as kafka,
    ):
        assert kafka.bootstrap_servers == f"127.0.0.1:{ports[2]}"
