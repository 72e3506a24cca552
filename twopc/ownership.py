"""A sink must not be taken unnoticed from another query, nor from the same one that has gone on elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.log_view import fold, last_acquired
from twopc.refusals import driven_by_another, newer_decision, other_master

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twopc.batch import Batch, Overrides
    from twopc.committer import SinkCommitter
    from twopc.decision_log import DecisionLog
    from twopc.log_view import LogView
    from twopc.records import LogContents


def require_not_driven_by_another(drove: Mapping[str, str | None], batch: Batch, overrides: Overrides) -> None:
    """Look at what sinks without a log say: the last decision of another query may still be without its rows there.

    Args:
        drove: sink -> the query that drove it last; None where nobody did.
        batch: whose query wants to start.
        overrides: what its user allows.

    Raises:
        RefusedStartError: it was another one, and no permit names it.
    """
    for name, last in drove.items():
        if last not in {None, batch.query_id, overrides.end_query_id}:
            raise driven_by_another(name, str(last), batch)


def require_newest(
    committers: Mapping[str, SinkCommitter[Any]],
    drove: Mapping[str, str | None],
    view: LogView,
    batch: Batch,
    overrides: Overrides,
) -> None:
    """Look whether a sink shows what this query has decided elsewhere: then its decisions here are an older copy.

    Args:
        committers: sink -> its committer.
        drove: as above, from before the take-over.
        view: of the decisions.
        batch: whose query wants to start.
        overrides: what its user allows.

    Raises:
        RefusedStartError: one does.
    """
    if overrides.adopt_query_id == batch.query_id:
        return
    for name, committer in committers.items():
        # A sink that the newest decision does not know was added since.
        scan_start = {} if view.decision is None else view.decision.scan_start.get(name)
        if drove[name] == batch.query_id and scan_start is not None and committer.has_newer_decision(scan_start):
            raise newer_decision(name, batch)


def require_no_other_master(
    committers: Iterable[SinkCommitter[Any]],
    deciding: DecisionLog,
    decided: LogContents,
    batch: Batch,
    overrides: Overrides,
) -> None:
    """Look at every sink's own log for the query that drove it last. Read-only.

    Args:
        committers: of every sink.
        deciding: the log of this query's decisions.
        decided: what is in it.
        batch: whose query wants to start.
        overrides: what its user allows.

    Raises:
        RefusedStartError: it was another one, and no permit names it.
    """
    for committer in committers:
        log = committer.decision_log()
        if log is None:
            continue
        contents = decided if log is deciding else log.inspect()
        last = last_acquired(contents)
        if last is None or overrides.end_query_id == last.query_id:
            continue
        # Decisions in the log itself are judged by their begin record; what else is known is who drove it.
        if last.query_id != batch.query_id and last.deciding_log != log.name:
            raise other_master(log.name, last, batch)
        if log is not deciding and last.deciding_log == log.name and fold(contents).begin is not None:
            raise other_master(log.name, last, batch)
