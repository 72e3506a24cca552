"""Test whether a consumer group actually reads only committed records, regardless of its settings (``twopc migrate probe``).

The probe commits a record to each partition, and waits until the group has committed an offset past this record. The
group's offset shows that the group reads the partition. Most groups commit offsets at intervals. To measure an interval, the
probe immediately commits a second record, and waits for the group's next offset. Then the probe writes another record in a
transaction, and keeps the transaction open for longer than the second wait. A group under ``read_committed`` cannot move past
this record. A group under ``read_uncommitted`` reads the record, and commits an offset past it. Finally, the probe aborts the
transaction. The probe also aborts the transaction after an error or a signal, because the topic's readers wait for its end.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition

from twopc.errors import ConfigurationError, RetriableError
from twopc.integration.connection_options import quiet_admin
from twopc.integration.migrate.own_topic import own_topic
from twopc.integration.preflight.findings import Finding, Result
from twopc.sinks.kafka.errors import SERVING, cause_of, error_of, on_ids, on_topic, translated
from twopc.sinks.kafka.ledger_topic import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

    from twopc.sinks.kafka import KafkaSink

logger = logging.getLogger(__name__)

_COMMITTED: Final = b"twopc migrate probe: this record is committed; every reader sees it"
_ABORTED: Final = b"twopc migrate probe: this record was aborted; no read_committed reader sees it"
#: Marks a record of a probe. A query that copies the topic usually copies keys and values, so its copies are not marked.
_HEADER: Final = "twopc-probe"
#: The transaction stays open for this multiple of the time that the group took to commit an offset past the second record.
_PATIENCE: Final = 3
#: How long to wait before the record is written again: a group that starts at the end of a new topic sees only later
#: records.
_AGAIN_S: Final = 3.0
_PAUSE_S: Final = 0.1
_FIX: Final = "Set isolation.level=read_committed in every member of the group, restart the members, and probe again"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The parameters of a probe.

    Attributes:
        group: the consumer group.
        topic: a topic that the group reads. With None, the probe creates a topic, and the user must start a reader on it.
        wait_s: how long the group may take to commit an offset, in seconds.
        hold_s: the minimum time that the transaction stays open, in seconds.
    """

    group: str
    topic: str | None
    wait_s: float
    hold_s: float


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The findings for each partition, and the traces that the probe leaves in the cluster."""

    topic: str
    findings: tuple[Finding, ...]
    left_behind: str


def is_of_probe(message: Message) -> bool:
    """Whether a probe has written and committed this record."""
    if message.value() != _COMMITTED:
        return False
    return message.key() is None and dict(message.headers() or ()).keys() == {_HEADER}


def probe(wanted: Probe, sink: KafkaSink, say: Callable[[str], object]) -> Probed:
    """Probe a consumer group.

    Args:
        wanted: the parameters.
        sink: describes the connection. The probe's ids and topic have the same prefixes as the sink's ids and ledger.
        say: called as soon as the topic exists, with a sentence that tells the user which topic to read.

    Raises:
        ConfigurationError: the topic does not exist, or a permission is missing.
        TwoPhaseCommitError: the brokers do not respond.
    """
    longest_s = max(wanted.hold_s, _PATIENCE * wanted.wait_s)
    if longest_s * 1000 > sink.transaction_timeout_ms:
        raise ConfigurationError(
            f"the probe may keep its transaction open for {longest_s:.0f} s, but "
            f"kafka.transaction.timeout.ms={sink.transaction_timeout_ms} ends the transaction earlier. Nothing was "
            "written. Lower --wait or --hold, or raise kafka.transaction.timeout.ms"
        )
    own = f"probe-{uuid.uuid4().hex[:12]}"
    admin = quiet_admin(sink)
    if wanted.topic is not None:
        found = describe(admin, wanted.topic, timeout_ms=sink.timeout_ms)
        if found is None:
            raise ConfigurationError(f"topic {wanted.topic} does not exist at {sink.bootstrap_servers}. Check --topic")
        partitions = [partition.id for partition in found.partitions]
        with _writing(sink, wanted.topic, f"{sink.name}.{own}") as writer:
            findings = _tried(wanted, writer, _Group(admin, wanted, wanted.topic, sink.timeout_ms), partitions)
        left = (
            "in each partition, two committed records, which every reader sees; one aborted record, which no read_committed "
            "reader sees; and three control records"
        )
        return Probed(topic=wanted.topic, findings=findings, left_behind=left)
    topic = f"{sink.ledger}.{own}"
    with own_topic(admin, topic, sink.timeout_ms / 1000):
        say(
            f"Start a reader from group {wanted.group} on the topic {topic}, with the settings that the reader will use "
            "later."
        )
        with _writing(sink, topic, f"{sink.name}.{own}") as writer:
            findings = _tried(wanted, writer, _Group(admin, wanted, topic, sink.timeout_ms), [0])
    return Probed(topic=topic, findings=findings, left_behind="the group's offsets for this topic, until they expire")


@dataclass(frozen=True)
class _Writer:
    """Writes one record per partition in a transaction."""

    producer: Producer
    transactional_id: str
    topic: str
    timeout_s: float

    def write(self, value: bytes, partitions: Collection[int]) -> dict[int, int]:
        """Begin a transaction, write a record to each partition, and return the records' offsets."""
        offsets: dict[int, int] = {}
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                offsets[message.partition()] = message.offset()
            else:
                failures.append(error)

        with translated(f"writing to {self.topic}", right=on_topic("Write", self.topic)):
            self.producer.begin_transaction()
            for partition in partitions:
                headers: dict[str, str | bytes | None] = {_HEADER: self.transactional_id}
                self.producer.produce(self.topic, value, partition=partition, headers=headers, on_delivery=delivered)
            self.producer.flush(self.timeout_s)
            if failures:
                raise KafkaException(cause_of(self.producer, failures[0]))
            if len(offsets) < len(partitions):
                raise RetriableError(f"{self.topic} did not accept the probe's records within {self.timeout_s:.0f} s")
        return offsets

    def commit(self) -> None:
        with translated(f"committing a record in {self.topic}"):
            self.producer.commit_transaction(self.timeout_s)

    def abort(self) -> None:
        with translated(f"aborting a transaction in {self.topic}"):
            self.producer.abort_transaction(self.timeout_s)

    def end(self) -> None:
        """Abort the transaction that an error or a signal has left open."""
        try:
            self.producer.abort_transaction(self.timeout_s)
        except SERVING as error:
            found = error_of(error)
            if found.code() != KafkaError._STATE:  # noqa: SLF001 - a public constant: no transaction is open
                logger.warning(
                    "the transaction of %s could not be aborted (%s), so it may still be open. No row is lost, but "
                    "read_committed readers of %s wait until the transaction times out (kafka.transaction.timeout.ms)",
                    self.transactional_id,
                    found.str(),
                    self.topic,
                )


