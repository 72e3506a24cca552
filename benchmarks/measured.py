"""Keep measurements in a file. A case has one sample per round and side; medians and spreads are computed from them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TWOPC: Final = "twopc"
TWO_PHASES: Final = "twopc, two phases"
COLLECTS: Final = "a function that collects the rows (toArrow)"
TRIGGER_TIME: Final = "trigger time, ms"
#: The units in which less is better. In all other units, more is better.
TIMES: Final = ("ms", "s")


@dataclass(frozen=True)
class Spread:
    """The median of some values, with the smallest and the largest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Compute the spread of one or more values."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def __str__(self) -> str:
        if self.low == self.high:
            return short(self.median)
        return f"{short(self.median)} ({short(self.low)}-{short(self.high)})"


def short(value: float) -> str:
    """Format a value with three digits, or with all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case of a group.

    Attributes:
        name: the case's name within its group, such as "2,000 rows per batch".
        unit: the unit of the samples.
        samples: by side, one value for each round. The n-th values of all sides come from the same round.
        counted: by side, how many records the independent reader found, over all rounds. If the number differs from the number
            of written records, the run fails. A side without its own output is absent.
        x: the case's position on the group's curve.
        facts: further measurements, such as memory, connections and bytes, by name and by side.
    """

    name: str
    unit: str
    samples: dict[str, list[float]]
    counted: dict[str, int] = {}
    x: float | None = None
    facts: dict[str, dict[str, float]] = {}

    def spread(self, side: str) -> Spread:
        """Compute a side's spread over the rounds."""
        return Spread.of(self.samples[side])

    def ratio(self, side: str, to: str) -> Spread:
        """Compute the spread of the ratio of ``side`` to ``to`` over the rounds."""
        return Spread.of(a / b for a, b in zip(self.samples[side], self.samples[to], strict=True))


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A case that could not be measured, with the reason."""

    name: str
    reason: str


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One group's results.

    Attributes:
        group: the group's name.
        title: what the group measures. If the cases form a curve, the title is a noun phrase for the y axis.
        heading: the machine, versions, date, load and settings.
        rounds: how often each side ran.
        x_label: what ``x`` counts, if the cases form a curve.
        cases: the cases, in the order in which they were measured.
        missing: the cases that could not be measured.
    """

    group: str
    title: str
    heading: dict[str, Any]
    rounds: int
    cases: list[Case]
    x_label: str = ""
    missing: list[Missing] = []

    def case(self, name: str) -> Case | None:
        """Return the case with that name; None if it was not measured."""
        return next((case for case in self.cases if case.name == name), None)

    def write(self, directory: Path) -> Path:
        """Write the results as JSON, and return the file."""
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{self.group}.json"
        file.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        return file


def read_results(directory: Path, group: str) -> Results | None:
    """Read a group's kept results; return None if it has none."""
    file = directory / f"{group}.json"
    return msgspec.json.decode(file.read_bytes(), type=Results) if file.exists() else None


class MissingError(Exception):
    """A side or a case cannot be set up here. The message says why. The benchmark then reports no figure for it."""
