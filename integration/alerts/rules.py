"""Define the alert rules. A rule's only inputs are the facts and the current time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from twopc.counted import counted
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Facts:
    """The facts that the alert rules evaluate. All times are in ms since 1970 UTC.

    Attributes:
        failures_ms: when checkpoints failed, in order, as far back as any rule looks.
        in_a_row: the number of failures since the last completed checkpoint.
        quiet_since_ms: when the last checkpoint was completed. Before the first completed checkpoint, this is the
            time when the watch began, or when the query started again after a normal close.
        planned_ms: when Spark planned the checkpoint that is not done yet; None if every planned checkpoint is done.
        last_failure: the newest failure in one line; empty if none is known.
    """

    failures_ms: Sequence[int]
    in_a_row: int
    quiet_since_ms: int
    planned_ms: int | None = None
    last_failure: str = ""


class Rule(Protocol):
    """A condition that triggers an alert.

    Attributes:
        name: the rule's name, which the team chooses.
        every_s: the time between checks, in seconds; 0: check at every opportunity.
        keeps_s: how far back the rule examines failures, in seconds.
        runbook: the anchor of the rule's entry in ``docs/operations.md``.
    """

    @property
    def name(self) -> str:
        """The rule's name."""

    @property
    def every_s(self) -> float:
        """The time between checks, in seconds."""

    @property
    def keeps_s(self) -> float:
        """How far back the rule looks at failures, in seconds."""

    @property
    def runbook(self) -> str:
        """The anchor of the rule's entry in ``docs/operations.md``."""

    def holds(self, facts: Facts, now_ms: int) -> str | None:
        """Return a sentence that says why the rule fires. Return None if the rule does not fire."""


@dataclass(frozen=True)
class FailedCheckpoints:
    """Fires if too many checkpoints fail within a window, or if the number of failures grows.

    Attributes:
        name: the rule's name.
        total: the rule fires if more than ``total`` checkpoints failed within ``window_s``. None turns this threshold off.
        growth: the rule fires if the number of failures has grown by more than ``growth`` from the previous period of
            ``growth_window_s`` to the current period. None turns this threshold off.
        every_s: the time between checks, in seconds. An episode can begin and end only at a check.

    Raises:
        ConfigurationError: a value is out of range.
    """

    name: str = "failures"
    total: int | None = None
    growth: int | None = None
    window_s: float = 900.0
    growth_window_s: float = 600.0
    every_s: float = 300.0
    runbook: ClassVar[str] = "checkpoints-fail-again-and-again"

    def __post_init__(self) -> None:
        if self.total is None and self.growth is None:
            raise ConfigurationError(
                f"{self.name}.total: the rule has no threshold. Set {self.name}.total or {self.name}.growth"
            )
        for key in ("total", "growth"):
            _require(self.name, key, getattr(self, key) or 0, least=0)
        _require(self.name, "window", self.window_s, least=1)
        _require(self.name, "growth_window", self.growth_window_s, least=1)
        _require(self.name, "every", self.every_s, least=0)

    @property
    def keeps_s(self) -> float:
        """See :class:`Rule`."""
        return max(self.window_s, 2 * self.growth_window_s)

    def holds(self, facts: Facts, now_ms: int) -> str | None:
        """See :class:`Rule`."""

        def count(from_s: float, until_s: float = 0.0) -> int:
            return sum(now_ms - from_s * 1000 < at <= now_ms - until_s * 1000 for at in facts.failures_ms)

        failed = count(self.window_s)
        if self.total is not None and failed > self.total:
            return (
                f"{counted(failed, 'checkpoint')} failed within {duration(self.window_s)}; at most {self.total} may "
                f"fail. {facts.last_failure}"
            )
        now, before = count(self.growth_window_s), count(2 * self.growth_window_s, self.growth_window_s)
        if self.growth is not None and now - before > self.growth:
            span = duration(self.growth_window_s)
            return (
                f"{counted(now, 'checkpoint')} failed within {span}; in the {span} before that, {before} failed. "
                f"{facts.last_failure}"
            )
        return None


@dataclass(frozen=True)
class ConsecutiveFailures:
    """Fires if several checkpoints fail one after another, and no checkpoint is completed between two failures.

    Attributes:
        name: the rule's name.
        count: the rule fires after this number of failed checkpoints in a row.

    Raises:
        ConfigurationError: a value is out of range.
    """

    name: str = "consecutive"
    count: int = 3
    every_s: ClassVar[float] = 0.0
    keeps_s: ClassVar[float] = 0.0
    runbook: ClassVar[str] = "checkpoints-fail-again-and-again"

    def __post_init__(self) -> None:
        _require(self.name, "count", self.count, least=1)

    def holds(self, facts: Facts, now_ms: int) -> str | None:  # noqa: ARG002 - see Rule
        """See :class:`Rule`."""
        if facts.in_a_row < self.count:
            return None
        return f"{counted(facts.in_a_row, 'checkpoint')} failed in a row. {facts.last_failure}"


@dataclass(frozen=True)
class NoCheckpoint:
    """Fires if no checkpoint is completed for some time, because the query hangs, is dead, or has no new input.

    Attributes:
        name: the rule's name.
        for_s: how long the query may go without a completed checkpoint, in seconds. Choose at most a third of
            ``kafka.transaction.timeout.ms``, because decided transactions may expire if the query is not restarted in
            time. Without new input, Spark does not start a checkpoint. If the source pauses for longer, or the trigger
            interval is longer, set ``is_of_planned``.
        is_of_planned: whether the rule applies only while a planned checkpoint is not done, and counts from the time
            when that checkpoint was planned. With this setting, the source may pause for any length of time, but the
            rule does not notice a driver that died between two checkpoints.

    Raises:
        ConfigurationError: a value is out of range.
    """

    name: str = "stalled"
    for_s: float = 300.0  # a third of the default transaction timeout
    is_of_planned: bool = field(default=False)
    every_s: ClassVar[float] = 0.0
    keeps_s: ClassVar[float] = 0.0
    runbook: ClassVar[str] = "no-checkpoint-is-completed"

    def __post_init__(self) -> None:
        _require(self.name, "for", self.for_s, least=1)

    def holds(self, facts: Facts, now_ms: int) -> str | None:
        """See :class:`Rule`."""
        since_ms = facts.quiet_since_ms
        if self.is_of_planned:
            if facts.planned_ms is None:
                return None
            since_ms = max(since_ms, facts.planned_ms)  # no checkpoint was due before Spark planned this one
        quiet_s = (now_ms - since_ms) / 1000
        if quiet_s <= self.for_s:
            return None
        known = f" {facts.last_failure}" if facts.in_a_row else ""
        return f"No checkpoint has been completed for {duration(quiet_s)}; the limit is {duration(self.for_s)}.{known}"


def duration(seconds: float) -> str:
    """Format a duration in words."""
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes >= 2 else f"{seconds:.0f} s"  # noqa: PLR2004 - two minutes


def _require(rule: str, key: str, value: float, *, least: float) -> None:
    if value < least:
        raise ConfigurationError(f"{rule}.{key}: {value:g} is too small. The value must be at least {least:g}")
