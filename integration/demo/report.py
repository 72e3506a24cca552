"""The results, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from integration.demo.judge import Verdict


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result for one query.

    Attributes:
        verdict: on its output.
        kill_steps: the steps at which it was killed.
        seconds: duration of all its runs.
    """

    verdict: Verdict
    kill_steps: tuple[str, ...]
    seconds: float

    def facts(self, seed: int) -> dict[str, Any]:
        """As a JSON object."""
        return {
            **asdict(self.verdict),
            "kills": len(self.kill_steps),
            "kill_steps": list(self.kill_steps),
            "seconds": round(self.seconds, 1),
            "seed": seed,
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results for both queries.

    Attributes:
        seed: of the kills.
        ours: the query with this toolkit.
        baseline: the query with Spark's built-in Kafka sink; None if it was not run.
    """

    seed: int
    ours: Outcome
    baseline: Outcome | None

    def facts(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**self.ours.facts(self.seed), "baseline": self.baseline and self.baseline.facts(self.seed)}

    def show(self, console: Console) -> None:
        """Print a table and the verdict."""
        outcomes = [outcome for outcome in (self.ours, self.baseline) if outcome is not None]
        table = Table(title=f"twopc demo, seed {self.seed}", title_justify="left")
        table.add_column("")
        table.add_column("twopc", justify="right", style="bold")
        if self.baseline is not None:
            table.add_column("Spark's Kafka sink", justify="right")
        for title, name in (("records in", "rows_in"), ("records out (read_committed)", "rows_out")):
            table.add_row(title, *(f"{getattr(outcome.verdict, name):,}" for outcome in outcomes))
        for title, name in (
            ("lost", "lost"),
            ("duplicated", "duplicated"),
            ("out of order within a key", "out_of_order"),
        ):
            table.add_row(title, *(_count(getattr(outcome.verdict, name)) for outcome in outcomes))
        table.add_row("kills (SIGKILL)", *(f"{len(outcome.kill_steps):,}" for outcome in outcomes))
        table.add_row("seconds, including restarts", *(f"{outcome.seconds:.0f}" for outcome in outcomes))
        console.print(table)
        verdict = self.ours.verdict
        if verdict.is_exactly_once:
            console.print(f"[green]Exactly once:[/] twopc wrote each of {verdict.rows_in:,} records once.")
        else:
            console.print(
                f"[bold red]NOT exactly once:[/] {verdict.lost:,} records lost, {verdict.duplicated:,} duplicated. Please report "
                f"this, with --seed {self.seed}."
            )
        if verdict.unfinished:
            console.print(f"[bold red]{verdict.unfinished:,} offsets are behind transactions that were left open.[/]")


def _count(number: int) -> str:
    return f"[red]{number:,}[/]" if number else "[green]0[/]"