@dataclass(frozen=True)
class _Group:
    admin: AdminClient
    wanted: Probe
    topic: str
    timeout_ms: float

    def behind(self, marks: Mapping[int, int]) -> dict[int, int]:
        """Return the committed offset of each partition in which the group has read past the mark."""
        request = ConsumerGroupTopicPartitions(
            self.wanted.group, [TopicPartition(self.topic, partition) for partition in marks]
        )
        doing = f"reading the offsets of group {self.wanted.group}"
        with translated(
            doing, right=f"Describe on the group {self.wanted.group}, and Describe on the topic {self.topic}"
        ):
            (future,) = self.admin.list_consumer_group_offsets(
                [request], request_timeout=self.timeout_ms / 1000
            ).values()
            found = future.result().topic_partitions or ()
        return {one.partition: one.offset for one in found if one.offset > marks[one.partition]}

    def until_behind(
        self, marks: Mapping[int, int], seconds: float, again: Callable[[], object] = lambda: None
    ) -> dict[int, int]:
        """Wait until :meth:`behind` returns every partition, or until the time is up. Call ``again`` from time to time."""
        ends, next_at = time.monotonic() + seconds, time.monotonic() + _AGAIN_S
        while True:
            found = self.behind(marks)
            if len(found) == len(marks) or time.monotonic() > ends:
                return found
            if time.monotonic() > next_at:
                again()
                next_at = time.monotonic() + _AGAIN_S
            time.sleep(_PAUSE_S)


def _tried(wanted: Probe, writer: _Writer, group: _Group, partitions: Collection[int]) -> tuple[Finding, ...]:
    def commit_to(some: Collection[int]) -> dict[int, int]:
        offsets = writer.write(_COMMITTED, some)
        writer.commit()
        return offsets

    def commit_another() -> None:
        if wanted.topic is None:  # never write to the user's topic, where every reader would see these records
            commit_to(partitions)

    passed: dict[int, int] = {}
    marks: dict[int, int] = {}
    took_s = 0.0
    read = group.until_behind(commit_to(partitions), wanted.wait_s, commit_another)
    if read:
        # The group may have been about to commit when the first record arrived. The second record arrives just after a
        # commit.
        began = time.monotonic()
        read = group.until_behind(commit_to(list(read)), wanted.wait_s)
        took_s = time.monotonic() - began
    hold_s = max(wanted.hold_s, _PATIENCE * took_s)
    if read:
        marks = writer.write(_ABORTED, list(read))
        passed = group.until_behind(marks, hold_s)
        writer.abort()
    return tuple(_finding(group, partition, took_s, hold_s, marks, passed, read) for partition in partitions)


def _finding(  # noqa: PLR0913, PLR0917 - one argument for each observation
    group: _Group,
    partition: int,
    took_s: float,
    hold_s: float,
    marks: Mapping[int, int],
    passed: Mapping[int, int],
    read: Collection[int],
) -> Finding:
    subject, name = f"{group.topic}[{partition}]", group.wanted.group
    if partition not in read:
        why = (
            f"group {name} did not commit an offset past each of two committed records within "
            f"{group.wanted.wait_s:.0f} s, so its isolation level is unknown. Perhaps the group does not read this "
            "partition, is too slow, or, like Spark, does not store its offsets in Kafka"
        )
        return Finding("reader", subject, Result.WARN, why, "Start the reader, or wait longer with --wait")
    if partition in passed:
        why = (
            f"group {name} committed offset {passed[partition]} while the transaction with the record at {marks[partition]} was "
            "open, so the group reads uncommitted records"
        )
        return Finding("reader", subject, Result.FAIL, why, _FIX)
    why = (
        f"group {name} moved past a committed record within {took_s:.1f} s, but did not move past a transaction that "
        f"stayed open for {hold_s:.1f} s"
    )
    return Finding("reader", subject, Result.PASS, why)


@contextlib.contextmanager
def _writing(sink: KafkaSink, topic: str, transactional_id: str) -> Iterator[_Writer]:
    timeout_s = sink.timeout_ms / 1000
    producer = Producer(
        {**sink.producer_config(), "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0}
    )
    with translated(f"initializing {transactional_id}", right=on_ids("Write", transactional_id)):
        producer.init_transactions(timeout_s)
    writer = _Writer(producer, transactional_id, topic, timeout_s)
    try:
        yield writer
    finally:
        writer.end()
