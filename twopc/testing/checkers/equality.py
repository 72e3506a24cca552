"""Check that the output contains each source record exactly once, unaltered."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from twopc.testing.checkers.history import (
    Observation,
    Position,
    Row,
    SourceOf,
    Violation,
    source_in_value,
    with_sources,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CHECKER = "equality"


def unequal(
    given: Mapping[Position, Row], observed: Sequence[Observation], source_of: SourceOf = source_in_value
) -> list[Violation]:
    """Find each record that is lost, duplicated, made up or altered.

    Args:
        given: the expected output for each source record.
        observed: all output records that one reader saw.
        source_of: returns the source record of an output record.
    """
    found: dict[Position, list[Observation]] = {}
    named, others = with_sources(observed, source_of)
    for source, observation in named:
        found.setdefault(source, []).append(observation)
    times = Counter({source: len(rows) for source, rows in found.items()})
    violations = [Violation(_CHECKER, "lost", (source,)) for source in sorted(set(given) - set(found))]
    violations += [Violation(_CHECKER, "made up: the row does not identify a source record", (row,)) for row in others]
    for source, rows in sorted(found.items()):
        if source not in given:
            violations.append(Violation(_CHECKER, "made up", (source, *rows)))
        elif times[source] > 1:
            violations.append(Violation(_CHECKER, "duplicated", (source, *rows)))
        elif Row(rows[0].key, rows[0].value) != given[source]:
            violations.append(Violation(_CHECKER, "altered", (source, given[source], rows[0])))
    return violations
