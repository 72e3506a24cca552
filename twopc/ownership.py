"""A sink must not change hands unnoticed: neither to another query, nor to an older copy of the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.log_view import fold, last_acquired
from twopc.refusals import newer_decision, other_owner, owned_by_another

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.batch import Batch, Overrides
    from twopc.decision_log import DecisionLog
    from twopc.log_view import LogView
    from twopc.participants import Participants
    from twopc.records import LogContents


def require_same_owner(owners: Mapping[str, str | None], batch: Batch, overrides: Overrides) -> None:
    """Check the sinks without a log: the last decision of another query may still be incomplete there.

    Args:
        owners: sink -> the query that owned it last; None where nobody did.
        batch: of the query that wants to start.
        overrides: what its user allows.

    Raises:
        RefusedStartError: another query did, and no override names it.
    """
    for name, last in owners.items():
        if last not in {None, batch.query_id, overrides.end_query_id}:
            raise owned_by_another(name, str(last), batch)


def require_newest(
    participants: Participants, owners: Mapping[str, str | None], view: LogView, batch: Batch, overrides: Overrides
) -> None:
    """Check whether a sink shows a decision of this query that the log does not have: then the log is an older copy.

    Args:
        participants: the sinks.
        owners: as above, from before they were acquired.
        view: of the decisions.
        batch: of the query that wants to start.
        overrides: what its user allows.

    Raises:
        RefusedStartError: one does.
    """
    if overrides.adopt_query_id == batch.query_id:
        return
    for name, committer in participants.committers.items():
        # A sink that the newest decision does not have was added since.
        scan_start = {} if view.decision is None else view.decision.scan_start.get(name)
        if owners[name] == batch.query_id and scan_start is not None and committer.has_newer_decision(scan_start):
            raise newer_decision(name, batch)


def require_same_log_owner(
    participants: Participants, deciding: DecisionLog, decided: LogContents, batch: Batch, overrides: Overrides
) -> None:
    """Check every sink's own log for the query that owned it last. Read-only.

    Args:
        participants: the sinks.
        deciding: the log of this query's decisions.
        decided: what is in it.
        batch: of the query that wants to start.
        overrides: what its user allows.

    Raises:
        RefusedStartError: another query did, and no override names it.
    """
    for log in participants.decision_logs():
        contents = decided if log is deciding else log.inspect()
        last = last_acquired(contents)
        if last is None or overrides.end_query_id == last.query_id:
            continue
        # Decisions in the log itself are judged by their begin record; what else is known is who owned it.
        if last.query_id != batch.query_id and last.deciding_log != log.name:
            raise other_owner(log.name, last, batch)
        if log is not deciding and last.deciding_log == log.name and fold(contents).begin is not None:
            raise other_owner(log.name, last, batch)
