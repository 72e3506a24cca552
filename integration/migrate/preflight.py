"""Run ``twopc migrate preflight``, which adds checks for a running pipeline to the checks of ``twopc preflight``."""

from __future__ import annotations

import contextlib
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import OffsetSpec
from kafka.protocol.admin import DescribeClientQuotasRequest
from kafka.protocol.metadata import MetadataRequest

from twopc.counted import counted
from twopc.integration.connection_options import quiet_admin
from twopc.integration.migrate.clock import check_clock
from twopc.integration.preflight.checks import Check
from twopc.integration.preflight.findings import Finding, Result
from twopc.integration.topic_reader import read_topic
from twopc.sinks.kafka.broker_connection import BrokerConnection
from twopc.sinks.kafka.errors import translated
from twopc.sinks.kafka.ledger_topic import describe
from twopc.sinks.kafka.reader import offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twopc.integration.preflight.target import Target
    from twopc.sinks.kafka import KafkaSink

_SAMPLE: Final = 500
#: The first version of the Metadata request that can describe a topic without creating it. Since Spark 3.0, Spark's
#: connector requires this version.
_DESCRIBES_SINCE: Final = 4
_FETCHING: Final = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching=true"
_MURMUR2, _CRC32, _FNV1A = "murmur2_random", "consistent_random", "fnv1a_random"
_UNASSIGNED: Final = {
    "murmur2": _MURMUR2,
    "murmur2_random": _MURMUR2,
    "consistent": _CRC32,
    "consistent_random": _CRC32,
    "fnv1a": _FNV1A,
    "fnv1a_random": _FNV1A,
}
_RATES: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")


@dataclass(frozen=True)
class Source:
    """The Kafka topics that the query reads."""

    bootstrap_servers: str
    topics: Sequence[str]


def further_checks(source: Source | None) -> tuple[Check, ...]:
    """Return the checks, in the order of the printed table."""
    own = (
        Check("readers", check_groups, tries=False),
        Check("partitioner", check_partitioner, tries=False),
        Check("quotas", check_quotas, tries=False),
        Check("clock", check_clock),
    )
    if source is None:
        return own
    return (Check("source", lambda target: check_source(target.sink, source), tries=False), *own)


def check_source(sink: KafkaSink, source: Source) -> Iterator[Finding]:
    """Check that Spark can read from the source's brokers, which may be old, and that the topics exist."""
    there = replace(sink, bootstrap_servers=source.bootstrap_servers)
    with contextlib.closing(BrokerConnection(there.committing_config())) as brokers:
        version = brokers.broker_version
        is_old = brokers.does_not_know(MetadataRequest, min_version=_DESCRIBES_SINCE)
    text = f"the brokers support the protocol of Kafka {version}"
    if is_old:
        why = (
            f"{text}, which is enough for reading, but they do not support the request that Spark's connector uses to "
            "describe topics"
        )
        yield Finding("source", source.bootstrap_servers, Result.WARN, why, f"Set {_FETCHING} in the Spark session")
    else:
        yield Finding("source", source.bootstrap_servers, Result.PASS, f"{text}, which Spark's connector can read from")
    admin = quiet_admin(there)
    with translated(f"listing the topics of {source.bootstrap_servers}"):
        known = admin.list_topics(timeout=sink.timeout_ms / 1000).topics
    for topic in source.topics:
        if topic in known:
            yield Finding(
                "source", topic, Result.PASS, f"exists, with {counted(len(known[topic].partitions), 'partition')}"
            )
        else:
            why = "the topic does not exist on the source cluster, or this principal has no permission to see it"
            yield Finding(
                "source",
                topic,
                Result.FAIL,
                why,
                "Check the name, or grant this principal Describe and Read on the topic",
            )


def check_groups(target: Target) -> Iterator[Finding]:
    """Find the consumer groups that read the output. A group must read only committed records, but no broker can check that."""
    timeout_s = target.sink.timeout_ms / 1000
    with translated("listing the consumer groups"):
        listed = target.admin.list_consumer_groups(request_timeout=timeout_s).result()
        readers = {topic: set[str]() for topic in target.topics}
        for group in (each.group_id for each in listed.valid):
            wanted = [ConsumerGroupTopicPartitions(group)]
            found = target.admin.list_consumer_group_offsets(wanted, request_timeout=timeout_s)[group].result()
            for partition in found.topic_partitions or ():
                if partition.topic in readers:
                    readers[partition.topic].add(group)
    for topic, groups in readers.items():
        if groups:
            why = (
                f"{counted(len(groups), 'group has', 'groups have')} committed offsets for the topic: "
                f"{', '.join(sorted(groups))}. A read_uncommitted reader also sees rows from undecided and aborted "
                "attempts. The brokers do not know which isolation level a reader uses"
            )
            fix = (
                "Set isolation.level=read_committed in each group's consumers before the cut-over. Readers without "
                "a group are not listed"
            )
            yield Finding("readers", topic, Result.WARN, why, fix)
        else:
            why = (
                "no consumer group that is visible to this principal has committed offsets for the topic. Readers without a "
                "group are not listed"
            )
            yield Finding("readers", topic, Result.PASS, why)


