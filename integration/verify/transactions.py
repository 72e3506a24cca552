"""Decided transactions against visible ones: every decided one is in, and nothing else is. Pure: no I/O."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from integration.verify.decided import is_at
from integration.verify.findings import Finding, Kind
from sinks.kafka import transactions as kafka_transactions
from sinks.kafka.committer import driver_epoch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from integration.verify.cluster import Bounds
    from integration.verify.decided import Decided
    from integration.verify.history import BatchId, History
    from sinks.kafka.markers import Marker
    from sinks.kafka.transactions import Description


def check_missing(
    absent: Mapping[str, Description], decided: Mapping[str, Decided], bounds: Bounds, last: BatchId | None
) -> Iterator[Finding]:
    """What becomes of decided transactions that are not visible."""
    for uuid, description in absent.items():
        one = decided[uuid]
        where, partition = f"batch {one.id.batch}", one.handle.marker_partition
        named = f"task {one.task}, {one.handle.transaction}, {one.handle.rows} rows"
        if is_at(description, one.handle) and description.state in {"Ongoing", "PrepareCommit"}:
            if one.id == last:
                yield Finding(
                    Kind.DECIDED_OPEN, where, f"{named}: decided, not committed yet; the query's next start commits it"
                )
            else:
                yield Finding(Kind.DECIDED_LATE, where, f"{named}: still open although later batches were decided")
        elif description.error == kafka_transactions.NO_ANSWER:
            yield Finding(Kind.DECIDED_UNKNOWN, where, f"{named}: its coordinator does not answer; look again later")
        elif bounds.starts.get(partition, 0) > one.scan_start:
            yield Finding(
                Kind.DECIDED_UNKNOWN, where, f"{named}: its marker was deleted, so nothing can be told of its commit"
            )
        elif bounds.stable.get(partition, 0) < bounds.ends.get(partition, 0):
            yield Finding(
                Kind.DECIDED_UNKNOWN, where, f"{named}: its marker may be behind an open transaction; look again later"
            )
        else:
            way_out = "the query's next start repairs it or says why not" if one.id == last else "its rows are missing"
            yield Finding(
                Kind.DECIDED_LOST,
                where,
                f"{named}: decided, and neither open nor visible ({description.state}); {way_out}",
            )


def check_visible(
    visible: Iterable[Marker], decided: Mapping[str, Decided], superseded: Mapping[str, BatchId], history: History
) -> Iterator[Finding]:
    """Visible transactions that no decision names, or that have other rows than it says."""
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
                    f"{named}: its decision says {one.handle.rows} rows; one of them was altered",
                )
        elif marker.uuid in superseded:
            yield Finding(
                Kind.UNDECIDED_VISIBLE, where, f"{named}: replaced by a repair as lost, and yet visible: doubled"
            )
        elif marker.query_id in history.elsewhere:
            elsewhere[marker.query_id] += 1
        elif history.is_complete or marker.query_id in query_ids:
            yield Finding(
                Kind.UNDECIDED_VISIBLE, where, f"{named}: visible, and no decision names it: somebody else ended it"
            )
    for query_id, count in elsewhere.items():
        yield Finding(
            Kind.NOT_COMPARED,
            f"query {query_id}",
            f"{count:,} visible transactions: {history.elsewhere[query_id]} has decided them, not the ledger that decides now",
        )


def check_open(
    described: Mapping[str, Description], decided: Mapping[str, Decided], *, driver_epoch: int
) -> Iterator[Finding]:
    """Open transactions of the sink that nobody has decided. ``driver_epoch``: the present driver's."""
    handles = {one.handle.transactional_id: one.handle for one in decided.values()}
    for tid, description in described.items():
        of = driver_epoch_of(tid)
        is_decided = tid in handles and is_at(description, handles[tid])
        if of is None or is_decided or description.state != "Ongoing":
            continue  # the driver's own, or one of check_missing, or ended in the meantime
        if of < driver_epoch:
            yield Finding(
                Kind.ORPHAN_OPEN, tid, "a former driver's, undecided: it holds readers back until a driver sweeps it"
            )
        else:
            yield Finding(
                Kind.RUNNING_OPEN,
                tid,
                "undecided, of the present driver: a batch in the making, or an orphan of its end",
            )
