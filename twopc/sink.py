"""The contract of a sink that takes part in a two-phase commit.

Three roles, each in the process where it belongs:

* :class:`TwoPhaseCommitSink` is the description: small, picklable, no connection. Driver and tasks have a copy each.
* :class:`SinkWriter` lives in one task attempt on an executor: *begin, write, pre-commit*, or *abort*.
* :class:`SinkCommitter` lives in the driver, one for a run: *commit*, *abort*, *recover*, and the evidence of outcomes.

The checkpoint's life cycle lies around them, in Flink's words: :meth:`SinkWriter.snapshot_state` (pre-commit, returns
the handle), :meth:`SinkCommitter.notify_checkpoint_complete` (commit), :meth:`SinkCommitter.initialize_state`
(recovery: commit again, as the first act of a restart).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from twopc.faults import point
from twopc.state import TransactionState, move

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from twopc.decision import Attempt, DecisionLog

    JsonObject = Mapping[str, Any]


class Evidence(Enum):
    """What is proven of a prepared transaction. Only proof counts: an error from a broker proves nothing."""

    COMMITTED = "committed"  #: proven visible, for ever
    ABORTED = "aborted"  #: proven never to become visible ("lost", where it was decided)
    UNKNOWN = "unknown"  #: neither is proven (yet)


class Handle(Protocol):
    """What the driver needs to end a prepared transaction: frozen, picklable, and a dataclass of JSON values."""

    @property
    def transaction(self) -> str:
        """The transaction's name in messages to people."""


HandleT = TypeVar("HandleT", bound=Handle)


@dataclass(frozen=True)
class TaskAttempt:
    """Which work a writer does; all that names its transaction.

    Attributes:
        lineage: the query's id, from its checkpoint.
        checkpoint_id: the batch id.
        attempt: the driver's attempt at this batch.
        partition: the task's partition index in the plan.
        incarnation: that of the sink in this run (:meth:`SinkCommitter.take_over`).
        settled_through: the highest batch of which this driver has proven every transaction; -1 when there is none.
    """

    lineage: str
    checkpoint_id: int
    attempt: Attempt
    partition: int
    incarnation: int
    settled_through: int


@dataclass(frozen=True)
class Claim:
    """Who takes over.

    Attributes:
        lineage: the query's id.
        run: a UUID of this run of it.
        deciding_log: the name of the log that holds the decisions for all sinks of the query.
    """

    lineage: str
    run: str
    deciding_log: str


class SinkWriter(ABC, Generic[HandleT]):
    """One transaction of one task attempt. Used by one thread, once.

    Subclasses write the four hooks; callers use :meth:`write_rows`, :meth:`snapshot_state`, :meth:`hand_over` and
    :meth:`close`, which hold the order (see ``twopc.state``).
    """

    state: TransactionState = TransactionState.EMPTY

    @abstractmethod
    def begin_transaction(self) -> None:
        """Open the transaction. Called before the first row, never for an empty task. May fail; not repeated."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows into the open transaction, invisibly. May fail, may block; memory must not grow with the task.

        Raises:
            RetriableError: the task may be tried again.
            BadRecordError: a record can never be written.
        """

    @abstractmethod
    def pre_commit(self) -> HandleT:
        """Make all rows durable, still invisible, so that another process can commit them without this one.

        The vote: returning means "yes". May fail with the errors of :meth:`write`; not repeated.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give the transaction up. Must not raise; what it cannot end is left to the driver's sweep."""

    def write_rows(self, rows: pa.RecordBatch) -> None:
        """Write, beginning the transaction with the first row (rule 8)."""
        if rows.num_rows == 0:
            return
        if self.state is TransactionState.EMPTY:
            self.begin_transaction()
            self.state = move(self.state, TransactionState.OPEN)
        self.write(rows)

    def snapshot_state(self, checkpoint_id: int) -> HandleT | None:
        """Pre-commit this task's part of the checkpoint.

        Returns:
            the handle, or None for an empty task, which has no transaction.
        """
        del checkpoint_id  # a writer serves one checkpoint, which it was created for
        if self.state is TransactionState.EMPTY:
            return None
        handle = self.pre_commit()
        self.state = move(self.state, TransactionState.PREPARED)
        return handle

    def hand_over(self) -> None:
        """Tell the writer that its handle is leaving: from here on it ends nothing (rule 6)."""
        if self.state is TransactionState.PREPARED:
            self.state = move(self.state, TransactionState.HANDED_OVER)
            point("task.handed_over")

    def close(self) -> None:
        """Abort what was neither handed over nor ended. Safe to call at any time, any number of times."""
        if self.state in {TransactionState.OPEN, TransactionState.PREPARED}:
            self.abort()
            self.state = move(self.state, TransactionState.ABORTED)


