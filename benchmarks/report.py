"""Format results as tables, for a terminal and, in Markdown, for the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.measured import TWOPC, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.measured import Case

console = Console(width=130)
COLUMNS = ("case", "side", "median (min-max)", "twopc : side", "records counted")


def lines(case: Case) -> list[tuple[str, ...]]:
    """Return a line for each side, with the cells for :data:`COLUMNS`."""
    return [
        (
            "" if number else case.name,
            side,
            f"{case.spread(side)} {case.unit}",
            str(case.ratio(TWOPC, side)) if TWOPC in case.samples and side != TWOPC else "",
            f"{case.counted[side]:,}" if side in case.counted else "",
        )
        for number, side in enumerate(case.samples)
    ]


def show(case: Case) -> None:
    """Print a case as soon as it is measured, so that even an interrupted run shows results."""
    for cells in lines(case):
        console.print(f"{case.name}: " + ", ".join(filter(None, cells[1:4])), highlight=False, markup=False)


def comparison(title: str, cases: Iterable[Case]) -> Table:
    """Build a table with all sides of all cases, for a terminal."""
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column)
    for case in cases:
        for cells in lines(case):
            table.add_row(*cells)
    return table


def facts_table(cases: Sequence[Case]) -> Table | None:
    """Build a table of the further measurements, for a terminal. Return None if the cases have none."""
    rows = fact_rows(cases)
    if not rows:
        return None
    table = Table(title="other figures", title_justify="left")
    for column in ("what", "side", *(case.name for case in cases)):
        table.add_column(column)
    for cells in rows:
        table.add_row(*cells)
    return table


def fact_rows(cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """Return rows with the measurement, the side, and a cell for each case."""
    keys = dict.fromkeys((fact, side) for case in cases for fact, sides in case.facts.items() for side in sides)
    return [
        (
            fact,
            side,
            *(short(found) if (found := case.facts.get(fact, {}).get(side)) is not None else "" for case in cases),
        )
        for fact, side in keys
    ]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    head = [f"| {' | '.join(columns)} |", f"|{'|'.join('---' for _ in columns)}|"]
    return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in rows)])
