"""What was compared and found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.table import Table

from integration.verify.findings import Kind, Severity

if TYPE_CHECKING:
    from rich.console import Console

    from integration.verify.findings import Finding

_NOT_COMPARED: Final = frozenset({Kind.NOT_COMPARED, Kind.UNIDENTIFIED})
_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """One look at a sink. Its attributes, ``ok``, ``all_compared`` and ``verdict`` are the keys of the JSON object.

    Attributes:
        sink: its name.
        ledger: the topic that decides.
        query_id: the id of the query that the ledger is open for; None where it has none.
        driver_epoch: of the driver that took over last; None where its record was truncated away.
        acquisitions: that the ledger keeps.
        first_batch: the oldest kept decision's; None without any.
        last_batch: the newest's.
        complete: whether the ledger keeps every decision since its topic was made.
        batches: kept decisions, each batch once.
        rewritten: batches that were decided anew because all of them was lost.
        repaired: batches of which single transactions were replaced.
        transactions: decided, of the kept decisions.
        visible: of these, proven visible by their marker.
        open: open transactions with the sink's ids.
        rows: in the decided transactions.
        topics: that were read.
        records: that readers see there; None where nothing was read.
        seconds: how long the look took, in s.
        findings: what was found; see :class:`integration.verify.findings.Finding`.
    """

    sink: str
    ledger: str
    query_id: str | None
    driver_epoch: int | None
    acquisitions: int
    first_batch: int | None
    last_batch: int | None
    complete: bool
    batches: int
    rewritten: int
    repaired: int
    transactions: int
    visible: int
    open: int
    rows: int
    topics: tuple[str, ...]
    records: int | None
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        """Whether nothing is wrong: no error among the findings."""
        return all(finding.kind.severity is not Severity.ERROR for finding in self.findings)

    @property
    def not_compared(self) -> tuple[Finding, ...]:
        """What proves nothing, neither good nor bad."""
        return tuple(finding for finding in self.findings if finding.kind in _NOT_COMPARED)

    @property
    def verdict(self) -> str:
        """What all of it comes to, in a sentence or two."""
        if not self.is_ok:
            return "Something is wrong. Keep ledger, output and checkpoint as they are until it is understood."
        if not self.not_compared:
            return "Nothing is wrong."
        named = "; ".join(f"{finding.where}: {finding.text}" for finding in self.not_compared)
        return f"Nothing is wrong in what was compared. Not compared was {named}."

    def facts(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "ok": self.is_ok,
            "all_compared": not self.not_compared,
            "verdict": self.verdict,
            **asdict(self),
            "topics": list(self.topics),
            "seconds": round(self.seconds, 1),
            "findings": [finding.facts() for finding in self.findings],
        }

    def show(self, console: Console) -> None:
        """As a table and a sentence for each finding."""
        table = Table(title=f"twopc verify {self.sink}", title_justify="left", show_header=False)
        table.add_column("")
        table.add_column("", style="bold", overflow="fold")
        kept = "none" if self.first_batch is None else f"{self.first_batch} to {self.last_batch}"
        for title, value in (
            ("ledger", self.ledger),
            ("query (lineage)", self.query_id or "none"),
            ("drivers that took over", f"{self.acquisitions:,}"),
            ("decided batches", kept if self.complete else f"{kept} (older ones are truncated)"),
            ("rewritten, repaired", f"{self.rewritten:,}, {self.repaired:,}"),
            ("transactions decided", f"{self.transactions:,}"),
            ("of these visible", f"{self.visible:,}"),
            ("transactions open", f"{self.open:,}"),
            ("rows decided", f"{self.rows:,}"),
            (f"records in {', '.join(self.topics)}", "not read" if self.records is None else f"{self.records:,}"),
            ("seconds", f"{self.seconds:.1f}"),
        ):
            table.add_row(escape(title), escape(value))
        console.print(table)
        for finding in self.findings:
            show_finding(finding, console)
        style = "bold red" if not self.is_ok else "yellow" if self.not_compared else "green"
        console.print(f"[{style}]{escape(self.verdict)}[/]", soft_wrap=True)


def show_finding(finding: Finding, console: Console) -> None:
    """One line."""
    severity = finding.kind.severity
    console.print(
        f"[{_STYLES[severity]}]{severity.value}[/] {escape(finding.where)}: {escape(finding.text)} ({finding.kind.value})",
        soft_wrap=True,
    )
