"""Brokers, ledgers and outputs that are wrong: ``twopc preflight`` names each with its remedy, and invents none."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from integration.preflight.command import run_preflight
from integration.preflight.findings import Result
from integration.services.kafka import LocalKafka
from sinks.kafka import KafkaSink
from sinks.kafka.ledger_topic import TRANSACTION_LOG
from tests.live.pipeline import create_topic

if TYPE_CHECKING:
    from integration.preflight.findings import Finding
    from integration.preflight.report import Report
    from tests.live.services import KafkaService

_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
#: Of a ledger that is there: its partitions and settings, and what is said of it.
LEDGERS = {
    "one partition": (1, _KEPT, "Add partitions"),
    "more in sync than it has replicas": (9, {**_KEPT, "min.insync.replicas": "2"}, "Set min.insync.replicas=1"),
    "small messages": (9, {**_KEPT, "max.message.bytes": "5000"}, "max.message.bytes=5000, too small"),
    "compacted": (9, {**_KEPT, "cleanup.policy": "compact"}, "cleanup.policy=compact"),
    "forgets": (9, {**_KEPT, "retention.ms": "60000"}, "retention.ms=60000"),
}


def report_of(servers: str, name: str, *topics: str) -> Report:
    return run_preflight(KafkaSink(name=name, bootstrap_servers=servers, timeout_ms=15_000), topics)


def worse(report: Report, result: Result) -> list[Finding]:
    return [line for line in report.findings if line.result is result]


def test_a_single_healthy_broker_has_no_fault_but_its_single_replicas(kafka: KafkaService) -> None:
    name = f"f{uuid.uuid4().hex[:10]}"
    topic = create_topic(kafka.bootstrap_servers, f"{name}-out")
    report = report_of(kafka.bootstrap_servers, name, topic)
    assert not worse(report, Result.FAIL)
    assert all("replica(s)" in line.why or "min.insync.replicas=1" in line.why for line in worse(report, Result.WARN))


@pytest.mark.parametrize("fault", LEDGERS)
def test_each_fault_of_a_ledger_has_its_line(fault: str, kafka: KafkaService) -> None:
    """Caught mutations: the partitions are not counted; the replicas in sync are not compared."""
    partitions, config, said = LEDGERS[fault]
    name = f"f{uuid.uuid4().hex[:10]}"
    create_topic(kafka.bootstrap_servers, f"twopc-ledger-{name}", partitions, config)
    topic = create_topic(kafka.bootstrap_servers, f"{name}-out")
    failed = worse(report_of(kafka.bootstrap_servers, name, topic), Result.FAIL)
    assert failed
    assert all(line.fix for line in failed)
    assert any(said in f"{line.why} {line.fix}" for line in failed), failed


def test_a_transaction_log_that_refuses_every_record_is_named_with_its_remedy() -> None:
    """Kafka starts with such settings. Then no transactional id can be initialised, and no error says why."""
    with LocalKafka(properties={"transaction.state.log.min.isr": "2"}) as kafka:
        topic = create_topic(kafka.bootstrap_servers, "orders-out")
        failed = worse(report_of(kafka.bootstrap_servers, "orders", topic), Result.FAIL)
    (line,) = [line for line in failed if line.subject == TRANSACTION_LOG]
    assert "min.insync.replicas=2 exceeds its 1 replica(s)" in line.why
    assert "Set min.insync.replicas=1" in line.fix
