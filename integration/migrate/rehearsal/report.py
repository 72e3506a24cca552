"""Print a rehearsal's result for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from twopc.integration.migrate.rehearsal.ways import NOT_RUN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from twopc.integration.migrate.rehearsal.steps import Step
    from twopc.integration.migrate.rehearsal.ways import Scale


def is_passed(ways: Mapping[str, Sequence[Step]]) -> bool:
    """Whether every check of every step passed."""
    return not any(step.problem for steps in ways.values() for step in steps)


def facts(scale: Scale, ways: Mapping[str, Sequence[Step]], seconds: float) -> dict[str, Any]:
    """Build the result as a JSON object."""
    return {
        "passed": is_passed(ways),
        **asdict(scale),
        "seconds": round(seconds, 1),
        "ways": {name: [asdict(step) for step in steps] for name, steps in ways.items()},
        "not_run": NOT_RUN,
    }


def show(console: Console, scale: Scale, ways: Mapping[str, Sequence[Step]], seconds: float) -> None:
    """Print one table for each way to migrate, the cases that were not run, and the verdict."""
    for name, steps in ways.items():
        table = Table(title=f"twopc migrate rehearse: {name}, seed {scale.seed}", title_justify="left")
        for column in ("step", "what was done"):
            table.add_column(column)
        for column in ("records", "lost", "duplicated"):
            table.add_column(column, justify="right")
        for step in steps:
            style = "bold red" if step.problem else None
            done = f"{step.done}\n{step.problem}" if step.problem else step.done
            counts = ("" if count is None else f"{count:,}" for count in (step.records, step.lost, step.doubled))
            table.add_row(step.name, done, *counts, style=style)
        console.print(table)
    console.print("Not run by this rehearsal:")
    for what, why in NOT_RUN.items():
        console.print(f"- {what}: {why}.", markup=False)
    verdict = (
        "[green]Passed:[/] no record was lost or duplicated, either after the cut-over or after the rollback."
        if is_passed(ways)
        else f"[bold red]FAILED.[/] Run the rehearsal again with --seed {scale.seed}, and please report the failure."
    )
    console.print(f"{verdict} {seconds:.0f} s")
