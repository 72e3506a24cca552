"""Check whether the sink's next start would succeed: run the sink's own checks, and check the ledger. Write nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from twopc.counted import counted
from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.integration.preflight.findings import Finding, Result, failed
from twopc.integration.preflight.topics import check_durability, check_rights
from twopc.sinks.kafka.ledger_topic import MARKER_PARTITIONS, TRANSACTION_LOG, describe, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.integration.preflight.target import Target

_CHECK: Final = "ledger"
_LOG: Final = "transaction log"
_LOG_REPLICAS: Final = "transaction.state.log.replication.factor"
_IDLE: Final = "transactional.id.expiration.ms"
_RIGHTS: Final = ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE")


def check_start(target: Target) -> Iterator[Finding]:
    """Run the checks that the sink makes before it acquires the ledger."""
    target.committer.inspect()
    yield Finding("start", target.sink.name, Result.PASS, "the sink's startup checks pass")


def check_ledger(target: Target) -> Iterator[Finding]:
    """Check the ledger's settings, owner and permissions. If the ledger is missing, check that it can be created."""
    log = target.log
    rights = (
        f"Grant the sink's principal Create, Read, Write, Describe, DescribeConfigs and Delete on {log.name}. Create is not "
        f"needed if you create the ledger yourself, with {1 + MARKER_PARTITIONS} partitions"
    )
    try:
        if log.identity() == ABSENT:
            log.topic.require_creatable()
            yield Finding(
                _CHECK,
                log.name,
                Result.PASS,
                "does not exist yet. The sink can create the ledger when the query first starts",
            )
            return
        log.topic.batch_limit()
        log.topic.marker_partitions()
        decisions = sum(1 for _ in log.inspect().entries)  # raises an error if the ledger belongs to another sink
    except TwoPhaseCommitError as error:
        yield failed(_CHECK, log.name, error, rights)
        return
    yield Finding(_CHECK, log.name, Result.PASS, f"exists, and contains {counted(decisions, 'record')} from this sink")
    found = describe(target.admin, log.name, timeout_ms=target.sink.timeout_ms, with_rights=True)
    if found is not None:
        yield from check_rights(_CHECK, found, _RIGHTS)
        yield from check_durability(_CHECK, found, _in_sync(target, log.name))


def check_transaction_log(target: Target) -> Iterator[Finding]:
    """Check how many replicas Kafka's transaction log has, or would have if it were created now.

    The sink checks the log's settings.
    """
    settings = _broker_settings(target)
    with contextlib.suppress(ConfigurationError):  # without the permission to describe the topic, the sink warns
        found = describe(target.admin, TRANSACTION_LOG, timeout_ms=target.sink.timeout_ms)
        if found is not None:
            yield from check_durability(_LOG, found, _in_sync(target, TRANSACTION_LOG))
        elif (wanted := settings.get(_LOG_REPLICAS, 0)) > len(target.brokers.nodes):
            brokers = len(target.brokers.nodes)
            why = (
                f"{_LOG_REPLICAS}={wanted}, but only {counted(brokers, 'broker is', 'brokers are')} running. So the "
                "brokers cannot create the transaction log, and without this log, no transaction can begin"
            )
            fix = f"Start the missing brokers, or set {_LOG_REPLICAS}={brokers} and transaction.state.log.min.isr=1"
            yield Finding(_LOG, TRANSACTION_LOG, Result.FAIL, why, fix)
    idle_ms, lives_ms = settings.get(_IDLE, 0), target.sink.transaction_timeout_ms
    if 0 < idle_ms < lives_ms:
        why = (
            f"{_IDLE}={idle_ms} is less than the transaction timeout of {lives_ms} ms. Brokers forget a transactional id "
            f"after {idle_ms} ms without an open transaction. Once an id is forgotten, only a marker can prove that a "
            "commit succeeded before a crash"
        )
        yield Finding(
            _LOG, TRANSACTION_LOG, Result.WARN, why, f"Set {_IDLE}=604800000 (7 days, the default) on the brokers"
        )


def _broker_settings(target: Target) -> dict[str, int]:
    """Return the settings of one broker, because all brokers have the same settings.

    Return {} if the permission to read the settings is missing.
    """
    broker = ConfigResource(ResourceType.BROKER, str(target.brokers.nodes[0]))
    timeout_s = target.sink.timeout_ms / 1000
    try:
        found = target.admin.describe_configs([broker], request_timeout=timeout_s)[broker].result()
    except KafkaException:
        return {}
    return {name: int(found[name].value) for name in (_LOG_REPLICAS, _IDLE) if name in found}


def _in_sync(target: Target, topic: str) -> dict[str, str | None]:
    """Return ``min.insync.replicas`` unless its value is 1.

    The sink itself warns about the value 1, and checks all other settings.
    """
    try:
        settings = settings_of(target.admin, topic, timeout_ms=target.sink.timeout_ms) or {}
    except ConfigurationError:  # without the permission to read the settings, the sink warns
        return {}
    name = "min.insync.replicas"
    return {name: settings[name]} if settings.get(name, "1") != "1" else {}
