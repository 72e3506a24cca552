"""Check that readers see only committed records, and that a record neither vanishes nor changes after it was read.

In Jepsen's terms, a read of an uncommitted transaction's record is an aborted read (G1a).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.testing.checkers.history import Kind, LogEntry, Observation, Position, Violation, fates

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHECKER = "aborted reads"


def aborted_reads(
    observed: Sequence[Observation], log: Sequence[LogEntry], final: Sequence[Observation]
) -> list[Violation]:
    """Find each record that should not have been read, and each record that later vanished or changed.

    Args:
        observed: the records that a reader saw from the first fault until the reader had caught up.
        log: the partitions' contents at the end.
        final: the records that a new reader sees at the end.
    """
    ended = fates(log)
    seen: dict[Position, Observation] = {}
    last = {row.position: row for row in final}
    violations = []
    for row in observed:
        before = seen.setdefault(row.position, row)
        if (before.key, before.value) != (row.key, row.value):
            violations.append(Violation(_CHECKER, "an offset was read twice with different records", (before, row)))
        if row.position in ended and ended[row.position] is not Kind.COMMIT:
            fate = "aborted" if ended[row.position] is Kind.ABORT else "never ended"
            violations.append(Violation(_CHECKER, f"was read although its transaction was {fate}", (row,)))
        now = last.get(row.position)
        if now is None:
            violations.append(Violation(_CHECKER, "was read, but then vanished", (row,)))
        elif (now.key, now.value) != (row.key, row.value):
            violations.append(Violation(_CHECKER, "was read, but then changed", (row, now)))
    violations += [
        Violation(_CHECKER, "became visible at an offset that a reader had already passed", (row,))
        for row in final
        if row.position not in seen
    ]
    return violations
