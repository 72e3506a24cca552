"""Retries with backoff: the one place where a store's client waits and gives up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tenacity import Retrying, retry_if_exception, retry_if_result, stop_after_delay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tenacity import RetryCallState
    from tenacity.wait import wait_base


def retrying(is_transient: Callable[[BaseException], bool], *, timeout_s: float, backoff: wait_base) -> Retrying:
    """Retries a step while its error is transient; after ``timeout_s`` the step's last error is raised."""
    return Retrying(
        retry=retry_if_exception(is_transient), stop=stop_after_delay(timeout_s), wait=backoff, reraise=True
    )


def execute_all(  # noqa: PLR0913 - keyword-only: a store's own steps
    answers: list[Any],
    *,
    sizes: Callable[[int], Sequence[int]],
    limits: Sequence[int],
    execute: Callable[[list[int]], None],
    retry_if: Callable[[Any], bool],
    recover: Callable[[Sequence[int]], None],
    timeout_s: float,
    backoff: wait_base,
) -> list[Any]:
    """Execute every call, and retry those that ``retry_if`` names until progress stops.

    Args:
        answers: one for each call; what it holds at first stays where the call is never made.
        sizes: the sizes of the call at a position, one for each of ``limits``.
        limits: how much is sent together; a call beyond them is sent alone.
        execute: makes the calls at some positions and fills in their answers; an error is an answer.
        retry_if: whether an answer calls for a retry.
        recover: is called with the open positions before each pause.
        timeout_s: how long no call may be answered before all give up; every answer restarts it.
        backoff: the pauses between rounds.

    Returns:
        ``answers``.
    """
    pending: Sequence[int] = range(len(answers))
    deadline = time.monotonic() + timeout_s

    def is_over(_: object = None) -> bool:
        return time.monotonic() > deadline

    def execute_pending() -> Sequence[int]:
        nonlocal pending, deadline
        left: list[int] = []
        for window in _windows(pending, sizes, limits):
            execute(window)
            unanswered = [at for at in window if retry_if(answers[at])]
            if len(unanswered) < len(window):
                deadline = time.monotonic() + timeout_s
            left += unanswered
            if left and is_over():
                break
        pending = left
        return left

    def pause_s(state: RetryCallState) -> float:
        return min(backoff(state), max(0.0, deadline - time.monotonic()))

    Retrying(
        retry=retry_if_result(bool),
        stop=is_over,
        wait=pause_s,
        before_sleep=lambda _: recover(pending),
        retry_error_callback=lambda _: None,  # the open positions keep their last answer
    )(execute_pending)
    return answers


def _windows(
    places: Sequence[int], sizes: Callable[[int], Sequence[int]], limits: Sequence[int]
) -> Iterator[list[int]]:
    window: list[int] = []
    used: Sequence[int] = [0] * len(limits)
    for place in places:
        size = sizes(place)
        grown = [before + more for before, more in zip(used, size, strict=True)]
        if window and any(total > limit for total, limit in zip(grown, limits, strict=True)):
            yield window
            window, grown = [], list(size)
        window.append(place)
        used = grown
    if window:
        yield window
