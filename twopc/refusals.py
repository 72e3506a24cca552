"""What a refused start or a stopped commit tells its user: what is wrong, and every way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.batch import Position
from twopc.errors import CommitBlockedError, DecisionLogDamagedError, RefusedStartError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.batch import Batch
    from twopc.log_view import LogView
    from twopc.records import Acquired


def refusal(position: Position, label: str, view: LogView, batch: Batch, log: str) -> RefusedStartError:
    """The error for a position that the recovery table refuses."""
    at, highest, mine = batch.batch_id, view.highest_batch, batch.query_id
    other = view.begin.query_id if view.begin else None
    texts = {
        Position.REWOUND: (
            f"the checkpoint is at batch {at}, but {log} has decided batch {highest}: an older checkpoint was "
            f"restored, or a copy of it ran elsewhere. Going on would write batches {at} to {highest} twice. Restore "
            f"the newest checkpoint; or, to write batches again, start with a new checkpoint and end_query_id={mine!r}"
        ),
        Position.COPIED: (
            f"batch {at} of this checkpoint has other source offsets than {log} has recorded (at batch {highest}): the "
            "checkpoint was copied or restored, and another run has gone on from it. Going on would lose or double "
            "records. Use the checkpoint of the run that wrote last; or start with a new checkpoint and "
            f"end_query_id={mine!r}"
        ),
        Position.GAP: (
            f"the checkpoint is at batch {at}, but the last batch decided in {log} is {highest}: batches in between "
            "ran without this sink, or the log was replaced. If they were written by other means, start with a new "
            f"checkpoint and end_query_id={mine!r}; otherwise restore the checkpoint of batch {highest}"
        ),
        Position.NEW_QUERY: (
            f"{log} belongs to the query {other}, this is the query {mine}: its checkpoint was deleted, or another "
            f"query uses the same sink name. If {other} is over, pass end_query_id={other!r}; otherwise give this sink "
            "another name"
        ),
        Position.UNADOPTED: (
            f"the checkpoint is at batch {at}, but {log} knows nothing of it: it lived before this sink (or the sink "
            f"was renamed). If its batches before {at} were written by other means, pass adopt_query_id={mine!r}; "
            "otherwise give the sink its former name"
        ),
        Position.ENDED: (
            f"the query {mine} was ended in {log} when {other} took its place: its checkpoint must not be used again. "
            f"Start with a new checkpoint and end_query_id={other!r}, or give this sink another name"
        ),
    }
    return RefusedStartError(f"{label}: {texts[position]}", case=position.value)


def damaged(view: LogView, log: str) -> DecisionLogDamagedError:
    """The error for a log that cannot be trusted."""
    return DecisionLogDamagedError(
        f"the decision log {log} is damaged: {view.damage}. Restore it, or check the output, then start with a new "
        "checkpoint and a new sink name"
    )


def blocked(batch: int, unproven: Sequence[str], blockers: Sequence[str]) -> CommitBlockedError:
    """The error for a decided batch whose commit cannot be proven now."""
    what = f"batch {batch} is decided, but its commit could not be completed in time"
    if blockers:
        text = f"{what}: {'; '.join(blockers)}. Mend that and restart the query: it goes on from here"
    else:
        text = f"{what}; restart the query when every broker answers: it goes on from here"
    return CommitBlockedError(text, transactions=unproven)


def driven_by_another(sink: str, last: str, batch: Batch) -> RefusedStartError:
    """The error for a sink without a log that another query drove last."""
    return RefusedStartError(
        f"name in use: sink {sink!r} was last driven by the query {last}; this is the query {batch.query_id}. If that one is "
        f"over and all it decided is visible, pass end_query_id={last!r}; otherwise give this sink another name",
        case="name in use",
    )


def newer_decision(sink: str, batch: Batch) -> RefusedStartError:
    """The error for a checkpoint whose decisions are older than what a sink shows."""
    mine = batch.query_id
    return RefusedStartError(
        f"older copy: sink {sink!r} shows a later batch than any that this checkpoint (at batch {batch.batch_id}) has decided: "
        "it was restored, or is a copy, and another run has gone on from it. Going on would write batches twice. Use the "
        f"checkpoint of the run that wrote last; or start with a new checkpoint and end_query_id={mine!r}",
        case="older copy",
    )


def other_master(log: str, last: Acquired, batch: Batch) -> RefusedStartError:
    """The error for a sink that another query drives, with its decisions in another log than this query's."""
    return RefusedStartError(
        f"name in use: {log} was last driven by the query {last.query_id}, whose decisions are in {last.deciding_log}; this is "
        f"the query {batch.query_id}. If that one is over and all it decided is visible, pass "
        f"end_query_id={last.query_id!r}; otherwise give this sink another name",
        case="name in use",
    )
