"""Define the parts of a diagnosis: the window of checkpoints, the rules, and the evidence for the rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.progress import Cause, Checkpoint, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The number of newest checkpoints to judge.
LAST: Final = 50
#: A shorter time is not a problem, even if it is a large share of a checkpoint's time.
LEAST_MS: Final = 500.0


@dataclass(frozen=True)
class Evidence:
    """The evidence that a rule applies.

    Attributes:
        weight: how much of the problem the cause explains, from 0 to 1. Failures weigh more than slowness.
        text: a sentence with the figures.
    """

    weight: float
    text: str


@dataclass(frozen=True)
class Rule:
    """A cause that can be found in the history.

    Attributes:
        name: the cause's name, for programs.
        says: the cause, in a sentence.
        advice: what to change.
        find: searches for the cause, and returns its evidence.
    """

    name: str
    says: str
    advice: str
    find: Callable[[Window], Evidence | None]


@dataclass(frozen=True)
class Window:
    """A history's newest checkpoints, in the order in which they ended."""

    checkpoints: tuple[Checkpoint, ...]

    @cached_property
    def written(self) -> tuple[Checkpoint, ...]:
        """The completed checkpoints that wrote rows."""
        return tuple(one for one in self.checkpoints if one.cause is None and one.steps)

    @cached_property
    def by_tasks(self) -> tuple[Checkpoint, ...]:
        """The checkpoints whose tasks wrote the rows and reported their durations."""
        return tuple(one for one in self.written if one.way != "direct" and one.slowest)

    def phase(self, name: str) -> tuple[float, float]:
        """For the checkpoints that wrote rows, return the phase's share of the time (0 to 1) and its median duration in ms."""
        whole = sum(one.took_ms for one in self.written)
        taken = [one.phases.get(name, 0.0) for one in self.written]
        return (sum(taken) / whole, median(taken)) if taken and whole else (0.0, 0.0)

    def causes(self) -> Iterable[tuple[int, Checkpoint, Cause]]:
        """List every failure, including failed attempts, and count the checkpoints completed after each failure."""
        since = 0
        for one in reversed(self.checkpoints):
            for cause in one.failed_attempts:
                yield since, one, cause
            if one.cause is not None:
                yield since, one, one.cause
            else:
                since += 1


def failures(names: Iterable[str] = (), pattern: str = "", reason: str = "") -> Callable[[Window], Evidence | None]:
    """Build a rule's search for failures with one of these error classes, a matching message, or this reason."""
    classes, expression = frozenset(names), re.compile(pattern) if pattern else None

    def is_one(cause: Cause) -> bool:
        is_named = cause.error in classes or (bool(reason) and cause.reason == reason)
        return is_named or (expression is not None and expression.search(cause.message) is not None)

    def find(window: Window) -> Evidence | None:
        found = [(since, one, cause) for since, one, cause in window.causes() if is_one(cause)]
        if not found:
            return None
        since, last, cause = found[0]
        first_line = (cause.message.splitlines() or [""])[0][:200]
        ended = f"; {counted(since, 'checkpoint')} completed since" if since else ""
        times = "once" if len(found) == 1 else f"{len(found)} times"
        where = f"checkpoint {last.batch_id} in phase {cause.phase or 'start'}"
        return Evidence(
            weight=1.0 if not since else max(0.1, 0.8 - since / LAST),
            text=f"{times}, last at {where}{ended}: {cause.error}: {first_line}",
        )

    return find


def slow_phase(name: str, *, share: float) -> Callable[[Window], Evidence | None]:
    """Build a rule's search for a phase that takes more than this share of the time, and at least :data:`LEAST_MS`."""

    def find(window: Window) -> Evidence | None:
        taken, typical = window.phase(name)
        if taken < share or typical < LEAST_MS:
            return None
        return Evidence(
            weight=taken * 0.7, text=f"{taken:.0%} of a checkpoint's time; the median is {seconds(typical)}"
        )

    return find
