"""Which decisions have all their snapshots in the history of an Iceberg table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from twopc.sinks.iceberg.history import complete_decisions, rows_by_version
from twopc.sinks.iceberg.record import summary_of
from twopc.sinks.lake.published import Published


def table(*kept: int) -> Any:
    """Snapshot 1 is somebody else's. The sink decides in 2, 3 (repaired in 5) and 6; snapshot 4 adds no rows. Keep only some."""
    decisions = {2: 6, 3: 7, 5: 7, 6: 8}
    summaries: dict[int, dict[str, str]] = {
        1: {},
        4: summary_of("s", b"{}", Published(version=7, batch=7), has_rows=False),
    }
    for number, version in decisions.items():
        published = Published(version=version, batch=version)
        summaries[number] = {**summary_of("s", b"{}", published, has_rows=True), "added-records": "5"}
    snapshots = [
        SimpleNamespace(sequence_number=number, summary=SimpleNamespace(additional_properties=summaries[number]))
        for number in kept
    ]
    return SimpleNamespace(snapshots=snapshots)


@pytest.mark.parametrize(
    ("kept", "rows", "complete"),
    [
        ((1, 2, 3, 4, 5, 6), {6: 5, 7: 10, 8: 5}, {6, 7, 8}),
        ((2, 3, 4, 5, 6), {6: 5, 7: 10, 8: 5}, {7, 8}),
        ((2, 4, 5, 6), {6: 5, 7: 5, 8: 5}, {8}),  # the decision's first snapshot has expired
        ((3, 4, 5, 6), {7: 10, 8: 5}, {8}),
        ((5, 6), {7: 5, 8: 5}, {8}),
        ((6,), {8: 5}, set()),
        ((), {}, set()),
    ],
)
def test_a_gap_before_a_decision_makes_it_incomplete(
    kept: tuple[int, ...], rows: dict[int, int], complete: set[int]
) -> None:
    assert rows_by_version(table(*kept), "s") == rows
    assert complete_decisions(table(*kept), "s") == complete
