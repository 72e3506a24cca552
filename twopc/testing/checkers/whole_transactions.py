"""Check that each transaction is either completely visible or completely invisible in all of its partitions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from twopc.testing.checkers.history import Kind, LogEntry, Observation, Position, Producer, Violation, fates

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHECKER = "whole transactions"


def torn(observed: Sequence[Observation], log: Sequence[LogEntry]) -> list[Violation]:
    """Find each transaction that is only partly visible.

    Args:
        observed: all records that a reader saw once the cluster was at rest. Before that, a transaction may be visible in
            only some of its partitions.
        log: the contents of the partitions. Each epoch of a producer must be used for only one transaction (rule 5).
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
            violations.append(
                Violation(
                    _CHECKER, f"the transaction of {producer} is only partly visible", (tuple(shown), tuple(missing))
                )
            )
        how = {ended[position] for position in positions}
        if len(how) > 1:
            ends = ", ".join(sorted("open" if kind is None else kind.value for kind in how))
            violations.append(
                Violation(
                    _CHECKER,
                    f"the transaction of {producer} ended differently in different partitions: {ends}",
                    tuple(positions),
                )
            )
    return violations
