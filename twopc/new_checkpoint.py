"""Word the advice to start with a new checkpoint: where it must begin, and what it loses.

A new checkpoint begins at the source's ``startingOffsets``. Spark reads this option only when it plans the first batch. The right
place is the end of the last *decided* batch, even if the batch is not visible yet: a start that finds the decision completes the
batch. A new checkpoint also has no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.registers import RegisterLog

if TYPE_CHECKING:
    from twopc.batch import Batch
    from twopc.log_view import LogView

_PAGE: Final = "docs/operations.md#new-checkpoint"
#: The advice if the decisions or the output are lost, so that nothing shows where the new checkpoint must begin.
NEW_NAME: Final = (
    f"start with a new checkpoint and a new sink name, and first set the source's startingOffsets: {_PAGE}"
)
#: The advice after a sink or a log is lost, if a copy of it may exist.
FAILOVER: Final = (
    "start with a new checkpoint and a new sink name, and do not write rows that the output already contains: "
    "docs/operations.md#cluster-failover-and-mirrored-topics"
)
#: The advice if batches ran without the sink, and the sink has written nothing yet.
FROM_MISSING: Final = (
    "start with a new checkpoint whose startingOffsets are where the missing rows begin. With latest, they would stay "
    "missing"
)
#: Where to begin if the log has lost decisions.
LAST_VISIBLE: Final = "the last batch that the output shows"
#: The longest offsets, in characters, that an error shows. A source with many partitions has longer ones.
_LONGEST: Final = 500


def last_decided(query_id: str, view: LogView | None, log: str) -> str:
    """Name the query's last decided batch, and say whether a start with a new checkpoint completes it.

    Args:
        query_id: the query.
        view: a log that may contain the query's decisions; None if no such log is at hand.
        log: the log's name.
    """
    completes = view is not None and view.highest_batch_of(query_id) is not None and log != RegisterLog.name
    what = "which that start completes" if completes else "whose rows must all be visible first"
    return f"{_named(query_id, view)}, {what}"


def new_checkpoint(batch: Batch, ended: str, last: str) -> str:
    """Advise to start with a new checkpoint, which ends a query and uses its sinks.

    Args:
        batch: a batch of the query that starts.
        ended: the query that the new start ends.
        last: names the batch after which the new checkpoint must begin.
    """
    return (
        f"start with a new checkpoint and override=EndQuery({ended!r}). Set the source's startingOffsets to the end offsets of "
        f"{last}. {_state(batch)}See {_PAGE}"
    )


def begun(batch: Batch, ended: str, view: LogView | None) -> str:
    """Say where this checkpoint begins if it is new. The user may want to end a query with it.

    Args:
        batch: a batch of the query that starts.
        ended: the query that the user may end.
        view: a log that may contain the decisions of the query ``ended``; None if no such log is at hand.

    Returns:
        the sentences, after a full stop. They are empty if the checkpoint is not new.
    """
    if batch.batch_id > 0:
        return ""
    return (
        ". With EndQuery, this checkpoint begins at the startingOffsets with which Spark has already planned its first batch. If "
        f"these are not the end offsets of {_named(ended, view)}, rows would be written twice "
        "or skipped. In this case, set startingOffsets to these end offsets, and start with another, empty checkpoint and the "
        f"same override. {_state(batch)}See {_PAGE}"
    )


def _named(query_id: str, view: LogView | None) -> str:
    """Name the query's last decided batch. Show its end offsets if the log contains them and they are short."""
    highest = None if view is None else view.highest_batch_of(query_id)
    offsets = "" if view is None or highest is None else "; ".join(view.highest_offsets)
    shown = f" (batch {highest}: {offsets})" if 0 < len(offsets) <= _LONGEST else ""
    return f"query {query_id}'s last decided batch{shown}"


def _state(batch: Batch) -> str:
    if not batch.keeps_state():
        return ""
    return "With a new checkpoint, the state is lost, so rather restore a savepoint, or write a new output from the beginning. "
