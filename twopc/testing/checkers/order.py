"""Check that records with the same key keep their order, if the plan processes each key in one task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.testing.checkers.history import Observation, Position, SourceOf, Violation, source_in_value, with_sources

if TYPE_CHECKING:
    from collections.abc import Sequence


def inverted(observed: Sequence[Observation], source_of: SourceOf = source_in_value) -> list[Violation]:
    """In each output partition, find each record that comes after a later record with the same key and source partition."""
    latest: dict[tuple[int, bytes | None, int], tuple[Position, Observation]] = {}
    violations = []
    in_order = sorted(observed, key=lambda observation: observation.position)
    for source, observation in with_sources(in_order, source_of)[0]:  # ``unequal`` reports the records without a source
        where = (observation.position.partition, observation.key, source.partition)
        before = latest.get(where)
        if before is not None and source < before[0]:
            violations.append(Violation("order", f"key {observation.key!r} is inverted", (before[1], observation)))
        else:
            latest[where] = source, observation
    return violations
