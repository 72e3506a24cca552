"""Find the snapshot that added a batch, and check whether readers of the table still see that batch."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec
from pyiceberg.table.refs import MAIN_BRANCH

from twopc.sinks.iceberg.record import BATCH, PUBLISHED, SINK, summary_of_snapshot
from twopc.sinks.lake.published import Published

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


def snapshot_of(metadata: TableMetadata, sink: str, batch: int) -> Snapshot | None:
    """Return the newest snapshot that added rows from this batch. Return None if that snapshot has expired."""
    own = [found for found, summary in _added(metadata, sink) if summary[BATCH] == str(batch)]
    return max(own, key=_sequence_number) if own else None


def rows_by_version(metadata: TableMetadata, sink: str) -> Mapping[int, int]:
    """For each decision, count the rows that the sink's snapshots added. A repaired decision has several snapshots."""
    rows: Counter[int] = Counter()
    for _, summary in _added(metadata, sink):
        rows[_version(summary)] += int(summary.get("added-records", 0))
    return rows


def complete_decisions(metadata: TableMetadata, sink: str) -> frozenset[int]:
    """Return the decisions whose snapshots all exist.

    The snapshots must reach back without a gap to an earlier decision, or to the table's first snapshot.

    A table's snapshots have consecutive sequence numbers, so a gap shows that a snapshot has expired.
    """
    existing = {_sequence_number(found) for found in metadata.snapshots}
    newest: dict[int, int] = {}  # by decision
    for found, summary in _added(metadata, sink):
        version = _version(summary)
        newest[version] = max(newest.get(version, 0), _sequence_number(found))
    complete, before = set(), 0
    for version, last in sorted(newest.items(), key=itemgetter(1)):
        if last and existing.issuperset(range(before + 1, last + 1)):  # format version 1 has no sequence numbers
            complete.add(version)
        before = last
    return frozenset(complete)


def is_in_main(metadata: TableMetadata, snapshot: Snapshot) -> bool | None:
    """Return whether the main branch contains this snapshot, as its current snapshot or as an ancestor.

    Return None if snapshots between the branch and this one have expired.
    """
    main = metadata.refs.get(MAIN_BRANCH)
    if main is None:
        return False
    at: int | None = main.snapshot_id
    while at is not None:
        found = metadata.snapshot_by_id(at)
        if found is None:
            return None
        if at == snapshot.snapshot_id:
            return True
        # A parent's sequence number is lower than its child's, so none of the remaining ancestors can be this snapshot.
        if _sequence_number(found) < _sequence_number(snapshot):
            return False
        at = found.parent_snapshot_id
    return False


def _added(metadata: TableMetadata, sink: str) -> Iterator[tuple[Snapshot, Mapping[str, str]]]:
    """Yield the snapshots that added rows from this sink, each with its summary."""
    for found in metadata.snapshots:
        summary = summary_of_snapshot(found)
        if summary.get(SINK) == sink and BATCH in summary:
            yield found, summary


def _version(summary: Mapping[str, str]) -> int:
    return msgspec.json.decode(summary.get(PUBLISHED, "{}"), type=Published).version


def _sequence_number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
