"""Transactions are visible whole or not at all, over all their partitions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.checkers.history import Kind, LogEntry, Observation, Position, Producer, Violation, fates

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHECKER = "whole transactions"


def torn(observed: Sequence[Observation], log: Sequence[LogEntry]) -> list[Violation]:
    """The transactions of which a part is visible and a part is not.

    Args:
        observed: everything that a reader saw, when all has come to rest: partitions of one transaction become visible
            one after the other.
        log: what the partitions hold. One transaction an epoch is taken for granted (rule 5).
    """
    seen = {row.position for row in observed}
    ended = fates(log)
    rows: dict[Producer, list[Position]] = defaultdict(list)
    for entry in log:
        if entry.kind is Kind.ROW:
            rows[entry.producer].append(entry.position)
    violations = []
    for producer, positions in sorted(rows.items()):
        missing = [position for position in positions if position not in seen]
        if missing and len(missing) < len(positions):
            shown = [position for position in positions if position in seen]
            violations.append(Violation(_CHECKER, f"{producer} is visible in part", (tuple(shown), tuple(missing))))
        how = {ended[position] for position in positions}
        if len(how) > 1:
            told = ", ".join(sorted("open" if kind is None else kind.value for kind in how))
            violations.append(Violation(_CHECKER, f"{producer} has ended in different ways: {told}", tuple(positions)))
    return violations
