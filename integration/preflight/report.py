"""Report a preflight's result to people and to programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.table import Table

from twopc.integration.preflight.findings import Result

if TYPE_CHECKING:
    from rich.console import Console

    from twopc.integration.preflight.findings import Finding

_STYLES: Final = {Result.PASS: "green", Result.WARN: "yellow", Result.FAIL: "bold red"}
_SEVERITY: Final = tuple(Result)
_VERDICTS: Final = {
    Result.PASS: "The cluster meets the sink's requirements.",
    Result.WARN: "The query can run. The warnings say what weakens the exactly-once guarantee, and which checks were skipped.",
    Result.FAIL: "Do not start the query until the failed checks pass.",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """A preflight's report. The JSON object has a key for each attribute, plus ``result``, ``verdict`` and ``counts``."""

    sink: str  #: the sink name
    bootstrap_servers: str
    cluster: str  #: the cluster's id
    stand_in: str  #: the topic of the trial, which was deleted afterward
    topics: tuple[str, ...]  #: the output topics that were checked
    seconds: float  #: the duration of the preflight, in seconds
    findings: tuple[Finding, ...]  #: see :class:`twopc.integration.preflight.findings.Finding`

    @property
    def result(self) -> Result:
        """The worst finding's result."""
        return max((finding.result for finding in self.findings), key=_SEVERITY.index, default=Result.PASS)

    def facts(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        counts = Counter(finding.result for finding in self.findings)
        return {
            "result": self.result.value,
            "verdict": _VERDICTS[self.result],
            "counts": {result.value: counts[result] for result in Result},
            **asdict(self),
            "topics": list(self.topics),
            "seconds": round(self.seconds, 1),
            "findings": [{**asdict(finding), "result": finding.result.value} for finding in self.findings],
        }

    def show(self, console: Console) -> None:
        """Print a table with one line for each finding, and then the verdict."""
        table = Table(title=f"twopc preflight {escape(self.sink)}", title_justify="left")
        table.add_column("result")
        table.add_column("check", max_width=30, overflow="fold")
        table.add_column("why, and how to fix it", overflow="fold")
        for finding in self.findings:
            style = _STYLES[finding.result]
            fix = f"\n[bold]{escape(finding.fix)}[/]" if finding.fix else ""
            table.add_row(
                f"[{style}]{finding.result.value}[/]",
                f"{escape(finding.check)}\n[dim]{escape(finding.subject)}[/]",
                f"{escape(finding.why)}{fix}",
            )
        console.print(table)
        console.print(f"[{_STYLES[self.result]}]{_VERDICTS[self.result]}[/]", soft_wrap=True)
