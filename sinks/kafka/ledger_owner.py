"""Check whose records a ledger contains. The first sink that acquired a ledger owns it, and a mirrored copy has no owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError, DecisionLogDamagedError
from twopc.new_checkpoint import FAILOVER
from twopc.records import Acquired, Decision

if TYPE_CHECKING:
    from collections.abc import Collection

    from twopc.records import LogEntry, Record


class NotTheOwnerError(ConfigurationError):
    """The ledger belongs to another sink."""

    def __init__(self, text: str, owners: str) -> None:
        """Keep the names of the sinks that may own the ledger."""
        super().__init__(text)
        self.owners = owners


class OwnerCheck:
    """Checks a ledger's records, one after another.

    Args:
        ledger: the ledger's name.
        sink: the sink that reads the ledger.
        whoever: whether the ledger may belong to another sink.
    """

    def __init__(self, ledger: str, sink: str, *, whoever: bool) -> None:
        self._ledger = ledger
        self._sink = sink
        self._whoever = whoever
        self._is_known = whoever
        self._acquired = -2

    def accepts(self, entry: LogEntry) -> bool:
        """Whether the next record counts.

        Raises:
            NotTheOwnerError: the ledger belongs to another sink.
            DecisionLogDamagedError: the ledger is a mirrored copy.
        """
        _require_original(self._ledger, self._acquired, entry)
        self._acquired = entry.offset if isinstance(entry.record, Acquired) else -2
        if not self._is_known and (owners := _owners(entry.record)):
            self._is_known = True
            _require_own(self._ledger, self._sink, owners)
        # The first sink that acquired a ledger owns it. Every later sink was rejected, so its record does not count.
        return self._whoever or not isinstance(entry.record, Acquired) or entry.record.sink in {"", self._sink}


def _require_original(ledger: str, acquired: int, entry: LogEntry) -> None:
    """Raise a DecisionLogDamagedError if a mirror wrote the record. ``acquired`` is the last ``Acquired`` record's offset.

    A driver acquires the ledger in a separate transaction, so a control record follows. A mirror does not copy
    control records. Also, records in a mirror have new offsets, so a search for evidence would look in the wrong
    place.
    """
    if entry.offset == acquired + 1 and not isinstance(entry.record, Acquired):
        raise DecisionLogDamagedError(
            f"{ledger} on this cluster is a mirrored copy of a ledger. The offsets and transactions in this "
            f"copy come from another cluster, so they prove nothing on this cluster. After a failover, {FAILOVER}"
        )


def _require_own(ledger: str, sink: str, owners: Collection[str]) -> None:
    if sink not in owners:
        named = " or ".join(map(repr, sorted(owners)))
        raise NotTheOwnerError(
            f"the ledger {ledger} belongs to sink {named}. Sink {sink!r} would damage that sink's decisions. Nothing was "
            f"written. Remove ledger_topic from sink {sink!r}, or set a topic that no other sink uses",
            named,
        )


def _owners(record: Record) -> Collection[str]:
    """Return the sinks that may own a ledger with this first record.

    The result is empty if the record does not identify any sink.

    A truncated ledger begins with a decision, whose ``scan_start`` lists the query's sinks.
    """
    if isinstance(record, Decision):
        return record.scan_start.keys()
    return {record.sink} if isinstance(record, Acquired) and record.sink else ()
