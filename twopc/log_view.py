"""Reduce a decision log to the few facts that recovery needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from twopc.errors import DecisionLogDamagedError
from twopc.records import Acquired, Begin, Decision, LogEntry, Repair, Truncation, truncated_to

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twopc.attempt import TaskKey
    from twopc.participants import ScanStart
    from twopc.records import LogContents, Record, TaskReport
    from twopc.times import Times

    Kept = tuple[int, ScanStart]


class LogStatus(Enum):
    """The state of the last batch in the log."""

    UNDECIDED = "undecided"  #: the open query has no decision, or no query is open
    DECIDED = "decided"  #: the last batch has a decision
    REPAIRED = "repaired"  #: repair records have replaced some of the last batch's handles
    CORRUPT = "corrupt"  #: the log cannot be trusted


@dataclass(frozen=True)
class LogView:
    """The facts that recovery needs from a log.

    Attributes:
        begin: the open query's begin record.
        ended: the ids of queries that were ended and must not resume.
        decision: the last decision with its repairs merged in; None if the open query has no decision.
        kept: (offset, scan_start) for every decision that is still in the log, oldest first. Other facts about
            the decisions before the last one are dropped, because they are no longer needed and may take several MB.
        repaired: whether repairs were merged into ``decision``.
        acquired: the newest acquired record, which identifies the log's last owner.
        damage: why the log cannot be trusted; None if the log is intact.
    """

    begin: Begin | None = None
    ended: frozenset[str] = frozenset()
    decision: Decision | None = None
    kept: tuple[Kept, ...] = ()
    repaired: bool = False
    acquired: Acquired | None = None
    damage: str | None = None

    @property
    def status(self) -> LogStatus:
        """The log's status in the recovery table."""
        if self.damage is not None:
            return LogStatus.CORRUPT
        if self.decision is None:
            return LogStatus.UNDECIDED
        return LogStatus.REPAIRED if self.repaired else LogStatus.DECIDED

    @property
    def highest_batch(self) -> int | None:
        """H: the highest decided batch. A begin record is treated as the decision for batch ``first_batch - 1``."""
        if self.decision is not None:
            return self.decision.batch_id
        return None if self.begin is None else self.begin.first_batch - 1

    def highest_batch_of(self, query_id: str) -> int | None:
        """:attr:`highest_batch` if the log is open for this query, otherwise None."""
        return self.highest_batch if self.begin is not None and self.begin.query_id == query_id else None

    @property
    def scan_start(self) -> dict[str, dict[str, Any]]:
        """For each sink name, where to start the search for evidence of the log's newest decision.

        That decision counts even if it was abandoned or is from another query.
        """
        return self.kept[-1][1] if self.kept else {}

    @property
    def highest_offsets(self) -> tuple[str, ...]:
        """The source offsets of :attr:`highest_batch`."""
        if self.decision is not None:
            return self.decision.offsets
        return () if self.begin is None else self.begin.prior_offsets

    @property
    def highest_times(self) -> Times | None:
        """The times of :attr:`highest_batch`; None if they are unknown."""
        if self.decision is not None:
            return self.decision.times
        return None if self.begin is None else self.begin.prior_times


def fold(contents: LogContents) -> LogView:
    """Read a log, and reduce it to a view.

    Damage is recorded in the view rather than raised, so that the recovery table can handle it.

    Raises:
        TwoPhaseCommitError: the log cannot be read; see :meth:`DecisionLog.read`.
    """
    try:
        view, recorded_start = _fold_from(contents, 0)
    except DecisionLogDamagedError:
        recorded_start = truncated_to(contents.entries)  # entries below the truncation do not count, even if damaged
        try:
            view, _ = _fold_from(contents, recorded_start)
        except DecisionLogDamagedError as error:
            return LogView(damage=str(error))
    # Records that no driver had truncated were deleted, so the log is damaged rather than empty (rule 4).
    if contents.start > recorded_start:
        return replace(
            view, damage=f"the log starts at offset {contents.start}, but was truncated only up to {recorded_start}"
        )
    return view


