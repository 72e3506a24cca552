"""`twopc migrate probe`: it distinguishes read_uncommitted groups from read_committed groups, and reports when it cannot."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from typer.testing import CliRunner

from tests.live.command import COMMAND
from tests.live.pipeline import create_topic
from tests.reader import committed
from twopc.integration.cli import app
from twopc.integration.migrate.probe import probe
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.reports import Listing
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.live.services import KafkaService

UNCOMMITTED = "read_uncommitted"


def read_with_librdkafka(servers: str, group: str, topic: str, stop: threading.Event, **options: Any) -> None:
    facts = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**facts, "auto.commit.interval.ms": 200, **options})
    with contextlib.closing(consumer):
        consumer.subscribe([topic])
        while not stop.is_set():
            consumer.poll(0.1)


def read_with_kafka_python(servers: str, group: str, topic: str, stop: threading.Event, **options: Any) -> None:
    facts = {"bootstrap_servers": servers, "group_id": group, "auto_offset_reset": "earliest"}
    with contextlib.closing(KafkaConsumer(topic, **facts, auto_commit_interval_ms=200, **options)) as consumer:
        while not stop.is_set():
            consumer.poll(timeout_ms=100)


@contextlib.contextmanager
def reading(read: Any, *arguments: str, **options: Any) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=read, args=(*arguments, stop), kwargs=options)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def probed(servers: str, group: str, *words: str) -> tuple[int, dict[str, Any], str]:
    """The exit status, the JSON, and the messages on the way."""
    given = ["--bootstrap-servers", servers, "--sink", f"p{group}", "--group", group, "--json"]
    result = CliRunner().invoke(app, ["migrate", "probe", *given, *words])
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}, result.stderr


@pytest.mark.parametrize(
    ("read", "options", "status"),
    [
        pytest.param(read_with_librdkafka, {}, 0, marks=pytest.mark.whole),
        (read_with_librdkafka, {"isolation.level": UNCOMMITTED}, 1),
        pytest.param(read_with_kafka_python, {"isolation_level": "read_committed"}, 0, marks=pytest.mark.whole),
        (read_with_kafka_python, {}, 1),
    ],
    ids=["librdkafka's default", "librdkafka, uncommitted", "kafka-python, committed", "kafka-python's default"],
)
def test_a_consumer_group_is_judged_by_the_records_that_it_reads(
    read: Callable[..., None], options: dict[str, Any], status: int, kafka: KafkaService
) -> None:
    servers, group = kafka.bootstrap_servers, f"g{uuid.uuid4().hex[:10]}"
    topic = create_topic(servers, f"{group}-out", 2)
    with reading(read, servers, group, topic, **options):
        found = probed(servers, group, "--topic", topic, "--wait", "60", "--hold", "10")
    assert found[0] == status, found
    findings = found[1]["findings"]
    assert [(one["subject"], one["result"]) for one in findings] == [
        (f"{topic}[{partition}]", "fail" if status else "pass") for partition in (0, 1)
    ]
    assert all("isolation.level=read_committed" in one["fix"] for one in findings) == bool(status)
    assert [*committed(servers, topic).values()] == [4], (
        "the probe should write two committed records to each partition, as it reports"
    )


def test_the_probes_own_topic_is_reported_and_deleted(kafka: KafkaService, monkeypatch: pytest.MonkeyPatch) -> None:
    servers, group = kafka.bootstrap_servers, f"g{uuid.uuid4().hex[:10]}"
    readers = contextlib.ExitStack()

    def started(wanted: Any, sink: Any, say: Callable[[str], object]) -> Any:
        def start(text: str) -> None:
            say(text)
            (topic,) = re.findall(r"on the topic ([^\s,]+)", text)
            readers.enter_context(reading(read_with_librdkafka, servers, group, topic))

        return probe(wanted, sink, start)

    monkeypatch.setattr("twopc.integration.migrate.command.probe", started)
    with readers:
        status, found, said = probed(servers, group, "--wait", "60", "--hold", "2")
    assert (status, found["result"]) == (0, "pass"), found
    assert found["topic"] in said
    assert found["topic"].startswith(f"twopc-ledger-p{group}.probe-")
    assert found["topic"] not in AdminClient({"bootstrap.servers": servers}).list_topics(timeout=60).topics


def test_a_killed_probe_deletes_its_own_topic(kafka: KafkaService) -> None:
    servers, group = kafka.bootstrap_servers, f"g{uuid.uuid4().hex[:10]}"
    words = ["--bootstrap-servers", servers, "--sink", f"p{group}", "--group", group]
    with subprocess.Popen([*COMMAND, "migrate", "probe", *words], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        (topic,) = re.findall(r"on the topic ([^\s,]+)", running.stderr.readline())
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    assert topic not in AdminClient({"bootstrap.servers": servers}).list_topics(timeout=60).topics


def test_a_refused_record_leaves_no_transaction_open(kafka: KafkaService) -> None:
    """Fails if the probe does not abort: the coordinator would keep the transaction open for a quarter of an hour."""
    servers, group = kafka.bootstrap_servers, f"g{uuid.uuid4().hex[:10]}"
    topic = create_topic(servers, f"{group}-out", 1, {"max.message.bytes": "10"})
    status, _, said = probed(servers, group, "--topic", topic)
    assert status == 2
    assert f"writing to {topic}" in said and "too large" in said
    client = TransactionClient(KafkaSink(name=f"p{group}", bootstrap_servers=servers, topic=topic).committing_config())
    with contextlib.closing(client):
        assert client.list_open(f"p{group}.") == Listing((), complete=True)


def test_a_group_that_commits_no_offsets_is_not_judged(kafka: KafkaService) -> None:
    servers, group = kafka.bootstrap_servers, f"g{uuid.uuid4().hex[:10]}"
    topic = create_topic(servers, f"{group}-out", 1)
    status, found, _ = probed(servers, group, "--topic", topic, "--wait", "1")
    assert (status, found["result"]) == (3, "warn")
    assert "its isolation level is unknown" in found["findings"][0]["why"]


def test_the_error_for_a_wrong_argument_says_what_to_correct(kafka: KafkaService) -> None:
    status, found, said = probed(kafka.bootstrap_servers, "g", "--topic", "no-such-topic")
    assert (status, found) == (2, {})
    assert "topic no-such-topic does not exist" in said
    status, _, said = probed(kafka.bootstrap_servers, "g", "--config", "transaction.timeout.ms=30000")
    assert status == 2
    assert "Lower --wait or --hold" in " ".join(said.split())
