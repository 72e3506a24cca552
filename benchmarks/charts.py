"""Choose the charts for a group's results, draw them, and describe each in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.chart import Series, curves, drawable
from benchmarks.measured import TIMES, Spread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.measured import Case, Results


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        name: the name of the chart's file, without the suffix.
        title: what the chart shows, without the unit.
        measure: the label of the y axis.
        series: the curves, one for each side.
    """

    name: str
    title: str
    measure: str
    series: Sequence[Series]


def charts_of(results: Results) -> list[Chart]:
    """Return a chart of the samples by ``x``, and a chart of each fact, sorted by name. Return [] if the cases form no curve."""
    cases = [case for case in results.cases if case.x is not None]
    if not results.x_label or len(cases) < 2:  # noqa: PLR2004 - one point does not make a curve
        return []
    facts = {
        f"{results.group}-{_slug(fact)}": Chart(
            f"{results.group}-{_slug(fact)}", _without_unit(fact), fact, _facts(cases, fact)
        )
        for fact in dict.fromkeys(fact for case in cases for fact in case.facts)
    }
    samples = Chart(results.group, results.title, cases[0].unit, _samples(cases))
    return [samples, *(facts[name] for name in sorted(facts))]


def draw(results: Results, directory: Path) -> list[Path]:
    """Write each chart that has a value to show, and return the files."""
    files = []
    for chart in charts_of(results):
        title = f"{chart.title[0].upper()}{chart.title[1:]} by {results.x_label}"
        if text := curves(title, results.x_label, chart.measure, chart.series):
            files.append(directory / f"{chart.name}.svg")
            files[-1].write_text(text)
    return files


def described(results: Results, chart: Chart) -> str:
    """Describe a chart for people who cannot see it."""
    unit = chart.measure if chart.measure in TIMES else chart.measure.removeprefix(chart.title).removeprefix(", ")
    what = re.sub(r"^Time\b", "the time", chart.title) + (f" ({unit})" if unit else "")
    *others, last = [one.name.replace(", ", " in ") for one in drawable(chart.series)]
    sides = f"{', '.join(others)} and {last}" if others else last
    return f"The chart shows {what} against the {results.x_label} for {sides}."


def _without_unit(fact: str) -> str:
    return re.sub(r", \w+$", "", fact)


def _slug(fact: str) -> str:
    return re.sub(r"\W+", "-", fact.lower()).strip("-")


def _samples(cases: Sequence[Case]) -> list[Series]:
    sides = dict.fromkeys(side for case in cases for side in case.samples)
    return [
        Series(side, [(case.x or 0, case.spread(side)) for case in cases if side in case.samples]) for side in sides
    ]


def _facts(cases: Sequence[Case], fact: str) -> list[Series]:
    sides = dict.fromkeys(side for case in cases for side in case.facts.get(fact, {}))
    return [
        Series(
            side,
            [(case.x or 0, Spread.of([case.facts[fact][side]])) for case in cases if side in case.facts.get(fact, {})],
        )
        for side in sides
    ]