def check_partitioner(target: Target) -> Iterator[Finding]:
    """Sample records from each partition, and check that the sink would put their keys into the same partitions."""
    chosen = str(target.sink.client_options.get("partitioner", _MURMUR2))
    ours = _PARTITIONERS.get(_UNASSIGNED.get(chosen, ""))
    for topic in target.topics:
        found = describe(target.admin, topic, timeout_ms=target.sink.timeout_ms)
        if found is None:  # the check "output topic" reports the missing topic
            continue
        count = len(found.partitions)
        sample = list(_sampled(target, topic, [partition.id for partition in found.partitions]))
        if not sample or ours is None:
            why = (
                f"partitioner={chosen} was not checked, because this command cannot compute which partitions this "
                "partitioner chooses"
                if sample
                else "no sampled record has a key, so no key can move to another partition"
            )
            yield Finding("partitioner", topic, Result.WARN if sample else Result.PASS, why)
            continue
        moved = sum(ours(key) % count != partition for key, partition in sample)
        if not moved:
            why = (
                f"partitioner={chosen} puts the keys of {len(sample)} sampled records into the same partitions as the "
                "old sink did"
            )
            yield Finding("partitioner", topic, Result.PASS, why)
            continue
        why = (
            f"partitioner={chosen} puts the keys of {moved} of {len(sample)} sampled records into different partitions "
            "than the old sink did"
        )
        fits = [name for name, of in _PARTITIONERS.items() if all(of(key) % count == where for key, where in sample)]
        fix = (
            f"Set kafka.partitioner={fits[0]} in the sink's options"
            if fits
            else (
                "Add a 'partition' column that contains the partition the old sink would choose. Without this column, "
                "keys move to other partitions, and the order of each such key's records is lost"
            )
        )
        yield Finding("partitioner", topic, Result.FAIL if fits else Result.WARN, why, fix)


def check_quotas(target: Target) -> Iterator[Finding]:
    """Find the quotas that apply to the sink, because a throttled transaction may expire.

    List every matching quota, although Kafka applies only the most specific quota for each rate. The sink's user is known only
    if the sink logs in with a SASL user name, or connects without any authentication. If the user is unknown, skip the
    user's quotas.
    """
    request = DescribeClientQuotasRequest(components=[], strict=False)
    [answer] = target.brokers.send_all([(request,)])
    if isinstance(answer, Exception) or answer.error_code:
        why = "the quotas were not checked, because this principal is not allowed to see them"
        yield Finding(
            "quotas",
            target.sink.bootstrap_servers,
            Result.WARN,
            why,
            "Grant this principal DescribeConfigs on the cluster",
        )
        return
    options = target.sink.client_options
    # Without SASL and TLS, the brokers see every client as this user.
    nobody = "ANONYMOUS" if options.get("security.protocol", "plaintext").lower() == "plaintext" else None
    ours = {"user": options.get("sasl.username", nobody), "client-id": options.get("client.id", "rdkafka"), "ip": None}
    found = [text for entry in answer.entries or () if (text := _quota(entry, ours))]
    unknown = (
        ""
        if ours["user"]
        else ". The quotas for the sink's user were not checked, because the command does not know this user. It knows "
        "the user only if the sink logs in with a SASL user name, or connects without authentication"
    )
    if found:
        why = (
            f"quotas apply to the sink: {'; '.join(found)}. For each rate, Kafka applies only the most specific quota. "
            f"A transaction expires if it is throttled for too long{unknown}"
        )
        fix = (
            "Raise the quota, or lower the query's maxOffsetsPerTrigger until a batch takes far less time than "
            "kafka.transaction.timeout.ms"
        )
        yield Finding("quotas", target.sink.bootstrap_servers, Result.WARN, why, fix)
    else:
        yield Finding("quotas", target.sink.bootstrap_servers, Result.PASS, f"no quota applies to the sink{unknown}")


def _quota(entry: Any, ours: dict[str, Any]) -> str:
    """Describe a quota if it applies to the sink. Return an empty string for any other quota."""
    if any(part.entity_name not in {None, ours.get(part.entity_type)} for part in entry.entity):
        return ""
    who = ", ".join(f"{part.entity_type} {part.entity_name or '<default>'}" for part in entry.entity)
    rates = [f"{value.key}={value.value:g}" for value in entry.values if value.key in _RATES]
    return f"{who}: {', '.join(rates)}" if rates else ""


def _sampled(target: Target, topic: str, partitions: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """Read the newest records in each partition. For each record with a key, yield this key and the partition."""
    facts: dict[str, Any] = {"timeout_ms": target.sink.timeout_ms}
    ends = offsets(target.admin, topic, partitions, OffsetSpec.latest(), committed=True, **facts)
    first = offsets(target.admin, topic, partitions, OffsetSpec.earliest(), **facts)
    starts = {number: max(first[number], ends[number] - _SAMPLE) for number in partitions}
    for messages in read_topic(target.sink.connection_config(), topic, starts, ends, timeout_ms=target.sink.timeout_ms):
        for message in messages:
            key: Any = message.key()
            if key is not None:
                yield key, message.partition() or 0


def murmur2(data: bytes) -> int:
    """Return the hash that the Java client's default partitioner computes, without the sign bit."""
    mix, mask = 0x5BD1E995, 0xFFFFFFFF
    found = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for place in range(0, whole, 4):
        part = int.from_bytes(data[place : place + 4], "little") * mix & mask
        found = (found * mix & mask) ^ ((part ^ part >> 24) * mix & mask)
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * mix & mask
    found = (found ^ found >> 13) * mix & mask
    return (found ^ found >> 15) & 0x7FFFFFFF


def fnv1a(data: bytes) -> int:
    """Return the absolute value of the signed 32-bit FNV-1a hash, as librdkafka does and as Sarama does by default."""
    found = 0x811C9DC5
    for byte in data:
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return min(found, 2**32 - found)


_PARTITIONERS: Final[dict[str, Callable[[bytes], int]]] = {_MURMUR2: murmur2, _CRC32: zlib.crc32, _FNV1A: fnv1a}
