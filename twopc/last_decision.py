"""The last decision in a log, which a start commits again, and what the sinks then show about its transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twopc.attempt import Evidence, TaskKey
    from twopc.decision_log import DecisionLog
    from twopc.records import Decision


@dataclass
class LastDecision:
    """See the module.

    Attributes:
        log: the log that contains the decision.
        decision: the decision, with its repairs; None if the log contains none that may be incomplete.
        handles: the handle of each of its transactions in the sinks that the start passes.
        scan_start: see :attr:`LogView.scan_start`.
        evidence: the evidence for each of ``handles``, once the start has tried to commit them.
        blockers: why the commit could not be proven.
        outdated: the sinks in which another query has decided later batches, so that they may no longer prove this decision.
    """

    log: DecisionLog
    decision: Decision | None
    handles: dict[TaskKey, Any]
    scan_start: dict[str, dict[str, Any]]
    evidence: dict[TaskKey, Evidence] = field(default_factory=dict)
    blockers: list[str] = field(default_factory=list)
    outdated: set[str] = field(default_factory=set)

    def in_sink(self, name: str) -> dict[TaskKey, Any]:
        """Return the handles of the decision's transactions in one sink."""
        return {key: handle for key, handle in self.handles.items() if key[0] == name}
