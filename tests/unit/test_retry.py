"""Unanswered calls, and only they, are retried as long as there is progress."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tenacity import wait_fixed

from twopc.retry import retrying
from twopc.sinks.staged import client
from twopc.sinks.staged.client import StoreClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAUSE = wait_fixed(0.01)


class Client(StoreClient[tuple[int, ...]]):
    """A call is its sizes. ``answer`` maps a call's index and attempt to its response; None means no response."""

    system = oldest = "a store"
    failures = ()
    remedies = ()
    backoff = PAUSE

    def __init__(
        self, answer: Callable[[int, int], Any], *, limits: tuple[int, ...] = (2,), timeout_s: float = 10.0
    ) -> None:
        super().__init__(timeout_s=timeout_s)
        self.limits = limits  # type: ignore[misc]
        self._answer = answer
        self._attempts = Counter[int]()
        self.windows: list[list[int]] = []
        self.recovered: list[int] = []

    @staticmethod
    def is_transient(answer: object) -> bool:
        return answer is None

    def close(self) -> None:
        pass

    def _sizes(self, call: tuple[int, ...]) -> Sequence[int]:
        return call

    def _find(self, call: tuple[int, ...], last: Any) -> tuple[str, None]:
        del call, last
        return "server", None

    def _send(
        self, server: str, calls: Sequence[tuple[int, ...]], mine: Sequence[tuple[int, Any]], answers: list[Any]
    ) -> None:
        del server, calls
        self.windows.append([at for at, _ in mine])
        for at, _ in mine:
            self._attempts[at] += 1
            answers[at] = self._answer(at, self._attempts[at])

    def _recover(self, calls: Sequence[tuple[int, ...]], answers: Sequence[Any]) -> None:
        del answers
        self.recovered.append(len(calls))


def run(
    answer: Callable[[int, int], Any], calls: int, *, timeout_s: float = 10.0, window: int = 2
) -> tuple[list[Any], list[list[int]], list[int]]:
    """Execute calls; return the responses, the windows, and how many calls were open at each pause."""
    store = Client(answer, limits=(window,), timeout_s=timeout_s)
    return store.execute([(1,)] * calls), store.windows, store.recovered


def test_only_calls_without_a_response_are_retried() -> None:
    answers, windows, recovered = run(lambda at, attempt: at if at != 1 or attempt == 3 else None, 4)
    assert answers == [0, 1, 2, 3]
    assert windows == [[0, 1], [2, 3], [1], [1]]
    assert recovered == [1, 1]


def test_execute_returns_at_once_if_there_are_no_calls() -> None:
    assert run(lambda *_: None, 0) == ([], [], [])


def test_calls_are_sent_together_up_to_each_limit_and_an_oversized_call_is_sent_alone() -> None:
    sizes = [(1, 5), (1, 5), (1, 1), (1, 1), (1, 1), (1, 99), (1, 1)]
    store = Client(lambda *_: True, limits=(3, 10))
    store.execute(sizes)
    assert store.windows == [[0, 1], [2, 3, 4], [5], [6]]


def test_execute_gives_up_if_there_is_no_progress_and_returns_the_last_responses() -> None:
    began = time.monotonic()
    answers, windows, _ = run(lambda at, _: at if at == 0 else None, 5, timeout_s=0.05)
    assert answers[:2] == [0, None]
    assert len(windows) > 1
    assert 0.05 <= time.monotonic() - began < 5


def test_every_response_restarts_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def slowly(at: int, attempt: int) -> int | None:
        nonlocal now_s
        now_s += 1
        return at if attempt > at else None

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now_s))
    answers, _, _ = run(slowly, 6, timeout_s=7, window=1)
    assert answers == list(range(6))
    assert now_s == sum(range(7))


def test_a_call_that_was_never_sent_is_reported_as_not_sent() -> None:
    def silent(_at: int, _attempt: int) -> None:
        time.sleep(0.1)

    answers, windows, _ = run(silent, 4, timeout_s=0.05, window=1)
    assert windows == [[0]]
    assert answers[0] is None
    assert [str(answer) for answer in answers[1:]] == ["not sent"] * 3


def test_a_step_is_retried_until_an_error_that_is_not_transient() -> None:
    def step() -> None:
        raise errors.pop(0)

    errors: list[Exception] = [OSError(), OSError(), ValueError("final"), OSError()]
    with pytest.raises(ValueError, match="final"):
        retrying(lambda error: isinstance(error, OSError), timeout_s=10, backoff=PAUSE)(step)
    assert len(errors) == 1


def test_a_transient_error_that_lasts_is_raised_unchanged() -> None:
    def step() -> None:
        raise ConnectionError("still")

    with pytest.raises(ConnectionError, match="still"):
        retrying(lambda _: True, timeout_s=0.05, backoff=PAUSE)(step)
