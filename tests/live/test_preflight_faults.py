"""Faulty brokers, ledgers and outputs: ``twopc preflight`` names each fault with its remedy, and reports no others."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.pipeline import create_topic
from tests.live.security_support import USER
from twopc.errors import RetriableError
from twopc.integration.preflight.command import run_preflight
from twopc.integration.preflight.findings import Result
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.ledger_topic import TRANSACTION_LOG

if TYPE_CHECKING:
    from tests.live.services import KafkaService
    from twopc.integration.preflight.findings import Finding
    from twopc.integration.preflight.report import Report

_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
#: For each existing ledger, its number of partitions, its settings, and the finding.
LEDGERS = {
    "one partition": (1, _KEPT, "Add partitions"),
    "more in sync than it has replicas": (9, {**_KEPT, "min.insync.replicas": "2"}, "Set min.insync.replicas=1"),
    "small messages": (9, {**_KEPT, "max.message.bytes": "5000"}, "max.message.bytes=5000, which is too small"),
    "compacted": (9, {**_KEPT, "cleanup.policy": "compact"}, "cleanup.policy=compact"),
    "forgets": (9, {**_KEPT, "retention.ms": "60000"}, "retention.ms=60000"),
}


def report_of(servers: str, name: str, *topics: str) -> Report:
    return run_preflight(KafkaSink(name=name, bootstrap_servers=servers, timeout_ms=15_000), topics)


def worse(report: Report, result: Result) -> list[Finding]:
    return [line for line in report.findings if line.result is result]


def test_a_single_healthy_broker_has_no_fault_except_that_each_partition_has_one_replica(kafka: KafkaService) -> None:
    name = f"f{uuid.uuid4().hex[:10]}"
    topic = create_topic(kafka.bootstrap_servers, f"{name}-out")
    report = report_of(kafka.bootstrap_servers, name, topic)
    assert not worse(report, Result.FAIL)
    assert all("replica" in line.why or "min.insync.replicas=1" in line.why for line in worse(report, Result.WARN))


@pytest.mark.parametrize("fault", LEDGERS)
def test_each_fault_of_a_ledger_is_reported(fault: str, kafka: KafkaService) -> None:
    """Caught mutations: the partitions are not counted; the replicas in sync are not compared."""
    partitions, config, said = LEDGERS[fault]
    name = f"f{uuid.uuid4().hex[:10]}"
    create_topic(kafka.bootstrap_servers, f"twopc-ledger-{name}", partitions, config)
    topic = create_topic(kafka.bootstrap_servers, f"{name}-out")
    failed = worse(report_of(kafka.bootstrap_servers, name, topic), Result.FAIL)
    assert failed
    assert all(line.fix for line in failed)
    assert any(said in f"{line.why} {line.fix}" for line in failed), failed


@pytest.mark.whole
def test_a_transaction_log_that_refuses_every_record_is_reported_with_its_remedy() -> None:
    """Kafka starts with such settings. Then no transactional id can be initialised, and no error says why."""
    with LocalKafka(properties={"transaction.state.log.min.isr": "2"}) as kafka:
        topic = create_topic(kafka.bootstrap_servers, "orders-out")
        failed = worse(report_of(kafka.bootstrap_servers, "orders", topic), Result.FAIL)
    (line,) = [line for line in failed if line.subject == TRANSACTION_LOG]
    assert "min.insync.replicas=2 exceeds the topic's 1 replica," in line.why
    assert "Set min.insync.replicas=1" in line.fix


@pytest.mark.whole
def test_a_transaction_log_that_cannot_be_created_is_reported_with_its_remedy() -> None:
    """Kafka's default of three replicas on a single broker: every client sees only that no coordinator responds."""
    with LocalKafka(properties={"transaction.state.log.replication.factor": "3"}) as kafka:
        failed = worse(report_of(kafka.bootstrap_servers, "orders"), Result.FAIL)
    (line,) = [line for line in failed if line.subject == TRANSACTION_LOG]
    assert "transaction.state.log.replication.factor=3, but only 1 broker is running" in line.why
    assert "set transaction.state.log.replication.factor=1" in line.fix


def test_ids_that_brokers_forget_too_early_are_reported_with_their_remedy() -> None:
    with LocalKafka(properties={"transactional.id.expiration.ms": "60000"}) as kafka:
        warned = worse(report_of(kafka.bootstrap_servers, "orders"), Result.WARN)
    (line,) = [line for line in warned if "transactional.id.expiration.ms=60000" in line.why]
    assert "transactional.id.expiration.ms=604800000" in line.fix


@pytest.mark.whole
def test_a_wrong_password_is_distinguished_from_a_broker_that_is_down(
    secured: LocalKafka, secure_options: dict[str, Any]
) -> None:
    """Both look the same to kafka-python."""
    options = {**secure_options, "kafka.sasl.username": USER, "kafka.sasl.password": "wrong-91c4e7"}
    sink = KafkaSink(name="orders", bootstrap_servers=secured.address("SECURE"), options=options, timeout_ms=15_000)
    with pytest.raises(RetriableError, match=r"no Kafka broker responds.*invalid credentials") as raised:
        run_preflight(sink, ())
    assert "wrong-91c4e7" not in str(raised.value)
