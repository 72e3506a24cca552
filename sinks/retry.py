"""Asking a store again and again: only what is not answered, with pauses that grow, until nothing goes on any more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def ask_until_answered(  # noqa: PLR0913 - keyword-only: a store's own steps
    answers: list[Any],
    *,
    windows: Callable[[Sequence[int]], Iterable[list[int]]],
    make: Callable[[list[int]], None],
    again: Callable[[Any], bool],
    recover: Callable[[Sequence[int]], bool],
    timeout_s: float,
    pauses_s: tuple[float, float],
) -> list[Any]:
    """Make every call, and again those whose answer is ``again``.

    Args:
        answers: a place for each call's, with what stands there where it is never made.
        windows: cuts places into what is made at once.
        make: makes the calls of some places, and fills in their answers; an error is an answer.
        again: whether an answer is worth asking again for.
        recover: is told of the unanswered places before they are made again; False: nothing has to be waited for.
        timeout_s: how long nothing may go on; as long as answers come it goes on.
        pauses_s: the first pause and the longest one.

    Returns:
        ``answers``.
    """
    pending: Sequence[int] = range(len(answers))
    deadline = time.monotonic() + timeout_s
    pause_s, longest_s = pauses_s
    while pending:
        left: list[int] = []
        for window in windows(pending):
            make(window)
            unanswered = [at for at in window if again(answers[at])]
            if len(unanswered) < len(window):
                deadline = time.monotonic() + timeout_s  # it goes on: the time is for a standstill
            left += unanswered
            if left and time.monotonic() > deadline:
                break
        if not left or time.monotonic() > deadline:
            break
        if recover(left):
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            pause_s = min(pause_s * 2, longest_s)
        pending = left
    return answers
