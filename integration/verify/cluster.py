"""Read the cluster's state for ``twopc verify``. This module has no producer and sends no request that changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka.admin import OffsetSpec

from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError, DecisionLogDamagedError, TwoPhaseCommitError
from twopc.integration.topic_reader import read_topic
from twopc.integration.verify.deciding import GIVE_CHECKPOINT, NOTHING_KNOWN, Where, find_log, log_in_checkpoint
from twopc.integration.verify.history import history_of
from twopc.log_view import fold
from twopc.records import LogContents
from twopc.sinks.kafka.errors import on_ids
from twopc.sinks.kafka.ledger_owner import NotTheOwnerError
from twopc.sinks.kafka.ledger_topic import describe, settings_of
from twopc.sinks.kafka.reader import offsets
from twopc.sinks.kafka.reports import NOT_AUTHORIZED
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import Message

    from twopc.integration.verify.deciding import QueryFacts
    from twopc.integration.verify.history import History
    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.decision_log import KafkaDecisionLog


class Bounds(NamedTuple):
    """A topic's offsets for each partition."""

    starts: dict[int, int]  #: first offset that still exists
    stable: dict[int, int]  #: last stable offset, where readers stop
    ends: dict[int, int]  #: log end offset; above ``stable`` while a transaction is open

    @property
    def held_back(self) -> int:
        """The number of offsets that readers cannot see because of open transactions."""
        return sum(self.ends.values()) - sum(self.stable.values())


class Ledgers(NamedTuple):
    """The decision log's name and contents, and the sink's own ledger. The log and the ledger may be the same topic."""

    name: str
    deciding: LogContents
    own: LogContents

    @property
    def is_own(self) -> bool:
        """Whether the sink's own ledger is the decision log."""
        return self.deciding is self.own

    def history(self) -> History:
        """Arrange the decisions by batch.

        Raises:
            DecisionLogDamagedError: the decisions cannot be trusted.
        """
        found = history_of(self.deciding, self.own)
        if found.view.damage is not None:
            raise DecisionLogDamagedError(found.view.damage)
        return found


