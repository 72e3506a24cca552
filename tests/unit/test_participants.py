"""The sinks of a query, walked as one."""

from __future__ import annotations

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


def test_the_first_check_of_a_sink_counts_even_if_another_sink_did_not_answer_then(
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
