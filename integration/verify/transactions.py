"""Compare decided transactions with visible ones: all decided ones are visible, and no others. Pure: no I/O."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from integration.verify.decided import is_at
from integration.verify.findings import Finding, Kind
from sinks.kafka import reports
from sinks.kafka.transactional_id import driver_epoch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from integration.verify.cluster import Bounds
    from integration.verify.decided import Decided
    from integration.verify.history import BatchId, History
    from sinks.kafka.markers import Marker
    from sinks.kafka.reports import Description


def check_missing(
    absent: Mapping[str, Description], decided: Mapping[str, Decided], bounds: Bounds, last: BatchId | None
) -> Iterator[Finding]:
    """Judge decided transactions that are not visible."""
    for uuid, description in absent.items():
        one = decided[uuid]
        where, partition = f"batch {one.id.batch}", one.handle.marker_partition
        named = f"task {one.task}, {one.handle.transaction}, {one.handle.rows} rows"
        if is_at(description, one.handle) and description.state in {"Ongoing", "PrepareCommit"}:
            if one.id == last:
                yield Finding(
                    Kind.DECIDED_OPEN,
                    where,
                    f"{named}: decided but not committed; the running query or its next start commits it",
                )
            else:
                yield Finding(
                    Kind.DECIDED_LATE, where, f"{named}: decided and still open, although later batches were decided"
                )
        elif description.error == reports.NO_ANSWER:
            yield Finding(Kind.DECIDED_UNKNOWN, where, f"{named}: its coordinator does not answer; check again later")
        elif bounds.starts.get(partition, 0) > one.scan_start:
            yield Finding(
                Kind.DECIDED_UNKNOWN, where, f"{named}: its marker was deleted, so its commit cannot be verified"
            )
        elif bounds.stable.get(partition, 0) < bounds.ends.get(partition, 0):
            yield Finding(
                Kind.DECIDED_UNKNOWN, where, f"{named}: its marker may be behind an open transaction; check again later"
            )
        else:
            fix = (
                "the query's next start repairs it, or reports why it cannot" if one.id == last else "its rows are lost"
            )
            yield Finding(
                Kind.DECIDED_LOST,
                where,
                f"{named}: decided, but neither visible nor open ({description.state}); {fix}",
            )


def check_visible(
    visible: Iterable[Marker], decided: Mapping[str, Decided], superseded: Mapping[str, BatchId], history: History
) -> Iterator[Finding]:
    """Find visible transactions without a decision, or with another number of rows than decided."""
    query_ids = {query_id for query_id, _ in history.batches}
    elsewhere = Counter[str]()
    for marker in visible:
        where, named = f"batch {marker.batch_id}", f"task {marker.task}, transaction {marker.uuid}, {marker.rows} rows"
        one = decided.get(marker.uuid)
        if one is not None:
            if marker.rows != one.handle.rows:
                yield Finding(
                    Kind.ROWS_DIFFER,
                    where,
                    f"{named}: its decision has {one.handle.rows} rows; the marker or the decision was altered",
                )
        elif marker.uuid in superseded:
            yield Finding(
                Kind.UNDECIDED_VISIBLE,
                where,
                f"{named}: visible, although a repair replaced it as lost: its rows are duplicated",
            )
        elif marker.query_id in history.elsewhere:
            elsewhere[marker.query_id] += 1
        elif history.is_complete or marker.query_id in query_ids:
            yield Finding(
                Kind.UNDECIDED_VISIBLE, where, f"{named}: visible without a decision: something else committed it"
            )
    for query_id, count in elsewhere.items():
        yield Finding(
            Kind.NOT_COMPARED,
            f"query {query_id}",
            f"{count:,} visible transactions: decided in {history.elsewhere[query_id]}, not in the current decision log",
        )


def check_open(
    described: Mapping[str, Description], decided: Mapping[str, Decided], *, driver_epoch: int
) -> Iterator[Finding]:
    """Find open transactions of the sink without a decision. ``driver_epoch``: of the current driver."""
    handles = {one.handle.transactional_id: one.handle for one in decided.values()}
    for tid, description in described.items():
        of = driver_epoch_of(tid)
        is_decided = tid in handles and is_at(description, handles[tid])
        if of is None or is_decided or description.state != "Ongoing":
            continue  # the driver's own, or judged by check_missing, or ended meanwhile
        if of < driver_epoch:
            yield Finding(
                Kind.ORPHAN_OPEN,
                tid,
                "undecided, of an earlier driver: it holds readers back until the next driver aborts it",
            )
        else:
            yield Finding(
                Kind.RUNNING_OPEN,
                tid,
                "undecided, of the current driver: its batch is being written, or the driver has died",
            )
