"""Check the output topics, and check how safely the cluster keeps acknowledged records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.integration.preflight.findings import Finding, Result, failed
from twopc.sinks.kafka.ledger_topic import describe, settings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from confluent_kafka.admin import TopicDescription

    from twopc.integration.preflight.target import Target

    Settings = Mapping[str, str | None]

_CHECK: Final = "output topic"
_RIGHTS: Final = ("WRITE", "DESCRIBE")
#: What a driver cannot do without READ. Everything else works.
_UNASKED: Final = (
    "so if an operator aborts a decided transaction in one partition (kafka-transactions.sh abort), the driver does not "
    "notice that rows are lost"
)
_REPLICAS: Final = 3
_IN_SYNC: Final = 2
_UNLIMITED: Final = 2**63 - 1
#: Limits on a row's timestamp: the setting, the lowest value that needs no warning, and the side of the broker's clock that the
#: setting limits. One hour ahead is Kafka's default.
_TIME_LIMITS: Final = (
    ("message.timestamp.before.max.ms", _UNLIMITED, "behind"),
    ("message.timestamp.after.max.ms", 3_600_000, "ahead of"),
    (
        "message.timestamp.difference.max.ms",
        _UNLIMITED,
        "behind or ahead of",
    ),  # only brokers up to 3.9 have this setting
)


def check_outputs(target: Target) -> Iterator[Finding]:
    """Check that every output topic exists, accepts rows, and keeps them."""
    if not target.topics:
        why, fix = (
            "no output topic was checked, because --topic was not used",
            "Use --topic to name each topic that the query writes to",
        )
        yield Finding(_CHECK, "--topic", Result.WARN, why, fix)
    for topic in target.topics:
        try:
            yield from _check_output(target, topic)
        except TwoPhaseCommitError as error:
            yield failed(_CHECK, topic, error, f"Grant the sink's principal {' and '.join(_RIGHTS)} on {topic}")


def _check_output(target: Target, topic: str) -> Iterator[Finding]:
    found = describe(target.admin, topic, timeout_ms=target.sink.timeout_ms, with_rights=True)
    if found is None:
        why = "the topic does not exist, so the first row for it will stop the query"
        yield Finding(_CHECK, topic, Result.FAIL, why, "Create the topic, or check its name")
        return
    yield Finding(_CHECK, topic, Result.PASS, f"exists, with {counted(len(found.partitions), 'partition')}")
    yield from check_rights(_CHECK, found, _RIGHTS)
    yield from check_rights(_CHECK, found, ("READ",), without=_UNASKED)
    try:
        settings = settings_of(target.admin, topic, timeout_ms=target.sink.timeout_ms) or {}
    except ConfigurationError as error:
        settings = {}
        fix = f"Grant the preflight's principal DescribeConfigs on {topic}, or check the topic's settings yourself"
        yield Finding(_CHECK, topic, Result.WARN, f"the topic's settings were not checked: {error}", fix)
    yield from check_durability(_CHECK, found, settings)
    yield from _check_rows(target, topic, settings)


def check_rights(
    check: str, found: TopicDescription, needed: Collection[str], *, without: str = ""
) -> Iterator[Finding]:
    """Check this principal's permissions on a topic, as the broker reports them (KIP-430).

    If the broker does not report permissions, yield nothing. If the sink can do without the permissions, ``without`` describes
    what the sink cannot do.
    """
    allowed = {operation.name for operation in found.authorized_operations or ()}
    missing = [right for right in needed if right not in allowed and "ALL" not in allowed]
    if allowed and missing:
        rights = ", ".join(missing)
        why = ", ".join(filter(None, [f"the principal does not have {rights} on this topic", without]))
        result = Result.WARN if without else Result.FAIL
        yield Finding(check, found.name, result, why, f"Grant the sink's principal {rights} on {found.name}")


def check_durability(check: str, found: TopicDescription, settings: Settings) -> Iterator[Finding]:
    """Check that the topic accepts records now, and keeps acknowledged records when a broker is lost."""
    replicas = min(len(partition.replicas) for partition in found.partitions)
    in_sync = int(settings.get("min.insync.replicas") or 1)
    short = [partition for partition in found.partitions if len(partition.isr) < in_sync]
    if in_sync > replicas:
        why = (
            f"min.insync.replicas={in_sync} exceeds the topic's {counted(replicas, 'replica')}, so the brokers "
            "reject every record"
        )
        fix = f"Set min.insync.replicas={max(1, replicas - 1)}, or add replicas (kafka-reassign-partitions)"
        yield Finding(check, found.name, Result.FAIL, why, fix)
    elif short:
        ids = ", ".join(str(partition.id) for partition in short)
        why = (
            f"{counted(len(short), 'partition has', 'partitions have')} fewer replicas in sync than "
            f"min.insync.replicas={in_sync}, so these partitions currently reject records: {ids}"
        )
        yield Finding(check, found.name, Result.FAIL, why, "Start the missing brokers")
    weak = []
    if replicas < _REPLICAS:
        weak.append(counted(replicas, "replica"))
    if settings and in_sync < _IN_SYNC:
        weak.append(f"min.insync.replicas={in_sync}")
    if settings.get("unclean.leader.election.enable") == "true":
        weak.append("unclean.leader.election.enable=true")
    if weak:
        why = f"the topic has {', '.join(weak)}, so acknowledged records may be lost when a broker fails"
        fix = f"Set {_REPLICAS} replicas, min.insync.replicas={_IN_SYNC}, unclean.leader.election.enable=false"
        yield Finding(check, found.name, Result.WARN, why, fix)


def _check_rows(target: Target, topic: str, settings: Settings) -> Iterator[Finding]:
    """Find the kinds of rows that the topic would reject, change or delete."""
    limit = int(settings.get("max.message.bytes") or 0)
    largest = target.sink.message_max_bytes
    if 0 < limit < largest:
        why = f"max.message.bytes={limit} is less than the {largest} bytes that the client may send, so the topic may reject rows"
        fix = f"Set max.message.bytes={largest} or more on the topic, or kafka.message.max.bytes={limit} in the sink's options"
        yield Finding(_CHECK, topic, Result.WARN, why, fix)
    policy = str(settings.get("cleanup.policy") or "")
    if "compact" in policy:
        why = (
            f"cleanup.policy={policy}, so the topic refuses rows without a key and keeps only the last row for each key"
        )
        yield Finding(_CHECK, topic, Result.WARN, why, "Set a key in every row, or set cleanup.policy=delete")
    if settings.get("message.timestamp.type") == "LogAppendTime":
        why = (
            "message.timestamp.type=LogAppendTime, so the brokers ignore the rows' timestamp column and store the "
            "time of arrival"
        )
        fix = "Set message.timestamp.type=CreateTime if readers need the timestamp column"
        yield Finding(_CHECK, topic, Result.WARN, why, fix)
        return
    for name, usual, side in _TIME_LIMITS:
        limit_ms = int(settings.get(name) or usual)
        if limit_ms < usual:
            why = (
                f"{name}={limit_ms}, so the topic rejects rows whose timestamp is more than {limit_ms} ms {side} the "
                "broker's clock"
            )
            fix = (
                f"Raise {name}, or filter out such rows. If the DataFrame has no timestamp column, each row is stamped "
                "with the time at which it is sent"
            )
            yield Finding(_CHECK, topic, Result.WARN, why, fix)
