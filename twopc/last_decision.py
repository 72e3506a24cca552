"""The last decision in a log, and what the sinks show about its transactions after a start has committed it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twopc.attempt import Evidence
from twopc.versions import order_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twopc.attempt import TaskKey
    from twopc.decision_log import DecisionLog
    from twopc.records import Decision


@dataclass(eq=False)
class LastDecision:
    """See the docstring of this module.

    Attributes:
        log: the log that contains the decision.
        decision: the decision, with its repairs; None if the log contains no decision that may be incomplete.
        handles: the handles of the decision's transactions in the sinks of the query that starts.
        scan_start: see :attr:`LogView.scan_start`.
        given_up: the sinks in which the user abandons the decision's transactions that are not visible.
        evidence: the evidence for each of ``handles``, once the start has tried to commit them.
        blockers: why the commit could not be proven.
        outdated: the sinks in which another query has decided later batches. These sinks may no longer prove this decision.
        waits_for: for each sink, the older decisions that must be closed before this decision is committed in that sink.
        is_replayed: whether Spark passes the decision's batch to the query that starts.
        may_be_staged: whether the query that starts may find the batch's rows in its staging area.
    """

    log: DecisionLog
    decision: Decision | None
    handles: dict[TaskKey, Any]
    scan_start: dict[str, dict[str, Any]]
    given_up: Collection[str] = ()
    evidence: dict[TaskKey, Evidence] = field(default_factory=dict)
    blockers: list[str] = field(default_factory=list)
    outdated: set[str] = field(default_factory=set)
    waits_for: dict[str, list[LastDecision]] = field(default_factory=dict)
    is_replayed: bool = False
    may_be_staged: bool = False

    @property
    def is_proven(self) -> bool:
        """Whether all of the decision's transactions are proven committed."""
        return not self.left

    @property
    def left(self) -> list[TaskKey]:
        """The transactions that are not proven committed."""
        return [key for key in self.handles if self.evidence.get(key) is not Evidence.COMMITTED]

    @property
    def sinks_left(self) -> list[str]:
        """The sinks with transactions that are not proven committed."""
        return sorted({sink for sink, _ in self.left})

    @property
    def sinks_blocked(self) -> list[str]:
        """The same list as :attr:`sinks_left`, but without the sinks in which the decision waits for an older decision."""
        return [sink for sink in self.sinks_left if sink not in self.waits_for]

    @property
    def is_given_up(self) -> bool:
        """Whether the user abandons all transactions that are not proven committed."""
        return set(self.sinks_left) <= set(self.given_up)

    @property
    def is_blocked(self) -> bool:
        """Whether the outcome is unknown in a sink in which the decision does not wait for an older decision."""
        return any(self.evidence.get(key) is Evidence.UNKNOWN for key in self.left if key[0] not in self.waits_for)

    @property
    def may_be_rewritten(self) -> bool:
        """Whether only lost rows are left, and the query that starts may be able to write them again."""
        is_lost = bool(self.left) and all(self.evidence.get(key) is Evidence.ABORTED for key in self.left)
        return is_lost and (self.is_replayed or self.may_be_staged)

    @property
    def is_abandoned(self) -> bool:
        """Whether the user abandons everything that is left of the decision. The start must have tried to commit the decision.

        If the entire batch may still be written again, this property is False, because a later step judges the batch.
        """
        is_whole = self.may_be_staged or len(self.left) == len(self.handles)
        is_judged_later = self.may_be_rewritten and is_whole
        return not (self.waits_for or self.is_proven or is_judged_later) and self.is_given_up

    def close(self) -> None:
        """Forget the decision, because a record in its log says that it is complete."""
        self.decision = None
        self.handles, self.evidence = {}, {}
        self.blockers, self.outdated, self.waits_for = [], set(), {}

    def in_sink(self, name: str) -> dict[TaskKey, Any]:
        """Return the handles of the decision's transactions in one sink."""
        return {key: handle for key, handle in self.handles.items() if key[0] == name}

    def precedes(self, other: LastDecision) -> bool:
        """Whether a sink that both decisions have used shows that this one is older."""
        return any(self._precedes_in(sink, other) for sink in {sink for sink, _ in self.handles})

    def must_be_closed_before(self, other: LastDecision, name: str) -> bool:
        """Whether a commit of ``other`` in this sink could destroy this decision's proof, which the next start may need.

        The next start needs no proof of a decision that is closed. If all rows that are left are lost, and the query may be able
        to write them again, no other decision waits for this one.
        """
        if name in self.outdated or name in self.given_up or not self._precedes_in(name, other):
            return False
        return not self.may_be_rewritten

    def _precedes_in(self, name: str, other: LastDecision) -> bool:
        if not self.in_sink(name) or not other.in_sink(name):
            return False
        return order_of(self.scan_start[name]) < order_of(other.scan_start[name])


def in_order(decisions: Sequence[LastDecision]) -> list[LastDecision]:
    """Sort decisions so that in each sink, older ones come before newer ones. If no sink shows an order, keep the given order.

    A store may be able to prove only its newest decision, so a start must prove older decisions first.
    """
    left, ordered = [*decisions], list[LastDecision]()
    while left:
        first = next((one for one in left if not any(other.precedes(one) for other in left)), left[0])
        left.remove(first)
        ordered.append(first)
    return ordered
