"""What a check can find. The kind sets the severity; the text describes the case."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"  #: exactly-once is violated, or its proof is damaged
    WARNING = "warning"  #: not proven, or not finished
    INFO = "info"  #: nothing to do


class Kind(Enum):
    """Every kind of finding, by its name in JSON."""

    LEDGER_DAMAGED = "ledger_damaged"  #: decisions are missing, torn or altered
    QUERY_DIFFERS = "query_differs"  #: the checkpoint belongs to another query
    BINDING_DIFFERS = "binding_differs"  #: the checkpoint is bound to another decision log
    OFFSETS_DIFFER = "offsets_differ"  #: the checkpoint has other source offsets than the decision (rule 10)
    OFFSETS_RAN_BACK = "offsets_ran_back"  #: a batch ends before the previous one
    RANGE_DIFFERS = "range_differs"  #: with --one-to-one, a batch has more or fewer rows than source offsets
    COMMITTED_UNDECIDED = "committed_undecided"  #: Spark finished a batch that the sink never decided
    DECIDED_LOST = "decided_lost"  #: a decided transaction is not visible and no longer open
    DECIDED_LATE = "decided_late"  #: a decided transaction is open although later batches were decided
    UNDECIDED_VISIBLE = "undecided_visible"  #: a visible transaction has no decision
    ROWS_DIFFER = "rows_differ"  #: marker and decision disagree on the number of rows
    RECORDS_MISSING = "records_missing"  #: the output has fewer records than rows were committed
    DUPLICATES = "duplicates"  #: a record repeats an earlier one's identity
    SEQUENCE_GAPS = "sequence_gaps"  #: numbers are missing in a sequence
    RECORDS_UNDECIDED = "records_undecided"  #: with --sole-writer, more records than decided rows
    DECIDED_OPEN = "decided_open"  #: of the last batch, not committed yet: a restart commits it
    DECIDED_UNKNOWN = "decided_unknown"  #: reading can prove neither its commit nor its loss
    ORPHAN_OPEN = "orphan_open"  #: an earlier driver's, undecided: the next driver aborts it
    LISTING_INCOMPLETE = "listing_incomplete"  #: a broker did not list its open transactions
    HELD_BACK = "held_back"  #: open transactions keep offsets from readers
    RECORDS_EXTRA = "records_extra"  #: more records than decided rows: another writer's, or duplicates
    UNIDENTIFIED = "unidentified"  #: an expression finds nothing in these records
    COMMIT_MISSING = "commit_missing"  #: Spark's commits/N is missing although batch N + 1 was decided
    OFFSETS_MISSING = "offsets_missing"  #: Spark's offsets/N is missing for a decided batch
    RUNNING_OPEN = "running_open"  #: the current driver's, undecided: its batch is being written
    NOT_COMPARED = "not_compared"  #: a comparison that would prove nothing here, and why
    REPAIRED = "repaired"  #: batches whose lost transactions were written again (rule 9)

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        if self in _WARNINGS:
            return Severity.WARNING
        return Severity.INFO if self in _INFOS else Severity.ERROR


_WARNINGS: Final = frozenset(
    {
        Kind.DECIDED_OPEN,
        Kind.DECIDED_UNKNOWN,
        Kind.ORPHAN_OPEN,
        Kind.LISTING_INCOMPLETE,
        Kind.HELD_BACK,
        Kind.RECORDS_EXTRA,
        Kind.UNIDENTIFIED,
        Kind.COMMIT_MISSING,
        Kind.OFFSETS_MISSING,
    }
)
_INFOS: Final = frozenset({Kind.RUNNING_OPEN, Kind.NOT_COMPARED, Kind.REPAIRED})


class Finding(NamedTuple):
    """One result of a check.

    Attributes:
        kind: what was found.
        where: the batch, transaction or topic.
        text: one sentence: what it is and what to do, if anything.
    """

    kind: Kind
    where: str
    text: str

    def facts(self) -> dict[str, str]:
        """As a JSON object."""
        return {
            "kind": self.kind.value,
            "severity": self.kind.severity.value,
            "where": self.where,
            "text": self.text,
        }
