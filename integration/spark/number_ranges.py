"""Store mostly consecutive numbers, such as the numbers that Spark assigns to jobs and RDDs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class NumberRanges:
    """A set of numbers, stored as ranges. The set uses little memory if it has few gaps."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # one more than the last number of each range

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def add(self, number: int) -> None:
        """Add a number, which may already be in the set."""
        if number in self:
            return
        at = bisect_left(self._starts, number)
        follows = at > 0 and self._ends[at - 1] == number
        precedes = at < len(self._starts) and self._starts[at] == number + 1
        if follows and precedes:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif follows:
            self._ends[at - 1] = number + 1
        elif precedes:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)

    def drop_before(self, number: int) -> None:
        """Remove all lower numbers."""
        at = bisect_right(self._ends, number)
        del self._starts[:at], self._ends[:at]
        if self._starts:
            self._starts[0] = max(number, self._starts[0])

    def keep_newest(self, count: int) -> None:
        """Remove the lowest numbers, so that at most ``count`` ranges remain."""
        del self._starts[:-count], self._ends[:-count]

    def fill_oldest_gaps(self, count: int) -> None:
        """Add the numbers in the lowest gaps, so that at most ``count`` ranges remain."""
        extra = max(len(self._starts) - count, 0)
        del self._starts[1 : extra + 1], self._ends[:extra]

    def missing(self, start: int, end: int) -> Iterator[int]:
        """Yield, in order, the numbers in ``range(start, end)`` that are not in the set.

        While the caller iterates, it may add the yielded numbers to the set.
        """
        number = start
        while number < end:
            at = bisect_right(self._starts, number) - 1
            if at >= 0 and number < self._ends[at]:
                number = self._ends[at]
            else:
                yield number
                number += 1
