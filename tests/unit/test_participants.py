"""The sinks of a query, walked as one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.unit.fake_sink import FakeCommitter, FakeSink, World
from twopc.attempt import Claim, Owner
from twopc.errors import RetriableError
from twopc.participants import Participants

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_retried_start_fences_only_the_driver_found_by_its_first_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look shows a newer driver, which would otherwise be fenced by the older one."""
    fenced = _record(monkeypatch, iter([Owner("q", 1), Owner("q", 2)]))
    participants = Participants([FakeSink(World())])
    assert [participants.inspect(), participants.inspect()] == [{"fake": "q"}] * 2
    participants.acquire(Claim("q", "run", "log"))
    assert fenced == [Owner("q", 1)]


def test_the_first_check_of_a_sink_counts_even_if_another_sink_did_not_respond_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other, newer = Owner("q", 1), Owner("q", 5), Owner("q", 2)
    fenced = _record(monkeypatch, iter([one, RetriableError("no answer"), newer, other]))
    participants = Participants([FakeSink(World(), "a"), FakeSink(World(), "b")])
    with pytest.raises(RetriableError):
        participants.inspect()
    participants.inspect()
    participants.acquire(Claim("q", "run", "log"))
    assert fenced == [one, other]


@pytest.mark.parametrize(("slow_s", "ages"), [(0.1, [5_000, 5_100]), (30.0, [5_000, 35_000, 35_000, 65_000])])
def test_votes_are_confirmed_again_after_a_long_wait_for_another_sink(
    slow_s: float, ages: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sink's transactions may expire while the second sink's servers do not respond."""
    now, confirmed = [100.0], []

    def confirm(_: FakeCommitter, handles: object, age_ms: float) -> None:
        del handles
        confirmed.append(round(age_ms))
        if len(confirmed) % 2 == 1:  # the time passes in the first sink's check
            now[0] += slow_s

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(FakeCommitter, "confirm", confirm)
    participants = Participants([FakeSink(World(), "a"), FakeSink(World(), "b")])
    participants.confirm({("a", 0): 1, ("b", 0): 2}, 5_000)
    assert confirmed == ages


def _record(monkeypatch: pytest.MonkeyPatch, looks: Iterator[Owner | RetriableError]) -> list[Owner | None]:
    """Let :meth:`inspect` find ``looks``; return the list of the owners that are fenced."""
    fenced: list[Owner | None] = []

    def inspect(_: FakeCommitter) -> Owner:
        found = next(looks)
        if isinstance(found, RetriableError):
            raise found
        return found

    def acquire(_: FakeCommitter, claim: Claim, seen: Owner | None) -> int:
        del claim
        fenced.append(seen)
        return 2

    monkeypatch.setattr(FakeCommitter, "inspect", inspect)
    monkeypatch.setattr(FakeCommitter, "acquire", acquire)
    return fenced
