"""Calls are retried while there is progress, and only those that were not answered."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tenacity import wait_fixed

from sinks import retry
from sinks.retry import execute_all, retrying

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE = wait_fixed(0.01)


def run(
    answer: Callable[[int, int], Any], calls: int, *, timeout_s: float = 10.0, window: int = 2
) -> tuple[list[Any], list[list[int]], list[list[int]]]:
    """Execute calls that give ``answer(position, attempt)``: the answers, the windows, and the positions that recovered."""
    windows: list[list[int]] = []
    recovered: list[list[int]] = []
    attempts = [0] * calls
    answers: list[Any] = ["not sent"] * calls

    def execute(places: list[int]) -> None:
        windows.append(places)
        for place in places:
            attempts[place] += 1
            answers[place] = answer(place, attempts[place])

    execute_all(
        answers,
        sizes=lambda _: (1,),
        limits=(window,),
        execute=execute,
        retry_if=lambda found: found is None,
        recover=lambda left: recovered.append(list(left)),
        timeout_s=timeout_s,
        backoff=PAUSE,
    )
    return answers, windows, recovered


def test_only_unanswered_calls_are_retried() -> None:
    answers, windows, recovered = run(lambda at, attempt: at if at != 1 or attempt == 3 else None, 4)
    assert answers == [0, 1, 2, 3]
    assert windows == [[0, 1], [2, 3], [1], [1]]
    assert recovered == [[1], [1]]


def test_no_calls_are_answered_at_once() -> None:
    assert run(lambda *_: None, 0) == ([], [], [])


def test_calls_are_sent_together_up_to_each_limit_and_a_larger_one_alone() -> None:
    sizes = [(1, 5), (1, 5), (1, 1), (1, 1), (1, 1), (1, 99), (1, 1)]
    sent: list[list[int]] = []
    execute_all(
        [None] * len(sizes),
        sizes=sizes.__getitem__,
        limits=(3, 10),
        execute=sent.append,
        retry_if=lambda _: False,
        recover=lambda _: None,
        timeout_s=1,
        backoff=PAUSE,
    )
    assert sent == [[0, 1], [2, 3, 4], [5], [6]]


def test_a_standstill_ends_it_and_leaves_the_last_answers() -> None:
    began = time.monotonic()
    answers, windows, _ = run(lambda at, _: at if at == 0 else None, 5, timeout_s=0.05)
    assert answers[:2] == [0, None]
    assert len(windows) > 1
    assert 0.05 <= time.monotonic() - began < 5


def test_every_answer_restarts_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def slowly(at: int, attempt: int) -> int | None:
        nonlocal now_s
        now_s += 1
        return at if attempt > at else None

    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now_s))
    answers, _, _ = run(slowly, 6, timeout_s=7, window=1)
    assert answers == list(range(6))
    assert now_s == sum(range(7))


def test_what_was_never_sent_keeps_what_stood_there() -> None:
    def silent(_at: int, _attempt: int) -> None:
        time.sleep(0.1)

    answers, windows, _ = run(silent, 4, timeout_s=0.05, window=1)
    assert windows == [[0]]
    assert answers == [None, "not sent", "not sent", "not sent"]


def test_a_step_is_retried_while_its_error_is_transient_and_then_raised() -> None:
    def step() -> None:
        raise errors.pop(0)

    errors: list[Exception] = [OSError(), OSError(), ValueError("final"), OSError()]
    with pytest.raises(ValueError, match="final"):
        retrying(lambda error: isinstance(error, OSError), timeout_s=10, backoff=PAUSE)(step)
    assert len(errors) == 1


def test_a_transient_error_that_lasts_is_raised_as_it_is() -> None:
    def step() -> None:
        raise ConnectionError("still")

    with pytest.raises(ConnectionError, match="still"):
        retrying(lambda _: True, timeout_s=0.05, backoff=PAUSE)(step)
