"""Report the result of a check to people and to programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.table import Table

from twopc.integration.verify.findings import Kind, Severity

if TYPE_CHECKING:
    from rich.console import Console

    from twopc.integration.verify.findings import Finding

_NOT_COMPARED: Final = frozenset({Kind.NOT_COMPARED, Kind.UNIDENTIFIED})
_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of one check of a sink.

    The JSON object has a key for each attribute, plus ``ok``, ``all_compared`` and ``verdict``.
    """

    sink: str  #: the sink name
    ledger: str  #: the topic with the decisions
    query_id: str | None = None  #: the query for which the decision log is open; None if the log is open for no query
    driver_epoch: int | None = (
        None  #: the epoch of the last driver that acquired the sink; None if its record was truncated
    )
    acquisitions: int = 0  #: the number of acquisitions that the sink's own ledger keeps
    first_batch: int | None = None  #: the oldest batch with a retained decision; None if no decision is retained
    last_batch: int | None = None  #: the newest batch with a retained decision
    #: where this batch ends, one entry for each source; the entry of a named source begins with ``name:``
    last_offsets: tuple[str, ...] = ()
    complete: bool = False  #: whether the log keeps every decision since its topic was created
    batches: int = 0  #: the number of batches with a retained decision
    rewritten: int = 0  #: the number of batches that were lost completely and decided again
    repaired: int = 0  #: the number of batches in which single transactions were replaced
    transactions: int = 0  #: the number of transactions in the retained decisions
    visible: int = 0  #: the number of these transactions that are proven visible by their markers
    open: int = 0  #: the number of open transactions with the sink's transactional ids
    rows: int = 0  #: the number of rows in the decided transactions, without abandoned rows that are proven lost
    topics: tuple[str, ...] = ()  #: the output topics that were read
    records: int | None = None  #: the number of records that readers see in these topics; None if no topic was read
    seconds: float  #: the duration of the check, in seconds
    findings: tuple[Finding, ...]  #: see :class:`twopc.integration.verify.findings.Finding`

    @property
    def is_ok(self) -> bool:
        """Whether the check found no error."""
        return not any(finding.is_error for finding in self.findings)

    @property
    def not_compared(self) -> tuple[Finding, ...]:
        """The comparisons that could not be made."""
        return tuple(finding for finding in self.findings if finding.kind in _NOT_COMPARED)

    @property
    def verdict(self) -> str:
        """The result, in one or two sentences."""
        if not self.is_ok:
            return "Errors found. Keep the ledger, the output and the checkpoint unchanged until you know the cause."
        if not self.not_compared:
            return "No errors found."
        named = "; ".join(f"{finding.where}: {finding.text}" for finding in self.not_compared)
        return f"The comparisons found no errors. Not compared: {named}."

    def facts(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "ok": self.is_ok,
            "all_compared": not self.not_compared,
            "verdict": self.verdict,
            **asdict(self),
            "last_offsets": list(self.last_offsets),
            "topics": list(self.topics),
            "seconds": round(self.seconds, 1),
            "findings": [finding.facts() for finding in self.findings],
        }

    def show(self, console: Console) -> None:
        """Print a table, then one line per finding, and then the verdict."""
        table = Table(title=f"twopc verify {self.sink}", title_justify="left", show_header=False)
        table.add_column("")
        table.add_column("", style="bold", overflow="fold")
        kept = "none" if self.first_batch is None else f"{self.first_batch} to {self.last_batch}"
        for title, value in (
            ("ledger", self.ledger),
            ("query id", self.query_id or "none"),
            ("driver starts", f"{self.acquisitions:,}"),
            ("decided batches", kept if self.complete else f"{kept} (older ones truncated)"),
            ("rewritten, repaired batches", f"{self.rewritten:,}, {self.repaired:,}"),
            ("decided transactions", f"{self.transactions:,}"),
            ("visible of these", f"{self.visible:,}"),
            ("open transactions", f"{self.open:,}"),
            ("decided rows", f"{self.rows:,}"),
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
    """Print a finding on one line."""
    severity = finding.kind.severity
    console.print(
        f"[{_STYLES[severity]}]{severity.value}[/] {escape(finding.where)}: {escape(finding.text)} ({finding.kind.value})",
        soft_wrap=True,
    )
