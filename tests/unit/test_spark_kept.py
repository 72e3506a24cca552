"""Anything that a worker's sinks keep for a run of a query is released when the run has ended."""

from __future__ import annotations

from typing import Any, cast

import pytest

from twopc.integration.spark import kept
from twopc.integration.spark.kept import Runs, keep


class Sink:
    def __init__(self, name: str) -> None:
        self.name = name
        self.released: list[int] = []

    def release(self, driver_epoch: int) -> None:
        self.released.append(driver_epoch)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_kept", {})


def task(mine: str, running: str, sink: Sink, epoch: int = 0, process: str = "p") -> None:
    keep(Runs(mine, frozenset(running), process), cast("Any", [sink]), {sink.name: epoch})


def test_a_task_releases_only_the_resources_that_ended_runs_have_left() -> None:
    first, second, third = Sink("first"), Sink("second"), Sink("third")
    task("a", "ab", first)
    task("b", "ab", second)
    task("a", "ab", first)
    assert not first.released + second.released
    task("c", "bc", third)
    assert (first.released, second.released) == ([0], [])
    task("c", "c", third)
    task("c", "c", third)
    assert (first.released, second.released, third.released) == ([0], [0], [])


def test_no_resources_are_left_of_either_driver_of_a_run_that_has_recovered_twice() -> None:
    sink = Sink("s")
    task("a", "a", sink, epoch=3)
    task("a", "a", sink, epoch=4)
    task("b", "b", Sink("other"))
    assert sink.released == [3, 4]


def test_a_late_task_of_an_ended_run_is_followed_by_another_release() -> None:
    sink, other = Sink("s"), Sink("other")
    for _ in range(2):
        task("a", "a", sink)
        task("b", "b", other)
    assert sink.released == [0, 0]


def test_a_process_does_not_release_the_runs_of_another_process() -> None:
    """Notebooks share a JVM and its workers, and none of them knows the queries of the others."""
    sink = Sink("s")
    task("a", "a", sink, process="p")
    task("b", "b", Sink("other"), process="q")
    assert not sink.released
