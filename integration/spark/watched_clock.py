"""Notice when the clock of the driver's host is set back, for example by NTP.

All times in Spark's reports are times of this clock (``System.currentTimeMillis`` in the driver's JVM). After the clock was set
back, a later event may have an earlier time. The toolkit runs on the same host as the JVM, so both see the same clock.
"""

from __future__ import annotations

import time
from typing import Final

#: A change below this limit is not noticed. Spark's times are full milliseconds.
_NOISE_MS: Final = 1.0


class WatchedClock:
    """Compares the clock with the monotonic clock, which nobody can set. NTP slows both clocks down in the same way."""

    def __init__(self) -> None:
        self._ahead_ms = _ahead_ms()
        self._set_back_ms = 0.0

    def set_back_ms(self) -> float:
        """Return by how much the clock was set back in total since the start.

        A change is noticed only if the clock is still behind at the next call. Setting the clock forward later changes nothing
        about the times that were out of order before.
        """
        previous, self._ahead_ms = self._ahead_ms, _ahead_ms()
        if (back_ms := previous - self._ahead_ms) > _NOISE_MS:
            self._set_back_ms += back_ms
        return self._set_back_ms


def _ahead_ms() -> float:
    """Return how far the clock is ahead of the monotonic clock."""
    while True:
        before, now, after = time.monotonic(), time.time(), time.monotonic()
        if (after - before) * 1000 < _NOISE_MS / 2:  # otherwise, this thread was interrupted in between
            return (now - after) * 1000
