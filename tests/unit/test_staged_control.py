"""The control record changes by compare-and-set: a client that loses a round reads again before writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.attempt import Claim
from twopc.errors import FencedError
from twopc.sinks.staged.control import Control, ControlRecord

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, SECOND = Claim("query-a", "run-1", "log"), Claim("query-b", "run-2", "log")


class Memory(ControlRecord[Control]):
    """A record in memory. ``meddle`` runs just before the next swap."""

    def __init__(self) -> None:
        super().__init__("s")
        self.held = Control()
        self.meddle: Callable[[], object] | None = None

    def _load(self) -> tuple[Control, Control]:
        return self.held, self.held

    def _swap(self, stored: Control, record: Control, *, durable: bool) -> bool:
        del durable
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()
        if self.held != stored:
            return False
        self.held = record
        return True


def test_acquiring_twice_is_harmless_and_keeps_the_sinks_id() -> None:
    record = Memory()
    assert [record.acquire(FIRST, seen=0), record.acquire(FIRST, seen=0)] == [1, 1]
    before = record.read().id
    assert record.acquire(SECOND, seen=1) == 2
    assert before and record.read().id == before


def test_an_acquisition_between_read_and_swap_wins() -> None:
    record = Memory()
    record.meddle = lambda: record.acquire(SECOND, seen=0)
    with pytest.raises(FencedError):
        record.acquire(FIRST, seen=0)
    assert record.read().run == "run-2"


STEPS: list[Callable[[Memory], object]] = [
    lambda record: record.reserve("run-1", above=0),
    lambda record: record.record_decision("run-1", 9),
]


@pytest.mark.parametrize("step", STEPS)
def test_an_owner_fenced_between_read_and_swap_changes_nothing(step: Callable[[Memory], object]) -> None:
    record = Memory()
    record.acquire(FIRST, seen=0)
    record.meddle = lambda: record.acquire(SECOND, seen=1)
    with pytest.raises(FencedError):
        step(record)
    assert (record.read().run, record.read().version, record.read().decided) == ("run-2", 0, 0)


def test_a_decision_is_never_lowered_and_lasts_only_for_its_own_query() -> None:
    record = Memory()
    record.acquire(FIRST, seen=0)
    record.record_decision("run-1", 9)
    record.record_decision("run-1", 5)
    record.acquire(Claim("query-a", "run-3", "log"), seen=1)
    assert record.read().decided == 9
    record.acquire(SECOND, seen=2)
    assert record.read().decided == 0


def test_every_reserved_version_is_above_the_earlier_ones() -> None:
    record = Memory()
    record.acquire(FIRST, seen=0)
    ahead = 4_000_000_000_000
    assert [record.reserve("run-1", above=above) for above in (ahead, 0, ahead)] == [ahead + 1, ahead + 2, ahead + 3]
