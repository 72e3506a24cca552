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
    """Find each difference between the ledger's decisions and the output's data.

    Args:
        decided: every handle that was ever decided. A truncated ledger no longer contains all of these handles.
        observed: all output records that a reader saw.
        log: the contents of the output's partitions.
        markers: the UUIDs of the transactions with visible markers. These UUIDs are the keys in the marker partitions.
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
        Violation(_CHECKER, "these rows are visible, but no decision contains them", (producer, rows))
        for producer, rows in sorted(visible.items())
        if producer not in known
    ]
    times, wanted = Counter(markers), Counter(handle.uuid for handle in decided)
    violations += [
        Violation(_CHECKER, "was decided, but its marker is not visible", (uuid,)) for uuid in wanted - times
    ]
    violations += [
        Violation(_CHECKER, "this marker is visible, but no decision contains it", (uuid,)) for uuid in times - wanted
    ]
    return violations