def _fold_from(contents: LogContents, start: int) -> tuple[LogView, int]:
    """Reduce the records that begin at ``start``. Return the view and the highest recorded truncation."""
    view, recorded_start = LogView(), 0
    kept: list[Kept] = []
    for entry in contents.entries:
        recorded_start = max(recorded_start, truncated_to([entry]))
        if entry.offset >= start:
            view, kept = fold_facts(view, entry), _kept(kept, entry.record, entry.offset)
    return replace(view, kept=tuple(kept)), recorded_start


def _kept(kept: list[Kept], record: Record, offset: int) -> list[Kept]:
    """Return the decisions that are still in the log after one more record.

    This may change the list in place. With a copy for each record, the time to read a log would grow with the square of its
    length.
    """
    if isinstance(record, Truncation):
        return [one for one in kept if one[0] >= record.log_start]
    if isinstance(record, Decision):
        kept.append((offset, record.scan_start))
    return kept


def fold_facts(view: LogView, entry: LogEntry) -> LogView:
    """Return the view that results from one more record, but with the previous :attr:`LogView.kept`.

    Raises:
        DecisionLogDamagedError: the record cannot follow the records before it.
    """
    record = entry.record
    if isinstance(record, Truncation):
        return replace(view, begin=record.begin, ended=view.ended | set(record.ended))
    if isinstance(record, Begin):
        ended = view.ended | ({record.ends} if record.ends else set())
        return replace(view, begin=record, ended=ended, decision=None, repaired=False)
    if isinstance(record, Decision):
        _require_successor(view, record, entry.offset)
        return replace(view, decision=record, repaired=False)
    if isinstance(record, Repair):
        return replace(view, decision=_merge(view.decision, record, entry.offset), repaired=True)
    return replace(view, acquired=record)  # an acquired record fences a driver, and says nothing about batches


def fold_more(view: LogView, offset: int, records: Sequence[Record]) -> LogView:
    """Return the view that results from more records, which this driver has just written at ``offset``."""
    kept = list(view.kept)
    for record in records:
        view, kept = fold_facts(view, LogEntry(offset, record)), _kept(kept, record, offset)
    return replace(view, kept=tuple(kept))


def _require_successor(view: LogView, decision: Decision, offset: int) -> None:
    """Check that the log has no gap.

    A decision must follow a decision for the previous batch, or a lost decision for the same batch.
    """
    last, begin = view.decision, view.begin
    if last is not None and (decision.query_id != last.query_id or decision.batch_id - last.batch_id not in {0, 1}):
        raise DecisionLogDamagedError(
            f"the decision for batch {decision.batch_id} at offset {offset} does not follow the decision for batch "
            f"{last.batch_id}"
        )
    found = (decision.query_id, decision.batch_id)
    if last is None and begin is not None and found != (begin.query_id, begin.first_batch):
        raise DecisionLogDamagedError(
            f"the decision for batch {decision.batch_id} at offset {offset} should be for batch {begin.first_batch}, "
            "the query's first batch"
        )


def _merge(decision: Decision | None, repair: Repair, offset: int) -> Decision:
    if decision is None or decision.batch_id != repair.batch_id or decision.query_id != repair.query_id:
        raise DecisionLogDamagedError(f"the repair record at offset {offset} does not match the decision before it")
    known = {(sink, task.partition) for task in decision.tasks for sink in task.handles}
    again = {task.partition: task.handles for task in repair.tasks if not task.is_repair}
    added = tuple(task for task in repair.tasks if task.is_repair)
    if not known.issuperset(repair.replaces) or not again.keys() <= {number for _, number in repair.replaces}:
        raise DecisionLogDamagedError(
            f"the repair record at offset {offset} repairs transactions that were not decided"
        )
    if not {task.partition for task in added}.isdisjoint(task.partition for task in decision.tasks):
        raise DecisionLogDamagedError(f"the repair record at offset {offset} reuses the number of a decided task")
    tasks = tuple(
        msgspec.structs.replace(task, handles=_left(task, repair.replaces) | again.get(task.partition, {}))
        for task in decision.tasks
    )
    return msgspec.structs.replace(decision, tasks=(*tasks, *added))


def _left(task: TaskReport, replaced: Collection[TaskKey]) -> dict[str, dict[str, Any]]:
    return {sink: handle for sink, handle in task.handles.items() if (sink, task.partition) not in replaced}
