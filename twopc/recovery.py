"""Define recovery as a table. The log's status, the evidence and the batch's position determine the next step.

Two more columns say whether the lost rows are staged, and whether the user abandons them. Each row is a labeled case.
Each combination matches exactly one row, and a test enumerates all combinations. The table follows TigerBeetle's
``recovery_cases`` (src/vsr/journal.zig).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from twopc.attempt import Evidence
from twopc.batch import Position
from twopc.log_view import LogStatus

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outcome(Enum):
    """The combined evidence for all handles of the last decision."""

    COMMITTED = "all committed"  #: this includes a decision without handles
    LOST = "all lost"
    PARTLY_LOST = "some committed, some lost"
    UNKNOWN = "some unknown"  #: this includes a batch with visible rows that no record lists


class Step(Enum):
    """The coordinator's next step."""

    WRITE = "write"  #: prepare, decide, commit
    REWRITE = "rewrite"  #: no part of the batch is or will be visible: write it again, as a new attempt
    REPAIR = "repair"  #: write only the lost rows, after checking that the replay yields the decided rows
    PUBLISH = "publish"  #: write the lost rows from the staged files, even if the plan would now yield different rows
    ABANDON = "abandon"  #: record that the rest of the last decision is abandoned, then check again
    FINISH = "finish"  #: the batch is visible: evaluate the plan once, if that has not happened yet, and return
    BLOCKED = "blocked"  #: decided, but neither outcome is provable now: CommitBlockedError
    IN_DOUBT = "in doubt"  #: decided, but only a replay could complete it, and none will come: InDoubtError
    REFUSE = "refuse"  #: RefusedStartError
    DAMAGED = "damaged"  #: DecisionLogDamagedError

    @property
    def stops(self) -> bool:
        """Whether the query stops with an error."""
        return self in {Step.BLOCKED, Step.IN_DOUBT, Step.REFUSE, Step.DAMAGED}


class Case(NamedTuple):
    """A row in the recovery table. A field that is None matches everything."""

    label: str
    statuses: frozenset[LogStatus] | None
    outcomes: frozenset[Outcome] | None
    positions: frozenset[Position] | None
    step: Step
    staged: bool | None = None
    abandoned: bool | None = None  #: whether the user abandons the last decision

    def matches(
        self, status: LogStatus, outcome: Outcome, position: Position, *, staged: bool, abandoned: bool
    ) -> bool:
        """Whether the row matches this combination."""
        return (
            (self.statuses is None or status in self.statuses)
            and (self.outcomes is None or outcome in self.outcomes)
            and (self.positions is None or position in self.positions)
            and (self.staged is None or staged == self.staged)
            and (self.abandoned is None or abandoned == self.abandoned)
        )


_READABLE: Final = frozenset(LogStatus) - {LogStatus.CORRUPT}
_ANY_DECISION: Final = frozenset({LogStatus.DECIDED, LogStatus.REPAIRED})
_PROVEN: Final = frozenset({Outcome.COMMITTED})
_ALL_LOST: Final = frozenset({Outcome.LOST})
_SOME_LOST: Final = frozenset({Outcome.PARTLY_LOST})
_LOSSES: Final = _ALL_LOST | _SOME_LOST
_UNKNOWN: Final = frozenset({Outcome.UNKNOWN})
_SAME: Final = frozenset({Position.SAME})
_NEXT: Final = frozenset({Position.NEXT, Position.FIRST})
_RUNNING: Final = _NEXT | _SAME
REFUSALS: Final = {
    Position.REWOUND: "checkpoint rewound",
    Position.COPIED: "another history",
    Position.PLANNED_AGAIN: "planned again",
    Position.GAP: "gap",
    Position.SET_BACK: "set back",
    Position.NEW_QUERY: "name in use",
    Position.UNADOPTED: "checkpoint older than the sink",
    Position.ENDED: "query ended",
}

RECOVERY_TABLE: Final[tuple[Case, ...]] = (
    Case("damaged log", frozenset({LogStatus.CORRUPT}), None, None, Step.DAMAGED),
    *(Case(label, _READABLE, None, frozenset({at}), Step.REFUSE) for at, label in REFUSALS.items()),
    Case("nothing decided", frozenset({LogStatus.UNDECIDED}), None, _NEXT, Step.WRITE),
    # A begin record counts as a decision without transactions: the batch before it was not for the sink, or was abandoned.
    Case("before the sink", frozenset({LogStatus.UNDECIDED}), None, _SAME, Step.FINISH),
    Case("decided, done", _ANY_DECISION, _PROVEN, _SAME, Step.FINISH),
    Case("last one done", _ANY_DECISION, _PROVEN, _NEXT, Step.WRITE),
    # The arrival of the next batch does not prove that this one was committed: the engine also moves on if a function
    # swallows our error.
    Case("decided, not proven", _ANY_DECISION, _UNKNOWN, _RUNNING, Step.BLOCKED, abandoned=False),
    Case("not proven, abandoned", _ANY_DECISION, _UNKNOWN, _RUNNING, Step.ABANDON, abandoned=True),
    # No setting abandons a batch that can be written again completely.
    Case("lost, but staged", _ANY_DECISION, _LOSSES, _RUNNING, Step.PUBLISH, staged=True),
    Case("all lost", _ANY_DECISION, _ALL_LOST, _SAME, Step.REWRITE, staged=False),
    Case("some lost", _ANY_DECISION, _SOME_LOST, _SAME, Step.REPAIR, staged=False, abandoned=False),
    Case("some lost, abandoned", _ANY_DECISION, _SOME_LOST, _SAME, Step.ABANDON, staged=False, abandoned=True),
    # The engine has moved past the batch, so no replay can repair it.
    Case("lost and left behind", _ANY_DECISION, _LOSSES, _NEXT, Step.IN_DOUBT, staged=False, abandoned=False),
    Case("left behind, abandoned", _ANY_DECISION, _LOSSES, _NEXT, Step.ABANDON, staged=False, abandoned=True),
)


def lookup(status: LogStatus, outcome: Outcome, position: Position, *, staged: bool, abandoned: bool = False) -> Case:
    """Find the only row that matches."""
    facts = {"staged": staged, "abandoned": abandoned}
    matching = [case for case in RECOVERY_TABLE if case.matches(status, outcome, position, **facts)]
    if len(matching) != 1:
        raise AssertionError(f"{len(matching)} recovery cases match {status}, {outcome}, {position}, {facts}")
    return matching[0]


def outcome_of(evidence: Iterable[Evidence]) -> Outcome:
    """Combine the evidence for a decision's handles into one outcome."""
    found = set(evidence)
    if Evidence.UNKNOWN in found:
        return Outcome.UNKNOWN
    if Evidence.ABORTED not in found:
        return Outcome.COMMITTED
    return Outcome.PARTLY_LOST if Evidence.COMMITTED in found else Outcome.LOST
