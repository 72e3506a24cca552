"""Wait as long as acknowledgements keep arriving, but not beyond the deadline.

If no acknowledgement arrives for some time, stop earlier.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: A failed record may stay unnoticed for this long while others are sent.
_SLICE_S: Final = 0.5


def flush_all(flush: Callable[[float], int], *, silence_s: float, until: float = math.inf) -> int:
    """Flush until every record is acknowledged, or until no acknowledgement has arrived for ``silence_s``.

    With a quota or a slow network, a batch may take minutes even though acknowledgements arrive every second.

    Args:
        flush: waits for at most the given number of seconds, and returns the number of records without a delivery
            report.
        silence_s: how long to wait without a single acknowledgement.
        until: the deadline, as a ``time.monotonic()`` value.

    Returns:
        the number of records without a delivery report.
    """
    left, fewest = 1, math.inf
    deadline = time.monotonic() + silence_s
    while left and time.monotonic() < min(deadline, until):
        left = flush(min(_SLICE_S, silence_s))
        if left < fewest:
            fewest, deadline = left, time.monotonic() + silence_s
    return left