class Cluster:
    """A sink's cluster."""

    def __init__(self, sink: KafkaSink, facts: QueryFacts = NOTHING_KNOWN) -> None:
        """Connect. If the decisions are in the checkpoint or on another cluster, ``facts`` may say how to reach them.

        Raises:
            ConfigurationError: the sink has no ledger on this cluster.
            TwoPhaseCommitError: no broker responds.
        """
        self.sink = sink
        self.facts = facts
        self._connection = sink.connection_config()
        # Create this client first, because it reports an unreachable broker in one line, but librdkafka would log every
        # attempt.
        self.transactions = TransactionClient(sink.committing_config())
        self.ledger = sink.create_decision_log()
        self._logs: dict[Where, KafkaDecisionLog] = {}
        self._timeout_ms = sink.timeout_ms
        try:
            if self.ledger.identity() == ABSENT:
                raise ConfigurationError(
                    f"topic {sink.ledger} does not exist at {sink.bootstrap_servers}. Either sink {sink.name!r} never "
                    "wrote to this cluster, or its ledger has a different name. Check --sink. If the sink has a "
                    "ledger_topic, pass that topic with --ledger-topic. Alternatively, use the ledger that the checkpoint "
                    f"names: {GIVE_CHECKPOINT}"
                )
            self._require_ids()
        except TwoPhaseCommitError:
            self.close()
            raise

    def _require_ids(self) -> None:
        """Require the permission to see the sink's transactions.

        Without this permission, a broker does not list any transactions.
        """
        tid = f"{self.sink.name}.verify"
        if self.transactions.describe([tid])[tid].error == NOT_AUTHORIZED:
            raise ConfigurationError(
                f"the principal has no permission to see the transactions of sink {self.sink.name!r}, so this command would "
                "miss open transactions. Allow "
                f"{on_ids('Describe', tid)}"
            )

    def close(self) -> None:
        """Close the connections."""
        self.transactions.close()
        self.ledger.close()
        for log in self._logs.values():
            log.close()

    def ledgers(self) -> Ledgers:
        """Read the decisions. A query with several sinks stores them in the first sink's ledger, or in its checkpoint.

        Raises:
            ConfigurationError: the sink's ledger belongs to another sink.
            DecisionLogDamagedError: a record is torn or was altered, or the topic with the decisions was deleted.
            DecisionsElsewhereError: the decisions are on another cluster or in a checkpoint, and no known fact says how to
                reach them.
        """
        own = self._own()
        view, here = fold(own), self.transactions.cluster_id
        # A start that takes over the sink closes this log before it decides elsewhere. If the start died before it closed this
        # log, the newest decision is still in this log.
        acquired = view.acquired if view.decision is None else None
        where = Where(self.ledger.name, here) if acquired is None else self.facts.where(acquired)
        if acquired is not None and where.is_checkpoint:
            return Ledgers(where.log, _held(log_in_checkpoint(self.sink, acquired, self.facts).inspect()), own)
        if where.log == self.ledger.name and where.cluster in {"", here}:
            return Ledgers(where.log, own, own)
        if where not in self._logs:
            self._logs[where] = find_log(self.sink, here, where, self.facts)
        if self._logs[where].identity() == ABSENT:
            raise DecisionLogDamagedError(
                f"{self.ledger.name} names {where.log} as the decision log, but that topic does not exist on its cluster"
                f"{where.cluster and f' ({where.cluster})'}"
            )
        # The log with the decisions may be another sink's ledger.
        return Ledgers(where.log, _held(self._logs[where].contents(until=None, whoever=True)), own)

    def _own(self) -> LogContents:
        """Read the sink's own ledger, without the records of a sink that was refused there."""
        try:
            return _held(self.ledger.contents(until=None))
        except NotTheOwnerError as error:
            raise ConfigurationError(
                f"the ledger {self.ledger.name} belongs to sink {error.owners}, not to sink {self.sink.name!r}, so it "
                "says nothing about this sink's transactions. Nothing was done. Omit --ledger-topic. If sink "
                f"{self.sink.name!r} has a ledger_topic, pass that topic instead. Alternatively, use the ledger that "
                f"the checkpoint names: {GIVE_CHECKPOINT}"
            ) from error

    def read(self, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[list[Message]]:
        """Yield committed records, as :func:`twopc.integration.topic_reader.read_topic` does."""
        return read_topic(self._connection, topic, starts, ends, timeout_ms=self._timeout_ms)

    def marker_bounds(self) -> Bounds:
        """Return the offsets of the ledger's marker partitions."""
        partitions = self.ledger.topic.marker_partitions()
        return self._bounds(self.ledger.name, partitions)

    def bounds(self, topic: str) -> Bounds | None:
        """Return a topic's offsets, or None if the topic does not exist."""
        found = describe(self.ledger.admin, topic, timeout_ms=self._timeout_ms)
        return None if found is None else self._bounds(topic, [partition.id for partition in found.partitions])

    def is_compacted(self, topic: str) -> bool | None:
        """Whether the topic is compacted. None if the user has no permission to read the topic's configuration."""
        try:
            settings = settings_of(self.ledger.admin, topic, timeout_ms=self._timeout_ms) or {}
        except ConfigurationError:
            return None
        return "compact" in str(settings.get("cleanup.policy"))

    def _bounds(self, topic: str, partitions: list[int]) -> Bounds:
        # Request the end offsets first and the start offsets last. Then records that are written between the two
        # requests are not read, and records that are deleted between them are treated as deleted.
        admin, timeout_ms = self.ledger.admin, self._timeout_ms
        stable = offsets(admin, topic, partitions, OffsetSpec.latest(), committed=True, timeout_ms=timeout_ms)
        ends = offsets(admin, topic, partitions, OffsetSpec.latest(), timeout_ms=timeout_ms)
        starts = offsets(admin, topic, partitions, OffsetSpec.earliest(), timeout_ms=timeout_ms)
        return Bounds(starts, stable, ends)


def _held(found: LogContents) -> LogContents:
    """Keep a ledger's records, read in one pass, because the driver may truncate it while verify compares the batches."""
    return LogContents(found.start, tuple(found.entries))
