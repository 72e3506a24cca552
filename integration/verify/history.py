"""Arrange a decision log's remaining decisions and repairs by batch. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from twopc.errors import DecisionLogDamagedError
from twopc.log_view import LogView, fold, fold_facts
from twopc.records import Acquired, Begin, Decision, Repair, truncated_to

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twopc.records import LogContents


class BatchId(NamedTuple):
    """A batch's identity. A batch number alone is unique only within one query."""

    query_id: str
    batch: int


@dataclass
class Batch:
    """A decided batch."""

    decision: Decision  #: the latest decision, with repairs merged in
    prior: tuple[str, ...] | None  #: source offsets of the previous batch; None if the log no longer contains them
    repairs: int = 0  #: the number of repair records for this batch
    rewrites: int = 0  #: how often the batch was lost completely and decided again
    abandoned: bool = False  #: whether the user has abandoned the batch's invisible rows
    #: by sink, handles that a later record replaced; the driver proved their loss, so they must never become visible
    superseded: list[Mapping[str, Any]] = field(default_factory=list)

    def handles(self, sink: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """For every transaction of the sink, yield the task and the handle's JSON values."""
        for task in self.decision.tasks:
            if sink in task.handles:
                yield task.partition, task.handles[sink]


@dataclass(frozen=True)
class History:
    """A decision log's contents, arranged by batch."""

    view: LogView  #: the state that a driver would derive from the log
    batches: dict[BatchId, Batch]  #: every batch that the log still contains, oldest first
    acquisitions: Mapping[int, Acquired]  #: the acquisitions in the sink's own ledger, by driver epoch
    is_complete: bool  #: whether both ledgers contain every decision since their creation
    #: by query id, the other log in which the query decided its batches, because it ran with a different set of sinks
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> BatchId | None:
        """The last decided batch."""
        return next(reversed(self.batches), None)

    @property
    def newest(self) -> Acquired | None:
        """The newest acquisition in the sink's own ledger."""
        return self.acquisitions.get(max(self.acquisitions, default=-1))


def history_of(contents: LogContents, own: LogContents) -> History:
    """Derive the history from the log's contents.

    If the log is damaged, the history ends at the damage, and ``view`` describes it.

    Args:
        contents: the decision log's contents.
        own: the contents of the sink's own ledger. The offset of an acquisition record is the driver epoch in transactional
            ids.
    """
    log_start = truncated_to(contents.entries)
    view, batches = LogView(), dict[BatchId, Batch]()
    for entry in contents.entries:
        if entry.offset < log_start:
            continue
        record = entry.record
        try:
            after = fold_facts(view, entry)
        except DecisionLogDamagedError:
            break
        if isinstance(record, Decision | Repair) and after.decision is not None:
            _add(batches, view, record, after.decision)
        # If the log contains no batch, the abandoned decision has been truncated.
        if isinstance(record, Begin) and record.abandons and batches:
            batches[next(reversed(batches))].abandoned = True
        view = after
    acquisitions = {entry.offset: entry.record for entry in own.entries if isinstance(entry.record, Acquired)}
    # Only a truncation may remove the head of a log. If anything else removed it, the log is damaged.
    is_complete = log_start == truncated_to(own.entries) == 0
    return History(fold(contents), batches, acquisitions, is_complete, _elsewhere(acquisitions))


def _elsewhere(acquisitions: Mapping[int, Acquired]) -> dict[str, str]:
    if not acquisitions:
        return {}
    last = acquisitions[max(acquisitions)]
    here = {record.query_id for record in acquisitions.values() if _is_same_log(record, last)}
    return {record.query_id: _named(record) for record in acquisitions.values() if record.query_id not in here}


def _is_same_log(one: Acquired, other: Acquired) -> bool:
    """Whether two drivers used the same log. Logs on two clusters may have the same name. Old records name no cluster."""
    clusters = {one.deciding_cluster, other.deciding_cluster} - {""}
    return one.deciding_log == other.deciding_log and len(clusters) <= 1


def _named(record: Acquired) -> str:
    return (
        f"{record.deciding_log} on cluster {record.deciding_cluster}"
        if record.deciding_cluster
        else record.deciding_log
    )


def _add(batches: dict[BatchId, Batch], before: LogView, record: Decision | Repair, merged: Decision) -> None:
    key = BatchId(record.query_id, record.batch_id)
    known = batches.get(key)
    if known is None:
        follows = before.highest_batch == record.batch_id - 1
        batches[key] = Batch(merged, before.highest_offsets if follows and before.highest_offsets else None)
        return
    # A decision replaces the earlier decision completely. A repair replaces only the lost transactions.
    known.superseded += [
        {sink: handle}
        for task in known.decision.tasks
        for sink, handle in task.handles.items()
        if isinstance(record, Decision) or (sink, task.partition) in record.replaces
    ]
    known.decision = merged
    known.rewrites += isinstance(record, Decision)
    known.repairs += isinstance(record, Repair)
