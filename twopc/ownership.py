"""Check which query last owned a sink. A query must never take over another query's sink unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.errors import RefusedStartError
from twopc.log_reader import view_of
from twopc.registers import RegisterLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.batch import Batch
    from twopc.log_view import LogView
    from twopc.records import Acquired
    from twopc.settings import Setup

    #: By sink name, the query that last owned the sink; None if no query has owned it, or if the sink's own log names the owner.
    Owners = Mapping[str, str | None]


def require_same_owner(setup: Setup, owners: Owners, batch: Batch) -> None:
    """Check each sink that has no log, because another query's last decision in that sink may still be incomplete.

    Raises:
        RefusedStartError: another query owned a sink last, and no override names that query.
    """
    for name, last in owners.items():
        if last is not None and last not in {batch.query_id, setup.settings.overrides.end_query_id}:
            raise _name_in_use(f"sink {name!r}", last, batch)


def require_same_log_owner(setup: Setup, decided: LogView, batch: Batch) -> None:
    """Check the last owner in every sink's own log. This check only reads.

    ``decided`` is the view of the deciding log.

    Raises:
        RefusedStartError: another query owned a sink last, and no override names that query.
    """
    for log in setup.participants.decision_logs():
        view = decided if log is setup.log else view_of(log, log.inspect)
        last = view.acquired
        if last is None or setup.settings.overrides.end_query_id == last.query_id:
            continue
        # If the last owner's decisions are in this log, the begin record shows their query. If they are not, only the
        # owner is known.
        decides = last.deciding_log == log.name and _is_on(log.cluster, last)
        is_foreign = last.query_id != batch.query_id and not decides
        is_abandoned = log is not setup.log and decides and view.begin is not None
        if is_foreign or is_abandoned:
            raise _name_in_use(f"{log.name} (decisions in {last.deciding_log})", last.query_id, batch)


def _is_on(cluster: str, last: Acquired) -> bool:
    """Whether the log that ``last`` names is on this cluster.

    A record without a cluster names the log in a checkpoint, or an older version of the toolkit wrote the record.
    """
    return last.deciding_cluster == cluster or (not last.deciding_cluster and last.deciding_log != RegisterLog.name)


def _name_in_use(what: str, last: str, batch: Batch) -> RefusedStartError:
    return RefusedStartError(
        f"name in use: {what} was last used by query {last}; this is query {batch.query_id}. If this is the same "
        "query, but its checkpointLocation is missing or has changed, set the old checkpointLocation again, and "
        f"restart. If query {last} has ended for good, and all of its decided batches are visible, pass "
        f"override=EndQuery({last!r}). Otherwise, rename this sink. Nothing was written",
        case="name in use",
    )
