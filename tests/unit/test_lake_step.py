"""A step repeats its commit on top of the newest version of the table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from twopc.sinks.lake import step as step_module
from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.step import LakeStep


class Step(LakeStep[Any, str]):
    """Another writer commits first, as often as the test says."""

    def __init__(self, overtaken: int) -> None:
        super().__init__("s", None)
        self.control = b"record"
        self.events: list[str] = []
        self._left = overtaken

    def commit(self) -> StoreError | None:
        self.events.append("commit")
        self._left -= 1
        return StoreError("overtaken") if self._left >= 0 else None

    def look(self) -> str:
        self.events.append("look")
        return "newer"

    def catch_up(self, seen: str, failure: StoreError) -> bool:
        del seen, failure
        return False

    def tidy(self) -> None:
        self.events.append("tidy")


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Step:
    step = Step(overtaken=2)
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: step.events.append("pause"))
    monkeypatch.setattr(step_module, "time", clock)
    return step


def test_a_step_reads_the_table_after_the_pause_so_that_a_retry_starts_from_the_newest_version(step: Step) -> None:
    step.end(1_000)
    assert step.events == ["commit", "pause", "look", "commit", "pause", "look", "commit", "tidy"]


def test_a_step_reads_the_table_again_after_its_last_commit_without_a_pause(step: Step) -> None:
    with pytest.raises(StoreError, match="overtaken"):
        step.end(0)
    assert step.events == ["commit", "look"]
