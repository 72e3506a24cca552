"""Describe the findings of a check. A finding has a kind, which sets the severity, and a text, which describes the case."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self


class Severity(Enum):
    """The severity of a finding."""

    ERROR = "error"  #: exactly-once is violated, or its proof is damaged
    WARNING = "warning"  #: something is not proven, or not finished
    INFO = "info"  #: no action is needed


class Kind(Enum):
    """The kinds of findings. A kind's value is its name in JSON."""

    _value_: str
    severity: Severity

    def __new__(cls, name: str, severity: Severity) -> Self:
        """Use the name, without the severity, as the kind's value."""
        kind = object.__new__(cls)
        kind._value_, kind.severity = name, severity
        return kind

    LEDGER_DAMAGED = "ledger_damaged", Severity.ERROR  #: decisions are missing, torn or altered
    QUERY_DIFFERS = "query_differs", Severity.ERROR  #: the checkpoint belongs to another query
    BINDING_DIFFERS = "binding_differs", Severity.ERROR  #: the checkpoint is bound to another decision log
    OFFSETS_DIFFER = (
        "offsets_differ",
        Severity.ERROR,
    )  #: the source offsets in the checkpoint differ from the offsets in the decision (rule 10)
    OFFSETS_RAN_BACK = "offsets_ran_back", Severity.ERROR  #: a batch ends at lower offsets than the previous batch
    RANGE_DIFFERS = (
        "range_differs",
        Severity.ERROR,
    )  #: with --one-to-one, a batch's number of rows differs from its number of source offsets
    COMMITTED_UNDECIDED = "committed_undecided", Severity.ERROR  #: Spark finished a batch that the sink never decided
    DECIDED_LOST = "decided_lost", Severity.ERROR  #: a decided transaction is not visible and no longer open
    DECIDED_LATE = "decided_late", Severity.ERROR  #: a decided transaction is open although later batches were decided
    UNDECIDED_VISIBLE = "undecided_visible", Severity.ERROR  #: a visible transaction has no decision
    ROWS_DIFFER = "rows_differ", Severity.ERROR  #: marker and decision disagree on the number of rows
    RECORDS_MISSING = "records_missing", Severity.ERROR  #: the output contains fewer records than committed rows
    DUPLICATES = "duplicates", Severity.ERROR  #: a record has the same identity as an earlier record
    SEQUENCE_GAPS = "sequence_gaps", Severity.ERROR  #: numbers are missing from a sequence
    RECORDS_UNDECIDED = (
        "records_undecided",
        Severity.ERROR,
    )  #: with --sole-writer, the output contains more records than decided rows
    ABANDONED = "abandoned", Severity.WARNING  #: a transaction is not visible, and its batch has been abandoned
    DECIDED_OPEN = "decided_open", Severity.WARNING  #: the last batch is not committed yet; a restart commits it
    DECIDED_UNKNOWN = (
        "decided_unknown",
        Severity.WARNING,
    )  #: reading proves neither the transaction's commit nor its loss
    ORPHAN_OPEN = (
        "orphan_open",
        Severity.WARNING,
    )  #: undecided; an earlier driver began it, and the next driver aborts it
    LISTING_INCOMPLETE = (
        "listing_incomplete",
        Severity.WARNING,
    )  #: a broker did not list its open transactions, or no coordinator described one of them
    HELD_BACK = "held_back", Severity.WARNING  #: open transactions hide later records from read_committed consumers
    RECORDS_EXTRA = (
        "records_extra",
        Severity.WARNING,
    )  #: the output contains more records than decided rows; another writer may have written them
    UNIDENTIFIED = "unidentified", Severity.WARNING  #: an expression finds nothing in these records
    COMMIT_MISSING = (
        "commit_missing",
        Severity.WARNING,
    )  #: Spark's commits/N is missing even though batch N + 1 was decided
    OFFSETS_MISSING = "offsets_missing", Severity.WARNING  #: Spark's offsets/N is missing for a decided batch
    RUNNING_OPEN = "running_open", Severity.INFO  #: undecided; the current driver began it and is writing its batch
    NOT_COMPARED = "not_compared", Severity.INFO  #: a comparison would prove nothing; the finding says why
    REPAIRED = "repaired", Severity.INFO  #: batches whose lost transactions were written again (rule 9)


class Finding(NamedTuple):
    """One result of a check."""

    kind: Kind  #: what was found
    where: str  #: the batch, transaction or topic
    text: str  #: one sentence that describes the case and says what to do, if anything

    @property
    def is_error(self) -> bool:
        """Whether the exactly-once guarantee is violated, or its proof is damaged."""
        return self.kind.severity is Severity.ERROR

    def facts(self) -> dict[str, str]:
        """Return the finding as a JSON object."""
        kind = self.kind
        return {"kind": kind.value, "severity": kind.severity.value, "where": self.where, "text": self.text}
