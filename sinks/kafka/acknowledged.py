"""Waiting for acknowledgements. While they come, nobody gives up: only silence ends the wait, or the end of the time."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long a failed record may go unnoticed while others are sent.
_SLICE_S: Final = 0.5


def flush_all(flush: Callable[[float], int], *, silence_s: float, until: float = math.inf) -> int:
    """Flush until every record is acknowledged, or none was for ``silence_s``.

    A quota or a slow link lets a batch take minutes, while each second brings acknowledgements.

    Args:
        flush: waits for at most so many seconds; returns how many records have no report yet.
        silence_s: how long to wait without a single acknowledgement.
        until: when to end in any case, by ``time.monotonic()``.

    Returns:
        how many records have no report.
    """
    left, fewest = 1, math.inf
    deadline = time.monotonic() + silence_s
    while left and time.monotonic() < min(deadline, until):
        left = flush(min(_SLICE_S, silence_s))
        if left < fewest:
            fewest, deadline = left, time.monotonic() + silence_s
    return left
