"""Examine the output topics for a hand-over: find the bounds of a batch's rows, and count the records within these bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import stop_after_delay, wait_fixed

from twopc.errors import ConfigurationError, UnavailableError
from twopc.integration.connection_options import quiet_admin
from twopc.integration.migrate.handover import Bounds
from twopc.integration.migrate.identity import identity_of
from twopc.integration.migrate.probe import is_of_probe
from twopc.integration.topic_reader import read_topic
from twopc.retry import repeating
from twopc.sinks.kafka.errors import translated
from twopc.sinks.kafka.ledger_topic import describe
from twopc.sinks.kafka.reader import offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from confluent_kafka import Message

    from twopc.integration.migrate.handover import Handover
    from twopc.integration.verify.expressions import Expression
    from twopc.sinks.kafka import KafkaSink

_NONE_AT_THAT_TIME: Final = -1
_PAUSE_S: Final = 0.2


@dataclass
class Tally:
    """The record counts within a hand-over's bounds.

    Attributes:
        exact: records at or above the offset :attr:`Bounds.exact`.
        before: records below the offset :attr:`Bounds.exact`, written at most ``clock_skew_ms`` before Spark planned
            the batch.
        repeated: records in ``exact`` that duplicate an earlier record.
        unidentified: records in ``exact`` in which the key expression finds nothing.
        undated: by topic, the records in ``exact`` whose timestamp is earlier than the planned time minus ``clock_skew_ms``.
    """

    exact: int = 0
    before: int = 0
    repeated: int = 0
    unidentified: int = 0
    undated: Counter[str] = field(default_factory=Counter)


def bounds_of(
    sink: KafkaSink, topic: str, since_ms: int, clock_skew_ms: int, starts: Mapping[int, int] | None
) -> dict[int, Bounds]:
    """Return the current bounds of a topic's partitions.

    Args:
        sink: describes the cluster.
        topic: the topic.
        since_ms: when the batch was planned, in ms since 1970 UTC.
        clock_skew_ms: how far a producer's clock may be behind the driver's clock, in ms.
        starts: the first offset for each partition, as given by the user. If None, the first offsets are found by time.

    Raises:
        ConfigurationError: the topic or a partition does not exist, or a transaction stays open in the topic.
        TwoPhaseCommitError: the brokers do not respond.
    """
    admin = quiet_admin(sink)
    found = describe(admin, topic, timeout_ms=sink.timeout_ms)
    if found is None:
        raise ConfigurationError(f"topic {topic} does not exist at {sink.bootstrap_servers}. Check --topic")
    numbers = [partition.id for partition in found.partitions]
    ends = _stable_ends(admin, topic, numbers, sink.timeout_ms)
    first = offsets(admin, topic, numbers, OffsetSpec.earliest(), timeout_ms=sink.timeout_ms)
    if starts is not None:
        if set(starts) != set(numbers):
            raise ConfigurationError(
                f"--start-offsets must contain an offset for each partition of {topic}: {', '.join(map(str, numbers))}"
            )
        for number in numbers:
            if not first[number] <= starts[number] <= ends[number]:
                raise ConfigurationError(
                    f"--start-offsets: offset {starts[number]} of {topic}[{number}] is outside the range {first[number]} to "
                    f"{ends[number]}"
                )
        return {number: Bounds(start=starts[number], exact=starts[number], end=ends[number]) for number in numbers}
    exact = _at_time(admin, topic, ends, since_ms, sink.timeout_ms)
    before = _at_time(admin, topic, ends, max(0, since_ms - clock_skew_ms), sink.timeout_ms)
    earliest = {number: min(before[number], exact[number]) for number in numbers}
    return {
        number: Bounds(start=start, exact=exact[number], end=ends[number], follows_deletion=0 < first[number] == start)
        for number, start in earliest.items()
    }


def _stable_ends(admin: AdminClient, topic: str, numbers: Collection[int], timeout_ms: float) -> dict[int, int]:
    """Return the current end offsets, as soon as no open transaction hides a record below them.

    Raises:
        ConfigurationError: a transaction stays open.
        TwoPhaseCommitError: the brokers do not respond.
    """
    ends = offsets(admin, topic, numbers, OffsetSpec.latest(), timeout_ms=timeout_ms)

    def held() -> list[int]:
        stable = offsets(admin, topic, numbers, OffsetSpec.latest(), timeout_ms=timeout_ms, committed=True)
        # Another program may have written since the first request, so an end offset may have increased.
        return [number for number in numbers if stable[number] < ends[number]]

    # If another program continuously writes in transactions, one of them is nearly always open, but no transaction lasts long.
    waiting = repeating(stop=stop_after_delay(timeout_ms / 1000), backoff=wait_fixed(_PAUSE_S))
    if open_in := ", ".join(f"{topic}[{number}]" for number in waiting(held)):
        raise ConfigurationError(
            f"{open_in} contains an open transaction, which did not end within {timeout_ms:.0f} ms. A transactional "
            "query may be writing to the output. Nothing was written. Stop that query, or end its open transactions. If another "
            "program's transactions take longer, wait longer: raise --timeout or, in a query, the sink's timeout_ms"
        )
    return ends


def tally(sink: KafkaSink, handover: Handover, key: Expression | None) -> Tally:
    """Count the records within the bounds.

    Raises:
        TwoPhaseCommitError: some of the records could not be read.
    """
    found, seen = Tally(), Counter[bytes]()
    earliest_ms = handover.planned_ms - handover.clock_skew_ms
    for topic, message in records_of(sink, handover):
        if (message.offset() or 0) < handover.topics[topic][message.partition() or 0].exact:
            found.before += 1
            continue
        found.exact += 1
        found.undated[topic] += message.timestamp()[1] < earliest_ms
        identity = identity_of(topic, message, key)
        if identity is None:
            found.unidentified += 1
        else:
            seen[identity] += 1
    found.repeated = sum(seen.values()) - len(seen)
    return found


def has_record_since(sink: KafkaSink, topic: str, bounds: Mapping[int, Bounds], since_ms: int) -> bool:
    """Return whether a record below the bounds' ends has this timestamp or a later one.

    Raises:
        TwoPhaseCommitError: the brokers do not respond.
    """
    ends = {number: at.end for number, at in bounds.items()}
    return _at_time(quiet_admin(sink), topic, ends, max(0, since_ms), sink.timeout_ms) != ends


def records_of(sink: KafkaSink, handover: Handover) -> Iterator[tuple[str, Message]]:
    """Yield every record within the bounds, with its topic, but no record of ``twopc migrate probe``.

    The migration guide advises to probe the readers before the cut-over.
    """
    for topic, partitions in handover.topics.items():
        starts = {number: bounds.start for number, bounds in partitions.items()}
        ends = {number: bounds.end for number, bounds in partitions.items()}
        for messages in read_topic(sink.connection_config(), topic, starts, ends, timeout_ms=sink.timeout_ms):
            for message in messages:
                if not is_of_probe(message):
                    yield topic, message


def kept(sink: KafkaSink, handover: Handover) -> Handover:
    """Return the hand-over with bounds that leave out the records that the broker has deleted in the meantime.

    Raises:
        TwoPhaseCommitError: the brokers do not respond.
    """

    def earliest(admin: AdminClient, topic: str, numbers: Collection[int]) -> dict[int, int]:
        return offsets(admin, topic, numbers, OffsetSpec.earliest(), timeout_ms=sink.timeout_ms)

    return _with_bounds(sink, handover, earliest, lambda bounds, first: bounds.since(first))


def afterward(sink: KafkaSink, handover: Handover, *, is_swept: bool = False) -> Handover:
    """Return the hand-over with new bounds, which contain the committed records written after the old bounds were recorded.

    An open transaction hides all later records of its partition, even records that were written without a transaction.

    Args:
        sink: describes the cluster.
        handover: the hand-over.
        is_swept: whether the new query has ended its own open transactions. If so, wait for other programs' transactions to
            end. Otherwise, the new bounds end at the first open transaction.

    Raises:
        ConfigurationError: ``is_swept`` is true, and a transaction stays open.
        TwoPhaseCommitError: the brokers do not respond.
    """

    def ends(admin: AdminClient, topic: str, numbers: Collection[int]) -> dict[int, int]:
        if is_swept:
            return _stable_ends(admin, topic, numbers, sink.timeout_ms)
        return offsets(admin, topic, numbers, OffsetSpec.latest(), timeout_ms=sink.timeout_ms, committed=True)

    return _with_bounds(sink, handover, ends, lambda bounds, end: Bounds(start=bounds.end, exact=bounds.end, end=end))


def _with_bounds(
    sink: KafkaSink,
    handover: Handover,
    found: Callable[[AdminClient, str, Collection[int]], Mapping[int, int]],
    new: Callable[[Bounds, int], Bounds],
) -> Handover:
    """Return the hand-over with new bounds, each computed from the old ones and from the partition's offset in ``found``."""
    admin = quiet_admin(sink)
    topics = {}
    for topic, partitions in handover.topics.items():
        at = found(admin, topic, partitions)
        topics[topic] = {number: new(bounds, at[number]) for number, bounds in partitions.items()}
    return msgspec.structs.replace(handover, topics=topics)


def _at_time(admin: AdminClient, topic: str, ends: Mapping[int, int], at_ms: int, timeout_ms: float) -> dict[int, int]:
    """For each partition, return the offset of the first record that is not earlier than ``at_ms``.

    If all of a partition's records are earlier, return the partition's end offset.
    """
    wanted = {TopicPartition(topic, number): OffsetSpec.for_timestamp(at_ms) for number in ends}
    found = {}
    with translated(f"looking up offsets of {topic} by timestamp"):
        for where, future in admin.list_offsets(wanted, request_timeout=timeout_ms / 1000).items():
            offset = future.result().offset
            if offset < _NONE_AT_THAT_TIME:  # librdkafka reports no error if the broker does not respond
                raise UnavailableError(f"{topic}[{where.partition}]: no response within {timeout_ms:.0f} ms")
            found[where.partition] = ends[where.partition] if offset == _NONE_AT_THAT_TIME else offset
    return found
