"""A Kafka cluster as a state machine: transaction coordinator, partition leaders, last stable offset. No clock, no network.

It answers as the tables in docs/protocol.md say (observed on broker 4.3.0; ``TransactionCoordinator.scala``): transactions
V1 and EndTxn v3, whose answer depends on the state *and* on how the state was reached. A commit takes two steps: the
coordinator accepts it (PrepareCommit), then each partition receives a control record, which may come later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NONE: Final = "NONE"
CONCURRENT: Final = "ConcurrentTransactionsError"
FENCED: Final = "ProducerFencedError"
INVALID_STATE: Final = "InvalidTxnStateError"
INVALID_MAPPING: Final = "InvalidProducerIdMappingError"
NOT_FOUND: Final = "TransactionalIdNotFoundError"

TopicPartition = tuple[str, int]


class State(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMMITTED = "CompleteCommit"
    ABORTED = "CompleteAbort"


_PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})


@dataclass
class Entry:
    """A record in a partition. ``committed`` is None while its transaction is open there. Control records have no value."""

    offset: int
    producer_id: int
    key: bytes | None
    value: bytes | None
    committed: bool | None


@dataclass
class Log:
    """One partition: its records, and the producers with an open transaction in it."""

    start: int = 0
    truncated_at: int = 0  #: the log's end at the last truncation
    entries: list[Entry] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)  #: producer id -> its first offset
    epochs: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.entries)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open.values(), default=self.end)


@dataclass
class Transaction:
    """The state of a transactional id in its coordinator."""

    transactional_id: str
    producer_id: int
    epoch: int = -1
    state: State = State.EMPTY
    timeout_ms: float = 60_000
    began_ms: float = 0
    partitions: list[TopicPartition] = field(default_factory=list)
    unmarked: list[TopicPartition] = field(default_factory=list)


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None


class Cluster:
    """One healthy cluster.

    Attributes:
        now_ms: its clock; :meth:`expire` acts on it.
        on_commit: called when a coordinator accepts a commit, before any of its records is visible.
        on_visible: called with each record when its partition's control record commits it.
    """

    def __init__(self, partitions: dict[str, int]) -> None:
        self.now_ms = 0.0
        self.logs = {(topic, n): Log() for topic, count in partitions.items() for n in range(count)}
        self.transactions: dict[str, Transaction] = {}
        self.on_commit: Callable[[Transaction], None] = lambda _: None
        self.on_visible: Callable[[TopicPartition, Entry], None] = lambda _where, _entry: None

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def init(self, transactional_id: str, timeout_ms: float, *, expected: int = -1) -> tuple[str, int, int]:
        """InitProducerId: aborts an open transaction under a bumped epoch; the caller then has to ask again.

        ``expected`` is the epoch that the caller knows (KIP-360). The coordinator compares it unless a transaction is open.
        """
        known = self.transactions.get(transactional_id)
        if known is None:
            known = Transaction(transactional_id, producer_id=1000 + len(self.transactions))
            self.transactions[transactional_id] = known
        if known.state is State.ONGOING:
            self._fence(known)
        if known.state in _PREPARED:
            return CONCURRENT, -1, -1
        if expected not in {-1, known.epoch}:
            return FENCED, -1, -1
        known.state, known.timeout_ms = State.EMPTY, timeout_ms
        known.epoch += 1
        return NONE, known.producer_id, known.epoch

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> str:
        """AddPartitionsToTxn: the first partition opens the transaction."""
        known, refused = self._of(transactional_id, producer_id, epoch)
        if refused:
            return refused
        if known.state in _PREPARED:
            return CONCURRENT
        if known.state is not State.ONGOING:
            known.state, known.began_ms, known.partitions = State.ONGOING, self.now_ms, []
        known.partitions += [where for where in partitions if where not in known.partitions]
        return NONE

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> str:
        """EndTxn v3: see the table in docs/protocol.md."""
        known, refused = self._of(transactional_id, producer_id, epoch)
        if refused:
            return refused
        wanted = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        done = State.COMMITTED if commit else State.ABORTED
        if known.state is State.ONGOING:
            self._prepare(known, wanted)
            return NONE
        if known.state is done:
            return NONE
        return CONCURRENT if known.state is wanted else INVALID_STATE

    def _of(self, transactional_id: str, producer_id: int, epoch: int) -> tuple[Transaction, str]:
        known = self.transactions.get(transactional_id)
        if known is None or known.producer_id != producer_id:
            return Transaction("", -1), INVALID_MAPPING
        return known, "" if known.epoch == epoch else FENCED

    def _prepare(self, known: Transaction, state: State) -> None:
        known.state, known.unmarked = state, list(known.partitions)
        if state is State.PREPARE_COMMIT:
            self.on_commit(known)

    def _fence(self, known: Transaction) -> None:
        known.epoch += 1
        self._prepare(known, State.PREPARE_ABORT)

    def expire(self) -> list[str]:
        """Abort transactions that are open for longer than their timeout; returns their ids."""
        expired = [
            known
            for known in self.transactions.values()
            if known.state is State.ONGOING and known.began_ms + known.timeout_ms < self.now_ms
        ]
        for known in expired:
            self._fence(known)
        return [known.transactional_id for known in expired]

    def unfinished(self) -> list[Transaction]:
        """Transactions with a decided end that some partition does not show yet."""
        return [known for known in self.transactions.values() if known.state in _PREPARED]

    def mark(self, known: Transaction, count: int | None = None) -> None:
        """Write the control records of the next ``count`` partitions, by default of all."""
        committed = known.state is State.PREPARE_COMMIT
        for where in known.unmarked[:count]:
            self._control(where, known, committed=committed)
        del known.unmarked[: len(known.unmarked) if count is None else count]
        if not known.unmarked:
            known.state = State.COMMITTED if committed else State.ABORTED

    def ongoing(self) -> list[Transaction]:
        return [known for known in self.transactions.values() if known.state is State.ONGOING]

    def truncate(self, where: TopicPartition, start: int) -> None:
        """DeleteRecords."""
        log = self.logs[where]
        if start > log.start:  # for an earlier start, the broker does not wait
            log.start, log.truncated_at = min(start, log.stable), log.end

    # -- the partitions' leaders ---------------------------------------------------------------------------------------

    def append(
        self, transactional_id: str, producer_id: int, epoch: int, where: TopicPartition, records: list[Record]
    ) -> tuple[str, int]:
        """Produce in a transaction; returns the error and the first offset."""
        log = self.logs[where]
        if epoch < log.epochs.get(producer_id, epoch):
            return FENCED, -1
        if producer_id not in log.open:
            # KIP-890, for V1 clients: the leader asks the coordinator before it opens a transaction.
            known, refused = self._of(transactional_id, producer_id, epoch)
            if refused or known.state is not State.ONGOING or where not in known.partitions:
                return refused or INVALID_STATE, -1
            log.open[producer_id] = log.end
        log.epochs[producer_id] = epoch
        first = log.end
        log.entries += [
            Entry(first + n, producer_id, record.key, record.value, None) for n, record in enumerate(records)
        ]
        return NONE, first

    def _control(self, where: TopicPartition, known: Transaction, *, committed: bool) -> None:
        log = self.logs[where]
        log.epochs[known.producer_id] = known.epoch
        first = log.open.pop(known.producer_id, None)
        if first is not None:
            for entry in log.entries[first:]:
                if entry.producer_id == known.producer_id and entry.committed is None:
                    entry.committed = committed
                    if committed:
                        self.on_visible(where, entry)
        log.entries.append(Entry(log.end, known.producer_id, None, None, committed=False))

    def fetch(self, where: TopicPartition, start: int, *, until: int | None = None) -> tuple[list[Entry], int]:
        """The records that a ``read_committed`` reader receives from ``start``, and its position afterward."""
        log = self.logs[where]
        stable = log.stable if until is None else min(until, log.stable)
        return [entry for entry in log.entries[start:stable] if entry.committed], max(start, stable)
