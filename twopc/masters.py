"""A sink must not be taken unnoticed from another query, nor from the same one that has gone on elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.log_view import fold, last_take_over
from twopc.refusals import driven_by_another, gone_on, other_master

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twopc.checkpoint import Checkpoint, Permits
    from twopc.decision import DecisionLog, LogContents
    from twopc.log_view import LogView
    from twopc.sink import SinkCommitter


def require_not_driven_by_another(drove: Mapping[str, str | None], checkpoint: Checkpoint, permits: Permits) -> None:
    """Look at what sinks without a log say: the last decision of another query may still be without its rows there.

    Args:
        drove: sink -> the query that drove it last; None where nobody did.
        checkpoint: whose query wants to start.
        permits: what its user allows.

    Raises:
        RefusedStartError: it was another one, and no permit names it.
    """
    for name, last in drove.items():
        if last not in {None, checkpoint.lineage, permits.end_lineage}:
            raise driven_by_another(name, str(last), checkpoint)


def require_newest(
    committers: Mapping[str, SinkCommitter[Any]],
    drove: Mapping[str, str | None],
    view: LogView,
    checkpoint: Checkpoint,
    permits: Permits,
) -> None:
    """Look whether a sink shows what this query has decided elsewhere: then its decisions here are an older copy.

    Args:
        committers: sink -> its committer.
        drove: as above, from before the take-over.
        view: of the decisions.
        checkpoint: whose query wants to start.
        permits: what its user allows.

    Raises:
        RefusedStartError: one does.
    """
    if permits.adopt_lineage == checkpoint.lineage:
        return
    for name, committer in committers.items():
        # A sink that the newest decision does not know was added since.
        since = {} if view.decision is None else view.decision.since.get(name)
        if drove[name] == checkpoint.lineage and since is not None and committer.has_gone_on(since):
            raise gone_on(name, checkpoint)


def require_no_other_master(
    committers: Iterable[SinkCommitter[Any]],
    deciding: DecisionLog,
    decided: LogContents,
    checkpoint: Checkpoint,
    permits: Permits,
) -> None:
    """Look at every sink's own log for the query that drove it last. Read-only.

    Args:
        committers: of every sink.
        deciding: the log of this query's decisions.
        decided: what is in it.
        checkpoint: whose query wants to start.
        permits: what its user allows.

    Raises:
        RefusedStartError: it was another one, and no permit names it.
    """
    for committer in committers:
        log = committer.decision_log()
        if log is None:
            continue
        contents = decided if log is deciding else log.inspect()
        last = last_take_over(contents)
        if last is None or permits.end_lineage == last.lineage:
            continue
        # Decisions in the log itself are judged by their begin record; what else is known is who drove it.
        if last.lineage != checkpoint.lineage and last.deciding_log != log.name:
            raise other_master(log.name, last, checkpoint)
        if log is not deciding and last.deciding_log == log.name and fold(contents).begin is not None:
            raise other_master(log.name, last, checkpoint)
