"""Print the demo's results for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from twopc.testing.kill_loop import Outcome

    Facts = dict[str, Any]


def facts(outcome: Outcome, unfinished: int) -> Facts:
    """Return the result for one output as a JSON object.

    Args:
        outcome: the outcome from the kill loop or from its judge.
        unfinished: the number of offsets that readers cannot reach because transactions are open.
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


def sums(outputs: Mapping[str, Facts]) -> Facts:
    """Add up the results for all outputs of one query.

    Args:
        outputs: the facts about each output, by title.
    """
    first = next(iter(outputs.values()))
    if len(outputs) == 1:
        return first
    added = {
        name: sum(found[name] for found in outputs.values())
        for name in ("lost", "duplicated", "out_of_order", "unfinished")
    }
    each = {title: {name: found[name] for name in ("rows_out", *added)} for title, found in outputs.items()}
    return {**first, "rows_out": sum(found["rows_out"] for found in outputs.values()), **added, "outputs": each}


def is_exactly_once(result: Facts) -> bool:
    """Whether the output contains every record exactly once."""
    return not (result["lost"] or result["duplicated"])


def show(console: Console, ours: Facts, baseline: Facts | None) -> None:
    """Print a table and the verdict.

    Args:
        console: where to print.
        ours: the facts about the query with this toolkit.
        baseline: the facts about the query with Spark's own writers; None if that query was not run.
    """
    results = [result for result in (ours, baseline) if result is not None]
    table = Table(title=f"twopc demo, seed {ours['seed']}", title_justify="left")
    table.add_column("")
    table.add_column("twopc", justify="right", style="bold")
    if baseline is not None:
        title = "as shown in guides" if "outputs" in ours else "Spark's Kafka sink"
        table.add_column(title, justify="right")
    table.add_row("records in", *(f"{result['rows_in']:,}" for result in results))
    for row in _rows(results):
        table.add_row(*row)
    table.add_row("kills (SIGKILL)", *(f"{result['kills']:,}" for result in results))
    table.add_row("seconds, including restarts", *(f"{result['seconds']:.0f}" for result in results))
    console.print(table)
    if is_exactly_once(ours):
        where = f" to each of {', '.join(ours['outputs'])}" if "outputs" in ours else ""
        console.print(f"[green]Exactly once:[/] twopc wrote each of {ours['rows_in']:,} records once{where}.")
    else:
        console.print(
            f"[bold red]NOT exactly once:[/] {ours['lost']:,} lost, {ours['duplicated']:,} "
            f"duplicated. Please report this, with --seed {ours['seed']}."
        )
    if ours["unfinished"]:
        console.print(f"[bold red]Offsets behind transactions that were left open: {ours['unfinished']:,}.[/]")


def _rows(results: list[Facts]) -> Iterator[tuple[str, ...]]:
    counts = [("lost", "lost"), ("duplicated", "duplicated")]
    if "outputs" not in results[0]:
        yield "records out (read_committed)", *(f"{result['rows_out']:,}" for result in results)
        for title, name in (*counts, ("out of order within a key", "out_of_order")):
            yield title, *(_count(result[name]) for result in results)
        return
    for output in results[0]["outputs"]:
        found = [result["outputs"][output] for result in results]
        yield f"{output}: records out", *(f"{one['rows_out']:,}" for one in found)
        for title, name in counts:
            yield f"{output}: {title}", *(_count(one[name]) for one in found)


def _count(number: int) -> str:
    return f"[red]{number:,}[/]" if number else "[green]0[/]"