class SinkCommitter(ABC, Generic[HandleT]):
    """The driver's side of a sink, for one run of a query. Used by one thread at a time."""

    @abstractmethod
    def binding(self) -> Mapping[str, str]:
        """What must not change under a checkpoint (rule 11), such as the cluster's id. Read-only; may connect."""

    def decision_log(self) -> DecisionLog | None:
        """The decision log that comes with this sink, if it has one. Always the same object."""
        return None

    @abstractmethod
    def inspect(self) -> str | None:
        """Check, read-only, that this sink may be used: settings and rights.

        Called before :meth:`take_over`, so that a start which will be refused leaves a healthy driver alone.

        Returns:
            the id of the query that drove this sink last, where the sink keeps that; None where nobody did, or where its
            decision log tells.

        Raises:
            FatalError: with what to do. Nothing has been changed.
        """

    def has_gone_on(self, since: JsonObject) -> bool:
        """Whether a later decision of the query that drove this sink last was committed here. Read-only.

        Asked by that query, before and after :meth:`take_over`, where its decisions are not in a sink's log and so may be
        an older copy. ``since`` is what :meth:`begin_attempt` returned for the newest of them; empty where there is none.
        """
        del since  # who has a decision log need not know: there is no copy of it
        return False

    @abstractmethod
    def take_over(self, claim: Claim) -> int:
        """Fence whoever drove this sink before; afterwards it can decide nothing more. Repeating it is harmless.

        Returns:
            the incarnation: unique for this sink, growing with each take-over.

        Raises:
            FencedError: somebody else took over in the meantime.
        """

    @abstractmethod
    def begin_attempt(self) -> JsonObject:
        """Called before the tasks of an attempt start.

        Returns:
            where :meth:`evidence` has to start looking for this attempt's transactions; stored with the decision.
        """

    @abstractmethod
    def confirm(self, handles: Sequence[HandleT], age_ms: float) -> None:
        """Check, as the last act before the decision, that every handle's transaction is whole, prepared and will live.

        Args:
            handles: what the tasks voted with.
            age_ms: time since before the oldest of them was begun, on the driver's clock.

        Raises:
            RetriableError: one of them is not; the attempt is void, a new one may succeed.
        """

    @abstractmethod
    def commit(self, handles: Sequence[HandleT], since: JsonObject) -> Mapping[HandleT, Evidence]:
        """Commit decided transactions, all in flight together, and prove it. Must be repeatable, for ever.

        Args:
            handles: all of one decision.
            since: what :meth:`begin_attempt` returned for it.

        Returns:
            the evidence for every handle. UNKNOWN where time ran out: the caller decides what then.
        """

    def obstacles(self) -> Sequence[str]:
        """What stood in the way of the last :meth:`commit`, in words for people: the error that stops the query quotes it."""
        return ()

    @abstractmethod
    def abort(self, handles: Sequence[HandleT]) -> None:
        """End prepared transactions of an attempt that will not be decided. Best effort: the sweep is behind it."""

    @abstractmethod
    def evidence(self, handles: Sequence[HandleT], since: JsonObject) -> Mapping[HandleT, Evidence]:
        """What is proven of each transaction, without trying to end it. May be repeated."""

    def recover_and_commit(self, handles: Sequence[HandleT], since: JsonObject) -> Mapping[HandleT, Evidence]:
        """Commit what a former run has decided. By default the same as :meth:`commit`, which is repeatable."""
        return self.commit(handles, since)

    @abstractmethod
    def recover_and_abort(self, decided: Collection[HandleT]) -> None:
        """Sweep: end every open transaction of this sink, up to this incarnation, that is not among ``decided``.

        After :meth:`take_over` and after each decision. An incomplete sweep is reported and repeated later; it raises
        nothing, since no decided batch depends on it.
        """

    def forget(self, kept_since: JsonObject) -> None:
        """Drop what proves only decisions older than the one whose :meth:`begin_attempt` gave ``kept_since``."""
        del kept_since

    @abstractmethod
    def close(self) -> None:
        """Release connections. Ends no transaction."""

    def initialize_state(self, decided: Sequence[HandleT], since: JsonObject) -> Mapping[HandleT, Evidence]:
        """The first act of a restart: commit the last decision again, then sweep everything that is not decided.

        Returns:
            the evidence for every decided handle.
        """
        found = self.recover_and_commit(decided, since) if decided else {}
        self.recover_and_abort(decided)
        return found

    def notify_checkpoint_complete(
        self, checkpoint_id: int, handles: Sequence[HandleT], since: JsonObject
    ) -> Mapping[HandleT, Evidence]:
        """The checkpoint is decided: make it visible.

        Returns:
            the evidence for every handle.
        """
        del checkpoint_id  # handles are complete by themselves
        return self.commit(handles, since) if handles else {}


class TwoPhaseCommitSink(ABC, Generic[HandleT]):
    """A sink, as its user describes it. Frozen, picklable, cheap; opens nothing before it is asked to.

    Attributes:
        name: names the sink across restarts and is part of every id it leaves in the outside world.
    """

    name: str

    @property
    @abstractmethod
    def handle_type(self) -> type[HandleT]:
        """The dataclass of its handles, to read them back from a decision."""

    @property
    def prepare_timeout_ms(self) -> float | None:
        """How long pre-commit may take in all before the sink's transactions expire; None: they do not."""
        return None

    @property
    def columns(self) -> Collection[str] | None:
        """The columns that its rows need, in any order; None: it is given all that there are."""
        return None

    def check(self, rows: pa.RecordBatch) -> None:
        """Look whether a writer of this sink could ever write these rows. Depends on the rows alone; asks nobody.

        Called with no rows before a batch is evaluated, to check the columns; and, where bad records are to become dead
        letters, with the rows of a task before they are written.

        Raises:
            SchemaError: a column has a type that the sink cannot take.
            BadRecordError: at least one of the rows can never be written.
        """
        del rows

    @abstractmethod
    def create_writer(self, task: TaskAttempt) -> SinkWriter[HandleT]:
        """A writer for one task attempt (executor)."""

    @abstractmethod
    def create_committer(self) -> SinkCommitter[HandleT]:
        """The committer of one run (driver)."""

    def encode_handle(self, handle: HandleT) -> dict[str, Any]:
        """The handle as JSON values, for the decision record."""
        encoded: dict[str, Any] = msgspec.to_builtins(handle)
        return encoded

    def decode_handle(self, encoded: Mapping[str, Any]) -> HandleT:
        """The reverse of :meth:`encode_handle`.

        Raises:
            msgspec.ValidationError: these are not the fields of a handle of this sink.
        """
        return msgspec.convert(encoded, self.handle_type)
