"""What a look at an Iceberg table reads: which decisions have all their snapshots in the history. It creates nothing."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from twopc import IcebergSink
from twopc.errors import ConfigurationError
from twopc.sinks.iceberg.history import complete_decisions, rows_by_version
from twopc.sinks.iceberg.record import summary_of
from twopc.sinks.lake.published import Published

if TYPE_CHECKING:
    from pathlib import Path


def table(*kept: int) -> Any:
    """Another writer made snapshot 1. The sink decides in 2, 3 (repaired in 5) and 6; snapshot 4 adds no rows. Keep only some."""
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


def test_a_check_creates_no_tables_in_a_catalog(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    committer = IcebergSink(name="s", catalog=catalog, table="shop.orders").create_committer()
    with pytest.raises(ConfigurationError, match="does not contain an Iceberg catalog"):
        committer.observe([], {})
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == []
