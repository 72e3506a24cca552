"""The driver's side of a sink: commit, abort, recover, and the evidence of outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from twopc.handle import Evidence, HandleT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from twopc.attempt import Claim
    from twopc.decision_log import DecisionLog

    JsonObject = Mapping[str, Any]


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

        Called before :meth:`acquire`, so that a start which will be refused leaves a healthy driver alone.

        Returns:
            the id of the query that drove this sink last, where the sink keeps that; None where nobody did, or where its
            decision log tells.

        Raises:
            FatalError: with what to do. Nothing has been changed.
        """

    def has_newer_decision(self, scan_start: JsonObject) -> bool:
        """Whether a later decision of the query that drove this sink last was committed here. Read-only.

        Asked by that query, before and after :meth:`acquire`, where its decisions are not in a sink's log and so may be
        an older copy. ``scan_start`` is what :meth:`begin_attempt` returned for the newest of them; empty where there is none.
        """
        del scan_start  # who has a decision log need not know: there is no copy of it
        return False

    @abstractmethod
    def acquire(self, claim: Claim) -> int:
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
    def commit(self, handles: Sequence[HandleT], scan_start: JsonObject) -> Mapping[HandleT, Evidence]:
        """Commit decided transactions, all in flight together, and prove it. Must be repeatable, for ever.

        Args:
            handles: all of one decision.
            scan_start: what :meth:`begin_attempt` returned for it.

        Returns:
            the evidence for every handle. UNKNOWN where time ran out: the caller decides what then.
        """

    def blockers(self) -> Sequence[str]:
        """What stood in the way of the last :meth:`commit`, in words for people: the error that stops the query quotes it."""
        return ()

    @abstractmethod
    def abort(self, handles: Sequence[HandleT]) -> None:
        """End prepared transactions of an attempt that will not be decided. Best effort: the sweep is behind it."""

    @abstractmethod
    def evidence(self, handles: Sequence[HandleT], scan_start: JsonObject) -> Mapping[HandleT, Evidence]:
        """What is proven of each transaction, without trying to end it. May be repeated."""

    def recover_and_commit(self, handles: Sequence[HandleT], scan_start: JsonObject) -> Mapping[HandleT, Evidence]:
        """Commit what a former run has decided. By default the same as :meth:`commit`, which is repeatable."""
        return self.commit(handles, scan_start)

    @abstractmethod
    def recover_and_abort(self, decided: Collection[HandleT]) -> None:
        """Sweep: end every open transaction of this sink, up to this incarnation, that is not among ``decided``.

        After :meth:`acquire` and after each decision. An incomplete sweep is reported and repeated later; it raises
        nothing, since no decided batch depends on it.
        """

    def forget(self, kept_scan_start: JsonObject) -> None:
        """Drop what proves only decisions older than the one whose :meth:`begin_attempt` gave ``kept_scan_start``."""
        del kept_scan_start

    @abstractmethod
    def close(self) -> None:
        """Release connections. Ends no transaction."""

    def initialize_state(self, decided: Sequence[HandleT], scan_start: JsonObject) -> Mapping[HandleT, Evidence]:
        """The first act of a restart: commit the last decision again, then sweep everything that is not decided.

        Returns:
            the evidence for every decided handle.
        """
        found = self.recover_and_commit(decided, scan_start) if decided else {}
        self.recover_and_abort(decided)
        return found

    def notify_checkpoint_complete(
        self, batch_id: int, handles: Sequence[HandleT], scan_start: JsonObject
    ) -> Mapping[HandleT, Evidence]:
        """The checkpoint is decided: make it visible.

        Returns:
            the evidence for every handle.
        """
        del batch_id  # handles are complete by themselves
        return self.commit(handles, scan_start) if handles else {}
