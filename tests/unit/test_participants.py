"""The sinks of a query, walked as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.fake_sink import FakeCommitter, FakeSink, World
from twopc.attempt import Claim, Owner
from twopc.participants import Participants

if TYPE_CHECKING:
    import pytest


def test_a_retried_start_fences_only_the_driver_that_its_first_look_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look shows a newer driver, which would otherwise be fenced by the older one."""
    looks = iter([Owner("q", 1), Owner("q", 2)])
    fenced: list[Owner | None] = []

    def acquire(_: FakeCommitter, claim: Claim, seen: Owner | None) -> int:
        del claim
        fenced.append(seen)
        return 2

    monkeypatch.setattr(FakeCommitter, "inspect", lambda _: next(looks))
    monkeypatch.setattr(FakeCommitter, "acquire", acquire)
    participants = Participants([FakeSink(World())])
    assert [participants.inspect(), participants.inspect()] == [{"fake": "q"}] * 2
    participants.acquire(Claim("q", "run", "log"))
    assert fenced == [Owner("q", 1)]
