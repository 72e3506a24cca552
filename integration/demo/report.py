"""What came out, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from integration.demo.judge import Verdict


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A pipeline's outcome.

    Attributes:
        verdict: what its output holds.
        kill_steps: where it was killed.
        seconds: how long all its runs took.
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
    """Both pipelines' outcomes.

    Attributes:
        seed: what the kills were drawn from.
        ours: through this toolkit.
        baseline: through Spark's own Kafka sink, None when it was not wanted.
    """

    seed: int
    ours: Outcome
    baseline: Outcome | None

    def facts(self) -> dict[str, Any]:
        """As one JSON object."""
        return {**self.ours.facts(self.seed), "baseline": self.baseline and self.baseline.facts(self.seed)}

    def show(self, console: Console) -> None:
        """As a table and a sentence."""
        outcomes = [outcome for outcome in (self.ours, self.baseline) if outcome is not None]
        table = Table(title=f"twopc demo, seed {self.seed}", title_justify="left")
        table.add_column("")
        table.add_column("twopc", justify="right", style="bold")
        if self.baseline is not None:
            table.add_column("Spark's own Kafka sink", justify="right")
        for title, name in (("records in", "rows_in"), ("records out (read_committed)", "rows_out")):
            table.add_row(title, *(f"{getattr(outcome.verdict, name):,}" for outcome in outcomes))
        for title, name in (
            ("lost", "lost"),
            ("duplicated", "duplicated"),
            ("out of order in their key", "out_of_order"),
        ):
            table.add_row(title, *(_count(getattr(outcome.verdict, name)) for outcome in outcomes))
        table.add_row("killed (SIGKILL), times", *(f"{len(outcome.kill_steps):,}" for outcome in outcomes))
        table.add_row("seconds, restarts included", *(f"{outcome.seconds:.0f}" for outcome in outcomes))
        console.print(table)
        verdict = self.ours.verdict
        if verdict.is_exactly_once:
            console.print(f"[green]Exactly once:[/] every one of {verdict.rows_in:,} records is there, and once.")
        else:
            console.print(
                f"[bold red]NOT exactly once:[/] {verdict.lost:,} lost, {verdict.duplicated:,} duplicated. Repeat it with "
                f"--seed {self.seed}, and please report it."
            )
        if verdict.unfinished:
            console.print(f"[bold red]{verdict.unfinished:,} offsets are held back by transactions left open.[/]")


def _count(number: int) -> str:
    return f"[red]{number:,}[/]" if number else "[green]0[/]"
