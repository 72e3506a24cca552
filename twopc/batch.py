"""Compare a batch with the decision log. Two batches with the same id may be different batches (rule 10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from twopc.offsets import is_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.log_view import LogView
    from twopc.override import Overrides
    from twopc.times import Times


@dataclass(frozen=True)
class Batch:
    """One batch from the engine.

    Attributes:
        query_id: the query id, stored in the query's checkpoint.
        offsets: the batch's source offsets, one canonical string per source.
        offsets_of: reads another batch's source offsets from the same checkpoint; returns None if they are missing from the
            checkpoint.
        times_of: reads the times of this batch or of another batch from the same checkpoint; returns None if they are missing
            from the checkpoint.
        keeps_state: returns whether the query keeps state.
    """

    query_id: str
    batch_id: int
    offsets: tuple[str, ...]
    offsets_of: Callable[[int], tuple[str, ...] | None]
    times_of: Callable[[int], Times | None] = lambda _: None
    keeps_state: Callable[[], bool] = lambda: False

    @property
    def times(self) -> Times | None:
        """The batch's times; None if they are unknown."""
        return self.times_of(self.batch_id)


class Position(Enum):
    """How a batch relates to the last decision."""

    SAME = "same"  #: the last decided batch again, with the same source offsets
    NEXT = "next"  #: the batch after the last decided one, in the same history
    REWOUND = "rewound"  #: a batch before the last decided one, because an older checkpoint was restored
    COPIED = "copied"  #: a batch with the expected number, but from another history
    PLANNED_AGAIN = "planned again"  #: as SAME or NEXT, but the engine has planned the decided batch again
    GAP = "gap"  #: a batch beyond the next one
    SET_BACK = "set back"  #: a batch beyond the next one that reads the last decided batch's input again
    FIRST = "first"  #: the first batch of a query that may use the sink, or the first after a gap that the user names
    NEW_QUERY = "new query"  #: a batch of another query, for a sink name that is in use
    UNADOPTED = "unadopted"  #: a batch from a checkpoint that is older than the sink
    ENDED = "ended query"  #: a batch of a query that another query has ended


def locate(view: LogView, batch: Batch, overrides: Overrides) -> Position:
    """Compare ``batch`` with the log, taking the user's overrides into account."""
    if batch.query_id in view.ended:
        return Position.ENDED
    highest = view.highest_batch_of(batch.query_id)
    if highest is None:
        return _locate_new_query(view, batch, overrides)
    if batch.batch_id == highest:
        if not is_same(view.highest_offsets, batch.offsets):
            return Position.COPIED
        return Position.PLANNED_AGAIN if _is_planned_again(view, batch, highest) else Position.SAME
    if batch.batch_id < highest:
        return Position.REWOUND
    return _locate_later(view, batch, overrides, highest)


def _locate_later(view: LogView, batch: Batch, overrides: Overrides, highest: int) -> Position:
    is_next = batch.batch_id == highest + 1
    prior = batch.offsets_of(highest) if highest >= 0 else ()
    # After a gap, the engine may have deleted the offsets. If they still exist, they must equal the offsets in the log.
    if not is_same(view.highest_offsets, prior or ()) and (is_next or prior is not None):
        return Position.COPIED
    if _is_planned_again(view, batch, highest):
        return Position.PLANNED_AGAIN
    if is_next:
        return Position.NEXT
    if _is_set_back(view, batch, highest):
        return Position.SET_BACK
    resumes = overrides.resumes_at(batch.query_id, batch.batch_id, needs_id=bool(view.ended))
    return Position.FIRST if resumes else Position.GAP


def _is_planned_again(view: LogView, batch: Batch, highest: int) -> bool:
    """Whether the query keeps state and has planned the last decided batch again, with other times.

    The engine plans a batch again if the checkpoint has lost the batch's offsets. The state then belongs to the new plan, but
    the rows belong to the decided plan. If only the new plan fires a timer, the timer's rows would be lost. A query without
    state does not remember the new plan's times, so the batch is a replay. A decision from an earlier release contains no
    times.
    """
    decided, found = view.highest_times, batch.times_of(highest)
    return decided is not None and found is not None and decided != found and batch.keeps_state()


def _is_set_back(view: LogView, batch: Batch, highest: int) -> bool:
    """Whether a batch in the gap has reset the sources to their offsets from before the last decided batch.

    Spark's offline repartition of the state resets the sources if the user lets the repartition skip an unfinished batch. This
    query may have decided the unfinished batch.
    """
    before = batch.offsets_of(highest - 1) if highest > 0 else None
    if before is None:
        return False
    has_data, times = not is_same(view.highest_offsets, before), batch.times_of(highest - 1)
    if not has_data and view.highest_times in {None, times}:
        return False
    # Spark also copies the times. If the decided batch has no data, only the times show which batch was copied: the decided
    # batch, or the batch before it.
    return any(
        batch.offsets_of(skipped) == before and (has_data or batch.times_of(skipped) == times)
        for skipped in range(highest + 1, batch.batch_id)
    )


def _locate_new_query(view: LogView, batch: Batch, overrides: Overrides) -> Position:
    if view.begin is not None and view.begin.query_id not in overrides.end_query_ids:
        return Position.NEW_QUERY
    if batch.batch_id > 0 and overrides.adopt_query_id != batch.query_id:
        return Position.UNADOPTED
    return Position.FIRST
