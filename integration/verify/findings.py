"""What a check can find. The kind says how bad it is; the text says it of this case."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Severity(Enum):
    """What a finding asks of its reader."""

    ERROR = "error"  #: exactly-once is broken, or what would prove it is
    WARNING = "warning"  #: not proven, or not finished
    INFO = "info"  #: good to know; nothing to do


class Kind(Enum):
    """Every kind of finding, by its name in JSON."""

    LEDGER_DAMAGED = "ledger_damaged"  #: decisions are missing, torn or altered
    LINEAGE_DIFFERS = "query_differs"  #: the checkpoint is another query's
    BINDING_DIFFERS = "binding_differs"  #: the checkpoint is bound to another ledger
    OFFSETS_DIFFER = "offsets_differ"  #: the checkpoint plans other source offsets than were decided (rule 10)
    OFFSETS_RAN_BACK = "offsets_ran_back"  #: a batch ends before the one before it
    RANGE_DIFFERS = "range_differs"  #: with --one-to-one, a batch's rows are not its source offsets
    COMMITTED_UNDECIDED = "committed_undecided"  #: the engine finished a batch that the sink never decided
    DECIDED_LOST = "decided_lost"  #: a decided transaction is not in its output
    DECIDED_LATE = "decided_late"  #: a transaction is open although later batches were decided
    UNDECIDED_VISIBLE = "undecided_visible"  #: a transaction is visible that no decision names
    ROWS_DIFFER = "rows_differ"  #: marker and decision count other rows
    RECORDS_MISSING = "records_missing"  #: the output has fewer records than were committed
    DUPLICATES = "duplicates"  #: an identity was seen before
    SEQUENCE_GAPS = "sequence_gaps"  #: numbers are missing in a sequence
    RECORDS_UNDECIDED = "records_undecided"  #: with --sole-writer, the output has more records than were decided
    DECIDED_OPEN = "decided_open"  #: the last decision's, not committed yet: a restart does it
    DECIDED_UNKNOWN = "decided_unknown"  #: neither its commit nor its loss can be shown by reading
    ORPHAN_OPEN = "orphan_open"  #: a former driver's, undecided: the next driver sweeps it
    LISTING_INCOMPLETE = "listing_incomplete"  #: a broker did not list its open transactions
    HELD_BACK = "held_back"  #: open transactions keep offsets from readers
    RECORDS_EXTRA = "records_extra"  #: more records than were decided: another writer's, or doubled
    UNIDENTIFIED = "unidentified"  #: an expression gives nothing for these records
    COMMIT_MISSING = "commit_missing"  #: the engine's commits/N is absent although N + 1 was decided
    OFFSETS_MISSING = "offsets_missing"  #: the checkpoint has no offsets/N of a decided batch
    RUNNING_OPEN = "running_open"  #: the present driver's, undecided: its batch is being written
    NOT_COMPARED = "not_compared"  #: a comparison that would prove nothing here, and why
    REPAIRED = "repaired"  #: batches whose lost transactions were written anew (rule 9)

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
    """One thing that was found.

    Attributes:
        kind: which.
        where: the batch, transaction or topic that it is about.
        text: a sentence: what it is and, where there is something to do, what.
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
