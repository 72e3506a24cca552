"""The sink's next start, as far as it only reads: what it checks by itself, and its ledger."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from integration.preflight.findings import Finding, Result, failed
from integration.preflight.topics import check_durability, check_rights
from sinks.kafka.ledger_topic import ABSENT, MARKER_PARTITIONS, TRANSACTION_LOG, describe, settings_of
from twopc.errors import ConfigurationError, TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.preflight.target import Target

_CHECK: Final = "ledger"
_RIGHTS: Final = ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE")


def check_start(target: Target) -> Iterator[Finding]:
    """What the sink checks before it acquires anything."""
    target.committer.inspect()
    yield Finding("start", target.sink.name, Result.PASS, "the sink's own checks at its start pass")


def check_ledger(target: Target) -> Iterator[Finding]:
    """Where there is none, whether it could be created; else its settings, its owner and the rights on it."""
    log = target.log
    rights = (
        f"Allow Create, Read, Write, Describe, DescribeConfigs and Delete on {log.name} to the sink's principal. Without Create, "
        f"create it by hand, with {1 + MARKER_PARTITIONS} partitions"
    )
    try:
        if log.identity() == ABSENT:
            log.topic.require_creatable()
            yield Finding(_CHECK, log.name, Result.PASS, "does not exist yet; the first start may create it")
            return
        log.topic.batch_limit()
        log.topic.marker_partitions()
        decisions = sum(1 for _ in log.inspect().entries)  # raises if it belongs to another sink
    except TwoPhaseCommitError as error:
        yield failed(_CHECK, log.name, error, rights)
        return
    yield Finding(_CHECK, log.name, Result.PASS, f"exists, and has {decisions} record(s) of this sink")
    found = describe(target.admin, log.name, timeout_ms=target.sink.timeout_ms, with_rights=True)
    if found is not None:
        yield from check_rights(_CHECK, found, _RIGHTS)
        yield from check_durability(_CHECK, found, _in_sync(target, log.name))


def check_transaction_log(target: Target) -> Iterator[Finding]:
    """How many replicas Kafka's own log of transactions has; the sink itself looks at its settings."""
    with contextlib.suppress(ConfigurationError):  # without the right to see it, the sink warns
        found = describe(target.admin, TRANSACTION_LOG, timeout_ms=target.sink.timeout_ms)
        if found is not None:
            yield from check_durability("transaction log", found, _in_sync(target, TRANSACTION_LOG))


def _in_sync(target: Target, topic: str) -> dict[str, str | None]:
    """How many replicas must be in sync, if more than one: the sink itself warns about one, and looks at all other settings."""
    try:
        settings = settings_of(target.admin, topic, timeout_ms=target.sink.timeout_ms) or {}
    except ConfigurationError:  # without the right to see them, the sink warns
        return {}
    name = "min.insync.replicas"
    return {name: settings[name]} if settings.get(name, "1") != "1" else {}
