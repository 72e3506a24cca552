"""Check which query last owned a sink. A query must never take over another query's sink unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.errors import RefusedStartError
from twopc.log_reader import view_of
from twopc.new_checkpoint import begun
from twopc.other_logs import require_completable
from twopc.override import EndQuery
from twopc.refusals import decides_elsewhere
from twopc.registers import RegisterLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.batch import Batch
    from twopc.decision_log import DecisionLog
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
        if last is not None and last not in {batch.query_id, *setup.settings.overrides.end_query_ids}:
            raise _name_in_use(setup, name, f"sink {name!r}", last, batch)


def require_same_log_owner(setup: Setup, decided: LogView, batch: Batch) -> None:
    """Check every sink's own log: its last owner, and the query whose decisions it contains. This check only reads.

    ``decided`` is the view of the deciding log.

    Raises:
        RefusedStartError: another query owned a sink last, and no override names that query. Or a log other than the deciding
            log contains decisions, and the start cannot complete the last of them.
        DecisionLogDamagedError: a log in which this query does not decide is damaged.
    """
    for name, log in setup.participants.logs().items():
        view = decided if log is setup.log else view_of(log, log.inspect)
        _require_owner(setup, name, log, view, batch)
        if log is not setup.log:
            require_completable(setup, log, view, batch)


def _require_owner(setup: Setup, name: str, log: DecisionLog, view: LogView, batch: Batch) -> None:
    last, begin = view.acquired, view.begin
    if last is None:
        return
    # If the last owner's decisions are in this log, the begin record shows their query. If they are not, only the owner is
    # known.
    decides = last.deciding_log == log.name and _is_on(log.cluster, last)
    if not decides:
        owners = {last.query_id}
    elif log is not setup.log and begin is not None:
        if begin.query_id == batch.query_id:
            raise decides_elsewhere(view, batch, log.name)
        owners = {begin.query_id, last.query_id}
    else:
        return
    for owner in sorted(owners - {batch.query_id} - setup.settings.overrides.end_query_ids):
        what = f"{log.name} (decisions in {last.deciding_log})"
        raise _name_in_use(setup, name, what, owner, batch, completes=decides, view=view)


def _is_on(cluster: str, last: Acquired) -> bool:
    """Whether the log that ``last`` names is on this cluster.

    A record without a cluster names the log in a checkpoint, or an older version of the toolkit wrote the record.
    """
    return last.deciding_cluster == cluster or (not last.deciding_cluster and last.deciding_log != RegisterLog.name)


def _name_in_use(  # noqa: PLR0913 - the facts
    setup: Setup, sink: str, what: str, last: str, batch: Batch, *, completes: bool = False, view: LogView | None = None
) -> RefusedStartError:
    """Build the error. With ``completes``, the start itself would complete the last batch of the query ``last``.

    If the checkpoint is bound to the sink, this query has decided there. The other query may then have read the same input.
    """
    ending = setup.settings.overrides.in_code(EndQuery(last))
    if completes:
        way_out = f", pass all of that query's sinks and {ending}. This start then completes that query's last batch"
    else:
        way_out = f", and all of its decided batches are visible, pass {ending}"
    if sink in setup.binding.sinks:
        ways_out = (
            f"Query {last} has taken the sink over from this query. If query {last} has decided a batch since then, never start "
            f"this checkpoint again: this query would write rows again that query {last} has written. If query {last} has "
            f"decided nothing, and has ended permanently{way_out}"
        )
    else:
        ways_out = (
            "If this is the same query, but its checkpointLocation is missing or has changed, set the old checkpointLocation "
            f"again, and restart. If query {last} has ended permanently{way_out}. If it has not ended, rename this sink"
        )
    return RefusedStartError(
        f"name in use: {what} was last used by query {last}; this is query {batch.query_id}. {ways_out}"
        f"{begun(batch, last, view)}. Nothing was written",
        case="name in use",
    )
