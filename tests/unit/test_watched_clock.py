"""By how much the driver's clock was set back, from both of the process's clocks."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest

from twopc.integration.spark.watched_clock import WatchedClock

if TYPE_CHECKING:
    from collections.abc import Iterable

_NOW_S = 1_790_000_000.0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


class Clocks:
    """Clocks that stand still unless a test moves them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic_s, self.ahead_s = 100.0, _NOW_S
        self.interruptions_s: Iterable[float] = ()
        monkeypatch.setattr(time, "monotonic", self._monotonic)
        monkeypatch.setattr(time, "time", lambda: self.monotonic_s + self.ahead_s)

    def _monotonic(self) -> float:
        self.interruptions_s = iter(self.interruptions_s)
        self.monotonic_s += next(self.interruptions_s, 0)
        return self.monotonic_s


@pytest.mark.parametrize(
    ("changes_s", "expected_ms"),
    [
        ([], 0),
        ([3600], 0),
        ([-2], 2_000),
        ([-2, -3], 5_000),
        ([-2, 2], 2_000),
        ([2, -2], 2_000),
        ([-0.002], 2),
        ([-0.0005], 0),
    ],
)
def test_only_changes_back_are_added_up(clocks: Clocks, changes_s: list[float], expected_ms: float) -> None:
    watched = WatchedClock()
    for ahead_s in accumulate(changes_s, initial=_NOW_S):
        clocks.ahead_s = ahead_s
        clocks.monotonic_s += 60
        watched.set_back_ms()
    assert watched.set_back_ms() == pytest.approx(expected_ms, abs=0.01)


@pytest.mark.parametrize("interruptions_s", [[0, 5], [5, 0], [0, 5, 0, 5]])
def test_a_thread_interrupted_between_both_clocks_does_not_look_like_a_change(
    clocks: Clocks, interruptions_s: list[float]
) -> None:
    clocks.interruptions_s = interruptions_s
    watched = WatchedClock()
    watched.set_back_ms()
    clocks.interruptions_s = interruptions_s
    assert watched.set_back_ms() == watched.set_back_ms() == 0
