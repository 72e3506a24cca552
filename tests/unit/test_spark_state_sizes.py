"""Spark's reports of the state's sizes. Before a run's first batch, they do not show whether the query keeps state."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from twopc.integration.spark import state_sizes
from twopc.integration.spark.state_sizes import StateSizes

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = {"operatorName": "stateStoreSave", "numRowsTotal": 7, "memoryUsedBytes": 100, "commitTimeMs": 3}
DEDUPLICATED = COUNT | {
    "operatorName": "dedupe",
    "customMetrics": {"rocksdbSstFileSize": 9, "loadedMapCacheHitCount": 2},
}
IDLE: list[
    dict[str, Any]
] = []  # a report of a trigger that found no data before the run's first batch names no operator


@pytest.fixture
def sizes() -> StateSizes:
    return StateSizes()


@pytest.fixture
def look(sizes: StateSizes, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Look before a batch. The last report names these operators; None means that there is no report."""

    def before(batch_id: int, reported: list[dict[str, Any]] | None) -> list[str]:
        operators = [SimpleNamespace(json=lambda one=one: json.dumps(one)) for one in reported or ()]
        report = None if reported is None else MagicMock(**{"stateOperators.return_value": operators})
        query = MagicMock(**{"lastProgress.return_value": report})
        monkeypatch.setattr(state_sizes, "running_query", lambda *_: query)
        return [f"{one.operator} {one.sizes}" for one in sizes.before(MagicMock(), "q", batch_id)]

    return before


@pytest.mark.parametrize("reported", [None, IDLE], ids=["no report", "an idle trigger"])
def test_before_the_first_batch_of_a_run_a_query_does_not_count_as_stateless(
    reported: list[dict[str, Any]] | None, sizes: StateSizes, look: Callable[..., list[str]]
) -> None:
    """Fails if a query that starts without data counts as stateless: the driver then collects its rows without a limit."""
    assert look(4, reported) == look(4, reported) == []  # a batch may have several attempts
    assert not sizes.is_stateless
    assert look(5, [COUNT, DEDUPLICATED]) == ["stateStoreSave {}", "dedupe {'rocksdbSstFileSize': 9}"]
    assert not sizes.is_stateless


def test_after_its_first_batch_a_query_without_operators_is_stateless(
    sizes: StateSizes, look: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look(0, IDLE) == look(1, []) == []
    assert sizes.is_stateless
    monkeypatch.setattr(state_sizes, "running_query", MagicMock(side_effect=AssertionError))
    assert sizes.before(MagicMock(), "q", 2) == ()
    assert sizes.is_stateless


def test_a_report_that_cannot_be_read_says_nothing_about_state(
    sizes: StateSizes, look: Callable[..., list[str]]
) -> None:
    look(0, None)
    assert look(1, [{"unknown": 1}]) == []
    assert not sizes.is_stateless
