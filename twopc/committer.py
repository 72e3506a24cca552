"""The driver's side of a sink: commit, abort, recover, and prove outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from twopc.attempt import Evidence, HandleT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from twopc.attempt import Claim, Known, Owner
    from twopc.decision_log import DecisionLog
    from twopc.observation import Observation

    JsonObject = Mapping[str, Any]


class SinkCommitter(ABC, Generic[HandleT]):
    """The driver's side of a sink, for one run of a query. Only one thread at a time uses a committer."""

    @abstractmethod
    def binding(self) -> Mapping[str, str]:
        """Return the facts that must not change during a checkpoint's lifetime (rule 11), such as the cluster's id.

        A new version of the sink may add and remove facts, but it must keep at least one old fact.

        This method may connect to the store, but must not change it.
        """

    def decision_log(self) -> DecisionLog | None:
        """Return the decision log that this sink provides, or None. Every call returns the same object.

        :meth:`acquire` also acquires this log, even if the query's decisions are in another log.
        """
        return None

    @abstractmethod
    def inspect(self) -> Owner | None:
        """Check that this sink can be used with its settings and permissions. Changes nothing.

        This method is called before :meth:`acquire`, so that a refused start does not fence a healthy driver.

        Returns:
            the driver that owned this sink last; None if the sink's decision log records the owner instead.

        Raises:
            FatalError: the sink cannot be used; the message says what to do. Nothing has been changed.
        """

    def has_newer_decision(self, scan_start: JsonObject) -> bool:
        """Whether the sink contains a decision of its last owner's query that is missing from that query's log.

        This method only reads. It is called before and after :meth:`acquire`, because the checkpoint may be an older
        copy, or one of two copies whose drivers have both made decisions. ``scan_start`` is the result of
        :meth:`begin_attempt` for the newest decision in the log; it is empty if the log has no decision that includes this
        sink.
        """
        del scan_start  # a sink with a decision log has no such record; see has_unknown_commit
        return False

    def has_unknown_commit(self, known: Known[HandleT], scan_start: JsonObject) -> bool:
        """Whether the store contains a visible transaction from this query that is missing from the decisions.

        This method is called only if this sink provides a decision log, after this driver's first sweep. Such a transaction
        proves that the log has lost a decision. If the sink was added later, the decisions may be in the checkpoint. In that
        case, such a transaction proves that the checkpoint is an older copy, and the method is also called before
        :meth:`acquire`. If ``known.is_swept`` is false, the method only reads. ``scan_start`` is the result of
        :meth:`begin_attempt` for the newest decision in the log; it is empty if the log has no decision that includes this sink.
        """
        del known, scan_start
        return False

    def lacks_decisions(self, scan_start: JsonObject) -> bool:
        """Whether this sink's store was restored to a state that lacks decisions made before the log's newest decision.

        This method only reads. It is called before and after :meth:`acquire` if this query made the log's newest decision and
        that decision includes this sink. The store may name another owner, because a backup may be older than this query's
        first start. If only the newest decision is lost, recovery detects the loss.
        """
        del scan_start
        return False

    def is_replaced(self, query_id: str, scan_start: JsonObject) -> bool:
        """Whether another query has committed a decision after this query's newest decision.

        The store may then lack the evidence for this query's newest decision. This method only reads. It is called before and
        after :meth:`acquire` if this query made the log's newest decision and that decision includes this sink. The method is
        called even if the user names the other query with ``EndQuery``. It is also called if :meth:`initialize_state`
        or :meth:`notify_checkpoint_complete` has returned UNKNOWN without :meth:`blockers`. In that case, ``query_id`` is empty,
        so it matches no query. ``scan_start`` is the result of :meth:`begin_attempt` for that decision.
        """
        del query_id, scan_start  # a sink with a decision log has its own evidence
        return False

    def newest_batch_of_others(self, query_id: str) -> int | None:
        """Return the newest batch that another writer has recorded in the store for this query; None if there is no such batch.

        This method only reads. It is called after :meth:`inspect` if the batch is not decided, because another writer
        may have used the query's checkpoint before. If other writers do not record their batches in the store, return
        None.
        """
        del query_id
        return None

    def committed_by_others_ms(self, query_id: str, batch_id: int) -> int | None:
        """Return when that other writer committed a batch, in milliseconds since 1970 by that writer's clock.

        Return None if the store does not show the time. This method only reads. It is called with the result of
        :meth:`newest_batch_of_others`.
        """
        del query_id, batch_id
        return None

    def observe(self, decided: Sequence[HandleT], scan_start: JsonObject) -> Observation | None:
        """Read the state of the sink's store, for ``twopc status``. The caller does not have to :meth:`acquire` the sink.

        This method must not change the store.

        Args:
            decided: all handles of the newest decision in the log.
            scan_start: the result of :meth:`begin_attempt` for that decision; empty if the log has no decision.

        Returns:
            the store's state; None if the sink cannot observe its store, which is the default.

        Raises:
            UnavailableError: the store did not respond.
            FatalError: the store contains a foreign value in place of the sink's record.
        """
        del decided, scan_start
        return None

    @abstractmethod
    def acquire(self, claim: Claim, seen: Owner | None) -> int:
        """Fence the previous driver, so that it can make no further decisions. This method may be called again.

        Args:
            claim: the driver that wants to own the sink; the same value in every call.
            seen: the result of the run's first :meth:`inspect`. A later result could name a newer driver, which must
                not be fenced.

        Returns:
            the driver epoch, a fencing token that is unique for this sink and increases with each acquisition.

        Raises:
            FencedError: a newer driver has acquired the sink in the meantime.
        """

    @abstractmethod
    def begin_attempt(self) -> JsonObject:
        """Prepare for an attempt, before its tasks start.

        Returns:
            the position from which :meth:`prove` must search for this attempt's transactions. The decision record stores
            this position.
        """

    @abstractmethod
    def confirm(self, handles: Sequence[HandleT], age_ms: float) -> None:
        """Check, immediately before the decision, that every transaction is complete, prepared, and has enough time left.

        This method must be safe to call again. If the confirmation of another sink takes long, the driver confirms the same
        handles again.

        Args:
            handles: the tasks' votes.
            age_ms: the oldest transaction's age on the driver's clock, measured from a moment before that transaction
                began.

        Raises:
            RetriableError: a transaction fails the check. The attempt has failed; a new one may succeed.
        """

    @abstractmethod
    def commit(self, handles: Sequence[HandleT], scan_start: JsonObject) -> Mapping[HandleT, Evidence]:
        """Commit decided transactions, all in parallel, and prove their commits.

        This method must always be safe to call again.

        Args:
            handles: all handles in one decision.
            scan_start: the result of :meth:`begin_attempt` for that decision.

        Returns:
            the evidence for every handle. If time ran out, the evidence is UNKNOWN, and the caller must handle this outcome.
        """

    def blockers(self) -> Sequence[str]:
        """Say why the last :meth:`commit` could not be proven. The error that stops the query quotes these reasons.

        Name every temporary reason. If there is none, and :meth:`is_replaced` is true, the evidence counts as lost.
        """
        return ()

    @abstractmethod
    def abort(self, handles: Sequence[HandleT]) -> None:
        """End prepared transactions of an attempt that will not be decided.

        The next sweep ends any that are still open.
        """

    @abstractmethod
    def prove(self, handles: Sequence[HandleT], scan_start: JsonObject) -> Mapping[HandleT, Evidence]:
        """Prove the outcome of each transaction from the store, without trying to end the transaction.

        This method may be called again. The method may end other transactions that hide the proof, such as transactions
        of previous drivers. It may also write to the store to obtain the proof.
        """

    @abstractmethod
    def recover_and_abort(self, decided: Collection[HandleT]) -> None:
        """Sweep: end this sink's open transactions from this driver epoch and earlier ones, except those in ``decided``.

        This method is called after :meth:`acquire` and after each decision. An incomplete sweep is logged and retried
        later. The sweep raises nothing, because no decided batch depends on it.
        """

    def prefetch(self) -> None:
        """Request the data that the next :meth:`begin_attempt` needs, without waiting for the responses.

        This method must not raise.

        This method is called when a batch is finished. By default, it does nothing.
        """

    def orphans_ended(self) -> int:
        """Return the number of open transactions that this committer's sweeps have ended, for metrics.

        Each transaction counts once. By default, this method returns 0.
        """
        return 0

    def forget(self, kept_scan_start: JsonObject) -> None:
        """Delete evidence for decisions older than the one whose :meth:`begin_attempt` returned ``kept_scan_start``."""
        del kept_scan_start

    @abstractmethod
    def close(self) -> None:
        """Release connections. This method must not end any transaction."""

    def initialize_state(
        self, decided: Sequence[HandleT], scan_start: JsonObject, spared: Sequence[HandleT] = (), *, is_own: bool = True
    ) -> Mapping[HandleT, Evidence]:
        """Recover after a restart: commit a log's last decision again, then end every undecided transaction.

        A start may have to commit the last decisions of several logs. It then calls this method once for each of them.

        Args:
            decided: the decision's handles.
            scan_start: the result of :meth:`begin_attempt` for that decision.
            spared: the handles of the other decisions. This method must not end their transactions, not even to prove the
                outcome of other transactions.
            is_own: whether this driver's query made the decision. If not, this driver's query replaces the query that made the
                decision.

        Returns:
            the evidence for every handle in ``decided``.
        """
        del is_own
        found = self.commit(decided, scan_start) if decided else {}
        self.recover_and_abort([*decided, *spared])
        return found

    def notify_checkpoint_complete(
        self, batch_id: int, handles: Sequence[HandleT], scan_start: JsonObject
    ) -> Mapping[HandleT, Evidence]:
        """Make a decided batch visible.

        Returns:
            the evidence for every handle.
        """
        del batch_id  # the handles alone identify the transactions
        return self.commit(handles, scan_start) if handles else {}
