"""Everything that verify reads from a cluster. No producer, and no request that changes anything."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from sinks.kafka import ledger_topic
from sinks.kafka.errors import error_of, translate
from sinks.kafka.markers import Marker, decode_marker
from sinks.kafka.options import connection_config, parse
from sinks.kafka.reader import offsets
from sinks.kafka.transactions import TransactionClient
from twopc.errors import ConfigurationError, DecisionLogDamagedError, RetriableError, TwoPhaseCommitError
from twopc.log_view import last_acquired

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sinks.kafka import KafkaSink
    from sinks.kafka.decision_log import KafkaDecisionLog
    from twopc.records import LogContents


class Bounds(NamedTuple):
    """A topic's offsets by partition.

    Attributes:
        starts: first offset that still exists.
        stable: last stable offset, where readers stop.
        ends: log end offset; above ``stable`` while a transaction is open.
    """

    starts: dict[int, int]
    stable: dict[int, int]
    ends: dict[int, int]

    @property
    def held_back(self) -> int:
        """Offsets that open transactions keep from readers."""
        return sum(self.ends.values()) - sum(self.stable.values())


class Ledgers(NamedTuple):
    """The decision log, by name and contents, and the sink's own ledger; they may be the same."""

    name: str
    deciding: LogContents
    own: LogContents


class Cluster:
    """The cluster of one sink."""

    def __init__(self, sink: KafkaSink) -> None:
        """Connect.

        Raises:
            ConfigurationError: the sink has no ledger on this cluster.
            TwoPhaseCommitError: no broker answers.
        """
        self.sink = sink
        self.connection = connection_config(sink.bootstrap_servers, parse(sink.options))
        # This client first: it reports an unreachable broker in one line; librdkafka retries and logs every attempt.
        self.transactions = TransactionClient(sink.committing_config())
        self.ledger = sink.create_decision_log()
        self._deciding: KafkaDecisionLog | None = None
        self._timeout_ms = sink.timeout_ms
        try:
            self._require_ledger()
        except TwoPhaseCommitError:
            self.close()
            raise

    def _require_ledger(self) -> None:
        if self.ledger.identity() == ledger_topic.ABSENT:
            raise ConfigurationError(
                f"there is no topic {self.sink.ledger} at {self.sink.bootstrap_servers}: sink {self.sink.name!r} has never "
                "written there. Correct --sink, or name its ledger with --ledger-topic"
            )

    def close(self) -> None:
        """Close the connections."""
        self.transactions.close()
        self.ledger.close()
        if self._deciding is not None:
            self._deciding.close()

    def ledgers(self) -> Ledgers:
        """Read the decisions. Several sinks of one query share the ledger of the first.

        Raises:
            DecisionLogDamagedError: a record is torn or altered.
        """
        own = self.ledger.inspect()
        acquire = last_acquired(own)
        name = self.ledger.name if acquire is None else acquire.deciding_log
        if name == self.ledger.name:
            return Ledgers(name, own, own)
        if self._deciding is None:
            self._deciding = dataclasses.replace(self.sink, ledger_topic=name).create_decision_log()
        if self._deciding.identity() == ledger_topic.ABSENT:
            raise DecisionLogDamagedError(
                f"{self.ledger.name} names {name} as the decision log, but there is no such topic"
            )
        return Ledgers(name, self._deciding.inspect(), own)

    def markers(self, partition: int, start: int, end: int) -> list[tuple[int, Marker]]:
        """Visible markers with their offsets, from ``start`` at least up to ``end``, a last stable offset.

        Raises:
            DecisionLogDamagedError: a record is not a marker.
            RetriableError: the brokers did not answer in time.
        """
        name = self.ledger.name
        rows = self.ledger.reader.read(name, partition, start, None, end=end, timeout_ms=self._timeout_ms)
        if rows is None:
            raise RetriableError(
                f"{self.ledger.name}[{partition}] could not be read from offset {start}: run the check again"
            )
        try:
            # A record without a key is a barrier.
            return [(row.offset, decode_marker(row.value)) for row in rows if row.key is not None]
        except msgspec.DecodeError as error:
            raise DecisionLogDamagedError(
                f"{self.ledger.name}[{partition}] holds a record that is not a marker ({error})"
            ) from error

    def marker_bounds(self) -> Bounds:
        """The offsets of the ledger's marker partitions."""
        partitions = ledger_topic.marker_partitions(self.ledger.admin, self.ledger.name, timeout_ms=self._timeout_ms)
        return self._bounds(self.ledger.name, partitions)

    def bounds(self, topic: str) -> Bounds | None:
        """The offsets of a topic; None if it does not exist."""
        futures = self.ledger.admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_ms / 1000)
        try:
            partitions = [partition.id for partition in futures[topic].result().partitions]
        except KafkaException as error:
            if error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise translate(error, f"describing {topic}") from error
        return self._bounds(topic, partitions)

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic is compacted; False if its configuration may not be read."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (future,) = self.ledger.admin.describe_configs([resource], request_timeout=self._timeout_ms / 1000).values()
        try:
            found: Mapping[str, Any] = future.result()
        except KafkaException:
            return False
        return "compact" in str(found["cleanup.policy"].value)

    def _bounds(self, topic: str, partitions: list[int]) -> Bounds:
        # Starts last: records deleted in between then count as deleted. Ends first: records written in between are not read.
        admin, timeout_ms = self.ledger.admin, self._timeout_ms
        stable = offsets(admin, topic, partitions, OffsetSpec.latest(), committed=True, timeout_ms=timeout_ms)
        ends = offsets(admin, topic, partitions, OffsetSpec.latest(), timeout_ms=timeout_ms)
        starts = offsets(admin, topic, partitions, OffsetSpec.earliest(), timeout_ms=timeout_ms)
        return Bounds(starts, stable, ends)
