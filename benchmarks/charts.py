"""The charts of a group's results: which there are, what each shows, and their files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.chart import Series, curves
from benchmarks.measured import TIMES, Spread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.measured import Case, Results


@dataclass(frozen=True)
class Chart:
    """One chart: the stem of its file's name, what it measures, and a curve for each side."""

    name: str
    measure: str
    series: Sequence[Series]


def charts_of(results: Results) -> list[Chart]:
    """A chart of the samples by ``x``, and one for each fact, sorted by name; empty if the cases form no curve."""
    cases = [case for case in results.cases if case.x is not None]
    if not results.x_label or len(cases) < 2:  # noqa: PLR2004 - one point is no curve
        return []
    facts = {
        f"{results.group}-{_slug(fact)}": Chart(f"{results.group}-{_slug(fact)}", fact, _facts(cases, fact))
        for fact in dict.fromkeys(fact for case in cases for fact in case.facts)
    }
    return [Chart(results.group, cases[0].unit, _samples(cases)), *(facts[name] for name in sorted(facts))]


def draw(results: Results, directory: Path) -> list[Path]:
    """Write the charts that have a value to show; returns the files."""
    files = []
    for chart in charts_of(results):
        if text := curves(results.title, results.x_label, chart.measure, chart.series):
            files.append(directory / f"{chart.name}.svg")
            files[-1].write_text(text)
    return files


def described(results: Results, chart: Chart) -> str:
    """What a chart shows, for those who cannot see it."""
    what = f"the time ({chart.measure})" if chart.measure in TIMES else re.sub(r", (\w+)$", r" (\1)", chart.measure)
    sides = "; ".join(one.name for one in chart.series)
    return f"{results.title}. The chart shows {what} by {results.x_label} for {sides}."


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
