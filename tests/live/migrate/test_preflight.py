"""`twopc migrate preflight`: its findings on a 0.10 source, on a current output, and on each fault there."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import AlterClientQuotasRequest
from typer.testing import CliRunner

from tests.live.pipeline import create_topic
from twopc.integration.cli import app
from twopc.integration.migrate import clock
from twopc.integration.migrate.preflight import murmur2
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.broker_connection import BrokerConnection

if TYPE_CHECKING:
    from tests.live.services import KafkaService
    from twopc.integration.services.kafka import LocalKafka
    from twopc.integration.services.old_kafka import LocalOldKafka


def preflight(servers: str, *words: str) -> dict[str, Any]:
    given = ["--bootstrap-servers", servers, "--sink", f"p{uuid.uuid4().hex[:10]}", "--json"]
    result = CliRunner().invoke(app, ["migrate", "preflight", *given, *words])
    assert result.exit_code in {0, 1, 3}, result.output
    return dict(json.loads(result.stdout))


def findings(report: dict[str, Any], check: str) -> list[tuple[str, str]]:
    return [(finding["subject"], finding["result"]) for finding in report["findings"] if finding["check"] == check]


def why(report: dict[str, Any], check: str) -> str:
    return " ".join(f"{one['why']} {one['fix']}" for one in report["findings"] if one["check"] == check)


def written(servers: str, partitioner: str) -> str:
    topic = create_topic(servers, f"t{uuid.uuid4().hex[:10]}")
    producer = Producer({"bootstrap.servers": servers, "partitioner": partitioner, "log_level": 0})
    for number in range(40):
        producer.produce(topic, str(number), f"key-{number}")
    assert producer.flush(60) == 0
    return topic


@pytest.mark.parametrize(
    ("key", "hashed"), [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)]
)
def test_murmur2_gives_the_same_hashes_as_in_java(key: bytes, hashed: int) -> None:
    """Values of Kafka's own UtilsTest."""
    assert murmur2(key) == hashed & 0x7FFFFFFF


def test_a_kafka_0_10_source_and_a_current_output_pass_with_warnings(
    old_kafka: LocalOldKafka, kafka: KafkaService
) -> None:
    source = create_topic(old_kafka.bootstrap_servers, f"t{uuid.uuid4().hex[:10]}")
    topic = written(kafka.bootstrap_servers, "murmur2_random")
    words = ["--source-bootstrap-servers", old_kafka.bootstrap_servers, "--source-topic", source, "--topic", topic]
    report = preflight(kafka.bootstrap_servers, *words)
    assert findings(report, "source") == [(old_kafka.bootstrap_servers, "warn"), (source, "pass")]
    assert "Kafka 0.10.2" in why(report, "source")
    assert "useDeprecatedOffsetFetching" in why(report, "source")
    assert findings(report, "readers") == [(topic, "pass")]
    assert findings(report, "partitioner") == [(topic, "pass")]
    assert "puts the keys of 40 sampled records into the same partitions" in why(report, "partitioner")
    assert findings(report, "quotas") == [(kafka.bootstrap_servers, "pass")]
    assert findings(report, "clock") == [(kafka.bootstrap_servers, "pass")]
    assert not report["counts"]["fail"]
    left = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}).list_topics(timeout=60).topics
    assert not [name for name in left if name.startswith(f"twopc-ledger-{report['sink']}")]


@pytest.mark.parametrize(("moved_ms", "said"), [(-60_000, "s ahead of"), (60_000, "s behind")])
def test_a_clock_difference_is_found(
    moved_ms: int, said: str, kafka: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test changes the clock that the check reads on this machine."""
    monkeypatch.setattr(clock, "_now_ms", lambda: int(time.time() * 1000) + moved_ms)
    report = preflight(kafka.bootstrap_servers)
    assert findings(report, "clock") == [(kafka.bootstrap_servers, "warn")]
    assert said in why(report, "clock")


def test_a_current_source_needs_no_setting_and_a_missing_topic_fails(kafka: KafkaService) -> None:
    words = ["--source-bootstrap-servers", kafka.bootstrap_servers, "--source-topic", "no-such-topic"]
    report = preflight(kafka.bootstrap_servers, *words)
    assert findings(report, "source") == [(kafka.bootstrap_servers, "pass"), ("no-such-topic", "fail")]


def test_keys_placed_by_another_partitioner_are_found_and_the_right_setting_is_suggested(kafka: KafkaService) -> None:
    topic = written(kafka.bootstrap_servers, "consistent_random")
    report = preflight(kafka.bootstrap_servers, "--topic", topic)
    assert findings(report, "partitioner") == [(topic, "fail")]
    assert "Set kafka.partitioner=consistent_random" in why(report, "partitioner")
    assert report["result"] == "fail"
    cured = preflight(kafka.bootstrap_servers, "--topic", topic, "--config", "partitioner=consistent_random")
    assert findings(cured, "partitioner") == [(topic, "pass")]


def test_the_groups_that_read_the_output_are_listed(kafka: KafkaService) -> None:
    topic, group = written(kafka.bootstrap_servers, "murmur2_random"), f"g{uuid.uuid4().hex[:10]}"
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0})
    with closing(consumer):
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    report = preflight(kafka.bootstrap_servers, "--topic", topic)
    assert findings(report, "readers") == [(topic, "warn")]
    assert group in why(report, "readers")
    assert "isolation.level=read_committed" in why(report, "readers")


def test_a_quota_that_applies_to_the_sink_is_found(fresh_kafka: LocalKafka) -> None:
    servers = fresh_kafka.bootstrap_servers
    request = AlterClientQuotasRequest
    entity, op = request.EntryData.EntityData, request.EntryData.OpData
    entries = [
        request.EntryData(
            entity=[entity(entity_type=kind, entity_name=name)], ops=[op(key=key, value=1e6, remove=False)]
        )
        for kind, name, key in (
            ("client-id", None, "producer_byte_rate"),
            ("client-id", "somebody-else", "consumer_byte_rate"),
            ("user", "ANONYMOUS", "request_percentage"),  # the user of every client that uses neither SASL nor TLS
        )
    ]
    config = KafkaSink(name="quotas", bootstrap_servers=servers).committing_config()
    with closing(BrokerConnection(config)) as brokers:
        [answer] = brokers.send_all([(request(entries=entries, validate_only=False),)])
    assert [entry.error_code for entry in answer.entries] == [0, 0, 0]
    report = preflight(servers)
    assert findings(report, "quotas") == [(servers, "warn")]
    assert "client-id <default>: producer_byte_rate=1e+06" in why(report, "quotas")
    assert "user ANONYMOUS: request_percentage=1e+06" in why(report, "quotas")
    assert "somebody-else" not in why(report, "quotas")
