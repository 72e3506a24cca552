"""Check that the ledger's decisions and the output's data agree."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from twopc.counted import counted
from twopc.testing.checkers.history import Decided, LogEntry, Observation, Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHECKER = "ledger"


def disagreeing(
    decided: Sequence[Decided], observed: Sequence[Observation], log: Sequence[LogEntry], markers: Sequence[str]
) -> list[Violation]:
    """Find each difference between decisions and data.

    Args:
        decided: every handle that was ever decided; a truncated ledger no longer has all of them.
        observed: all output records that a reader saw.
        log: the contents of the output's partitions.
        markers: the visible markers' transactions (their UUIDs, the keys of the marker partitions).
    """
    writer = {entry.position: entry.producer for entry in log}
    visible = Counter(writer[row.position] for row in observed if row.position in writer)
    violations = [
        Violation(_CHECKER, "was read, but is not in the log", (row,)) for row in observed if row.position not in writer
    ]
    violations += [
        Violation(_CHECKER, f"{counted(handle.rows, 'row')} decided, {visible[handle.producer]} visible", (handle,))
        for handle in decided
        if visible[handle.producer] != handle.rows
    ]
    used = Counter(handle.producer for handle in decided)
    violations += [
        Violation(_CHECKER, "several decided transactions share the same producer epoch", (producer, times))
        for producer, times in sorted(used.items())
        if times > 1
    ]
    known = {handle.producer for handle in decided}
    violations += [
        Violation(_CHECKER, "no decision names these visible rows", (producer, rows))
        for producer, rows in sorted(visible.items())
        if producer not in known
    ]
    times, wanted = Counter(markers), Counter(handle.uuid for handle in decided)
    violations += [Violation(_CHECKER, "decided, but its marker is not visible", (uuid,)) for uuid in wanted - times]
    violations += [Violation(_CHECKER, "no decision names this visible marker", (uuid,)) for uuid in times - wanted]
    return violations
