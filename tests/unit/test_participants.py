"""The sinks of a query, walked as one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.unit.fake_sink import FakeCommitter, FakeHandle, FakeSink, World
from twopc.attempt import Claim, Owner
from twopc.errors import ConfigurationError, RetriableError
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


def test_the_first_check_of_a_sink_counts_even_if_another_sink_did_not_respond_at_that_time(
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
        if len(confirmed) % 2 == 1:  # the time passes during the first sink's check
            now[0] += slow_s

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(FakeCommitter, "confirm", confirm)
    participants = Participants([FakeSink(World(), "a"), FakeSink(World(), "b")])
    participants.confirm({("a", 0): 1, ("b", 0): 2}, 5_000)
    assert confirmed == ages


class _Placed(FakeSink):
    """A sink whose handles contain only a place. As in an older version's handles, the place may be missing."""

    def destinations_of(self, handle: FakeHandle) -> list[str]:
        return [handle.transaction] if handle.transaction else []


ONE, TWO, THREE, NOWHERE = map(FakeHandle, ("topic 1", "topic 2", "topic 3", ""))


def test_each_sinks_lost_rows_return_to_the_places_of_its_lost_transactions() -> None:
    participants = Participants([_Placed(World(), "a"), _Placed(World(), "b")])
    lost = {("a", 0): ONE, ("a", 1): TWO, ("b", 0): THREE}
    participants.require_same_destinations(7, lost, {("a", 0): TWO, ("a", 1): ONE, ("b", 5): THREE})
    with pytest.raises(ConfigurationError, match=r"sink 'b': batch 7 .* belong in topic 3, .* write them to topic 2\."):
        participants.require_same_destinations(7, lost, {("a", 0): ONE, ("a", 1): TWO, ("b", 0): TWO})
    # The other sink's places do not count.
    with pytest.raises(ConfigurationError, match=r"belong in topic 1, topic 2, .* write them to topic 1\."):
        participants.require_same_destinations(7, lost, {("a", 0): ONE, ("b", 0): THREE, ("b", 1): TWO})


def test_a_lost_transaction_without_a_place_is_repaired() -> None:
    participants = Participants([_Placed(World(), "a")])
    participants.require_same_destinations(7, {("a", 0): NOWHERE}, {("a", 0): ONE})


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
