"""Check that all decided transactions are visible, and that no other transactions are visible. This module does no I/O."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from twopc.counted import counted
from twopc.integration.verify.describing import is_known
from twopc.integration.verify.findings import Finding, Kind
from twopc.sinks.kafka.handle import driver_epoch_of
from twopc.sinks.kafka.reports import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from twopc.integration.verify.cluster import Bounds
    from twopc.integration.verify.history import BatchId, History
    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.handle import KafkaHandle
    from twopc.sinks.kafka.markers import Marker
    from twopc.sinks.kafka.reports import Description


class Decided(NamedTuple):
    """A decided transaction. The transaction's marker is at offset ``scan_start`` or above."""

    id: BatchId
    task: int
    handle: KafkaHandle
    scan_start: int
    abandoned: bool = False


def decided_in(history: History, sink: KafkaSink) -> dict[str, Decided]:
    """Return the sink's decided transactions by UUID. Leave out transactions that a later record replaced."""
    found = {}
    for key, batch in history.batches.items():
        scan_start = batch.decision.scan_start.get(sink.name, {}).get("markers", {})
        for task, encoded in batch.handles(sink.name):
            handle = sink.decode_handle(encoded)
            start = scan_start.get(str(handle.marker_partition), 0)
            found[handle.uuid] = Decided(key, task, handle, start, batch.abandoned)
    return found


def superseded_in(history: History, sink: KafkaSink) -> dict[str, BatchId]:
    """For each of the sink's transactions that a later record replaced, map the transaction's UUID to its batch."""
    return {
        sink.decode_handle(handles[sink.name]).uuid: key
        for key, batch in history.batches.items()
        for handles in batch.superseded
        if sink.name in handles
    }


def newest_epoch(history: History, decided: Mapping[str, Decided]) -> int:
    """Return the newest driver's epoch, or -1 if it is unknown.

    The log may no longer contain the record of the driver's acquisition, but the driver's transactional ids also contain the
    epoch.
    """
    of = (driver_epoch_of(one.handle.transactional_id) for one in decided.values())
    return max([*history.acquisitions, *(number for number in of if number is not None)], default=-1)


def topics_of(handle: KafkaHandle, sink: KafkaSink) -> frozenset[str]:
    """Return the output topics that the transaction wrote to."""
    return frozenset(where.rpartition(":")[0] for where in handle.partitions) - {sink.ledger}


def check_missing(
    absent: Mapping[str, Description], decided: Mapping[str, Decided], bounds: Bounds, last: BatchId | None
) -> Iterator[Finding]:
    """Judge decided transactions that are not visible. ``bounds`` are the bounds of the marker partitions."""
    for uuid, description in absent.items():
        one = decided[uuid]
        kind, text = _why_missing(one, description, bounds, is_last=one.id == last)
        if one.abandoned:
            fate = "are lost and do not count as decided rows" if kind is Kind.DECIDED_LOST else "may be missing"
            kind, text = Kind.ABANDONED, f"abandoned with override=Abandon({one.id.batch}), so its rows {fate}"
        named = f"task {one.task}, {one.handle.transaction}, {counted(one.handle.rows, 'row')}"
        yield Finding(kind, f"batch {one.id.batch}", f"{named}: {text}")


def given_up(absent: Mapping[str, Description], decided: Mapping[str, Decided], bounds: Bounds) -> frozenset[str]:
    """Return the abandoned transactions that are proven lost: none of their rows is visible, and no repair follows."""
    return frozenset(
        uuid
        for uuid, description in absent.items()
        if decided[uuid].abandoned
        and _why_missing(decided[uuid], description, bounds, is_last=False)[0] is Kind.DECIDED_LOST
    )


def _why_missing(one: Decided, description: Description, bounds: Bounds, *, is_last: bool) -> tuple[Kind, str]:
    partition = one.handle.marker_partition
    if description.is_of(one.handle) and description.state in {"Ongoing", "PrepareCommit"}:
        if is_last:
            return (
                Kind.DECIDED_OPEN,
                "decided but not committed. The query will commit the transaction when it next starts, if not before",
            )
        return Kind.DECIDED_LATE, "decided but still open, even though later batches were decided"
    if not is_known(description):
        cause = "does not respond" if description.error == NO_ANSWER else f"reports {description.error}"
        return Kind.DECIDED_UNKNOWN, f"its coordinator {cause}. Check again later"
    if bounds.starts.get(partition, 0) > one.scan_start:
        return Kind.DECIDED_UNKNOWN, "its marker was deleted, so its commit cannot be verified"
    if bounds.stable.get(partition, 0) < bounds.ends.get(partition, 0):
        return Kind.DECIDED_UNKNOWN, "its marker may be behind an open transaction. Check again later"
    fix = (
        "when the query next starts, it will repair the transaction, or report why it cannot"
        if is_last
        else "its rows are lost"
    )
    return Kind.DECIDED_LOST, f"decided, but neither visible nor open ({description.state}), so {fix}"


def check_visible(
    visible: Iterable[Marker], decided: Mapping[str, Decided], superseded: Mapping[str, BatchId], history: History
) -> Iterator[Finding]:
    """Find visible transactions that are not in a decision, or whose number of rows differs from the decided number."""
    query_ids = {query_id for query_id, _ in history.batches}
    elsewhere = Counter[str]()
    for marker in visible:
        where, named = (
            f"batch {marker.batch_id}",
            f"task {marker.task}, transaction {marker.uuid}, {counted(marker.rows, 'row')}",
        )
        one = decided.get(marker.uuid)
        if one is not None:
            if marker.rows != one.handle.rows:
                text = f"its decision says {counted(one.handle.rows, 'row')}, so the marker or the decision was altered"
                yield Finding(Kind.ROWS_DIFFER, where, f"{named}: {text}")
        elif marker.uuid in superseded:
            text = "visible, even though a repair counted it as lost and replaced it, so its rows are duplicated"
            yield Finding(Kind.UNDECIDED_VISIBLE, where, f"{named}: {text}")
        elif marker.query_id in history.elsewhere:
            elsewhere[marker.query_id] += 1
        elif history.is_complete or marker.query_id in query_ids:
            text = "visible without a decision, so another program committed it"
            yield Finding(Kind.UNDECIDED_VISIBLE, where, f"{named}: {text}")
    for query_id, count in elsewhere.items():
        log = history.elsewhere[query_id]
        text = (
            f"{counted(count, 'visible transaction was', 'visible transactions were')} decided in {log}, not in the "
            "current decision log"
        )
        yield Finding(Kind.NOT_COMPARED, f"query {query_id}", text)


def check_open(
    described: Mapping[str, Description], decided: Mapping[str, Decided], *, driver_epoch: int
) -> Iterator[Finding]:
    """Find the sink's open transactions without a decision. ``driver_epoch`` is the newest driver's epoch."""
    handles = {one.handle.transactional_id: one.handle for one in decided.values()}
    for tid, description in described.items():
        of = driver_epoch_of(tid)
        is_decided = tid in handles and description.is_of(handles[tid])
        if of is None or is_decided or description.state != "Ongoing":
            continue  # the transaction is the driver's own, or check_missing judges it, or it has ended in the meantime
        if of < driver_epoch:
            text = (
                "an earlier driver began this undecided transaction. The transaction holds readers back until the next "
                "driver aborts it"
            )
            yield Finding(Kind.ORPHAN_OPEN, tid, text)
        else:
            text = (
                "the current driver began this undecided transaction. Either the batch is being written, or the "
                "driver has died"
            )
            yield Finding(Kind.RUNNING_OPEN, tid, text)
