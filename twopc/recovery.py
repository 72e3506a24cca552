"""Recovery as a table: (what the log says) x (what is proven) x (which batch this is) -> what to do.

Each row is a labelled case; exactly one row matches every combination, and a test enumerates all of them. The shape is
that of TigerBeetle's ``recovery_cases`` (src/vsr/journal.zig).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from twopc.batch import Position
from twopc.handle import Evidence
from twopc.log_view import LogStatus

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outcome(Enum):
    """The evidence of all handles of the last decision, together."""

    COMMITTED = "all committed"  #: also where there are none
    LOST = "all lost"
    PARTLY_LOST = "some committed, some lost"
    UNKNOWN = "some unknown"


class Action(Enum):
    """What the coordinator does next."""

    WRITE = "write"  #: prepare, decide, commit
    EVALUATE = "evaluate"  #: it is visible: evaluate the batch once into nothing, and return
    REWRITE = "rewrite"  #: nothing of it is visible or ever will be: write anew, as a new attempt
    REPAIR = "repair"  #: write only what was lost, after checking that the replay gives the decided rows
    PUBLISH = "publish"  #: write what was lost from the staged rows, whatever the plan would give today
    BLOCKED = "blocked"  #: decided, not provable now: CommitBlockedError
    IN_DOUBT = "in doubt"  #: decided, and only a replay that we do not have could complete it: InDoubtError
    REFUSE = "refuse"  #: RefusedStartError
    DAMAGED = "damaged"  #: DecisionLogDamagedError


class Case(NamedTuple):
    """One row. None matches everything."""

    label: str
    statuses: frozenset[LogStatus] | None
    outcomes: frozenset[Outcome] | None
    positions: frozenset[Position] | None
    action: Action
    staged: bool | None = None

    def matches(self, status: LogStatus, outcome: Outcome, position: Position, *, staged: bool) -> bool:
        """Whether the row answers this combination."""
        return (
            (self.statuses is None or status in self.statuses)
            and (self.outcomes is None or outcome in self.outcomes)
            and (self.positions is None or position in self.positions)
            and (self.staged is None or staged == self.staged)
        )


_READABLE: Final = frozenset(LogStatus) - {LogStatus.CORRUPT}
_ANY_DECISION: Final = frozenset({LogStatus.DECIDED, LogStatus.REPAIRED})
_SETTLED: Final = frozenset({Outcome.COMMITTED})
_ALL_LOST: Final = frozenset({Outcome.LOST})
_SOME_LOST: Final = frozenset({Outcome.PARTLY_LOST})
_LOSSES: Final = _ALL_LOST | _SOME_LOST
_REFUSALS: Final = {
    Position.REWOUND: "checkpoint rewound",
    Position.COPIED: "another history",
    Position.GAP: "gap",
    Position.NEW_QUERY: "name in use",
    Position.UNADOPTED: "checkpoint older than the sink",
    Position.ENDED: "lineage ended",
}
_GOING_ON: Final = frozenset({Position.NEXT, Position.FIRST})
_RUNNING: Final = _GOING_ON | {Position.SAME}

RECOVERY_TABLE: Final[tuple[Case, ...]] = (
    Case("damaged log", frozenset({LogStatus.CORRUPT}), None, None, Action.DAMAGED),
    *(Case(label, _READABLE, None, frozenset({at}), Action.REFUSE) for at, label in _REFUSALS.items()),
    Case("nothing decided", frozenset({LogStatus.UNDECIDED}), None, _GOING_ON, Action.WRITE),
    # A begin record counts as a decision without transactions: its batch belongs to the time before the sink.
    Case("before the sink", frozenset({LogStatus.UNDECIDED}), None, frozenset({Position.SAME}), Action.EVALUATE),
    Case("decided, done", _ANY_DECISION, _SETTLED, frozenset({Position.SAME}), Action.EVALUATE),
    Case("last one done", _ANY_DECISION, _SETTLED, _GOING_ON, Action.WRITE),
    Case("decided, not proven", _ANY_DECISION, frozenset({Outcome.UNKNOWN}), _RUNNING, Action.BLOCKED),
    Case("lost, but staged", _ANY_DECISION, _LOSSES, _RUNNING, Action.PUBLISH, staged=True),
    Case("all lost", _ANY_DECISION, _ALL_LOST, frozenset({Position.SAME}), Action.REWRITE, staged=False),
    Case("some lost", _ANY_DECISION, _SOME_LOST, frozenset({Position.SAME}), Action.REPAIR, staged=False),
    # The engine has left the batch behind: there is no replay to repair it from.
    Case("lost and left behind", _ANY_DECISION, _LOSSES, _GOING_ON, Action.IN_DOUBT, staged=False),
)


def lookup(status: LogStatus, outcome: Outcome, position: Position, *, staged: bool) -> Case:
    """The one row that answers."""
    matching = [case for case in RECOVERY_TABLE if case.matches(status, outcome, position, staged=staged)]
    if len(matching) != 1:
        raise AssertionError(f"{len(matching)} recovery cases match {status}, {outcome}, {position}, staged={staged}")
    return matching[0]


def outcome_of(evidence: Iterable[Evidence]) -> Outcome:
    """Sum up the evidence of every handle of a decision."""
    found = set(evidence)
    if Evidence.UNKNOWN in found:
        return Outcome.UNKNOWN
    if Evidence.ABORTED not in found:
        return Outcome.COMMITTED
    return Outcome.PARTLY_LOST if Evidence.COMMITTED in found else Outcome.LOST
