"""The results of the demo, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from twopc.testing.kill_loop import Outcome


def facts(outcome: Outcome, unfinished: int) -> dict[str, Any]:
    """Return the result for one query as a JSON object.

    Args:
        outcome: the outcome of the kill loop.
        unfinished: the number of offsets that open transactions keep from readers.
    """
    return {
        "rows_in": outcome.given,
        "rows_out": outcome.found,
        "lost": len(outcome.lost),
        "duplicated": sum(times - 1 for times in outcome.duplicated.values()),
        "out_of_order": len(outcome.out_of_order),
        "unfinished": unfinished,
        "kills": len(outcome.kills),
        "kill_steps": list(outcome.kills),
        "seconds": round(outcome.seconds, 1),
        "seed": outcome.seed,
    }


def is_exactly_once(result: dict[str, Any]) -> bool:
    """Whether every record is there once."""
    return not (result["lost"] or result["duplicated"])


def show(console: Console, ours: dict[str, Any], baseline: dict[str, Any] | None) -> None:
    """Print a table and the verdict.

    Args:
        console: where to print.
        ours: the facts of the query with this toolkit.
        baseline: the facts of the query with Spark's built-in Kafka sink; None if it was not run.
    """
    results = [result for result in (ours, baseline) if result is not None]
    table = Table(title=f"twopc demo, seed {ours['seed']}", title_justify="left")
    table.add_column("")
    table.add_column("twopc", justify="right", style="bold")
    if baseline is not None:
        table.add_column("Spark's Kafka sink", justify="right")
    for title, name in (("records in", "rows_in"), ("records out (read_committed)", "rows_out")):
        table.add_row(title, *(f"{result[name]:,}" for result in results))
    for title, name in (
        ("lost", "lost"),
        ("duplicated", "duplicated"),
        ("out of order within a key", "out_of_order"),
    ):
        table.add_row(title, *(_count(result[name]) for result in results))
    table.add_row("kills (SIGKILL)", *(f"{result['kills']:,}" for result in results))
    table.add_row("seconds, including restarts", *(f"{result['seconds']:.0f}" for result in results))
    console.print(table)
    if is_exactly_once(ours):
        console.print(f"[green]Exactly once:[/] twopc wrote each of {ours['rows_in']:,} records once.")
    else:
        console.print(
            f"[bold red]NOT exactly once:[/] {ours['lost']:,} records lost, {ours['duplicated']:,} duplicated. Please report "
            f"this, with --seed {ours['seed']}."
        )
    if ours["unfinished"]:
        console.print(f"[bold red]{ours['unfinished']:,} offsets are behind transactions that were left open.[/]")


def _count(number: int) -> str:
    return f"[red]{number:,}[/]" if number else "[green]0[/]"
