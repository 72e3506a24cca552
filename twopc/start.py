"""Start a driver: run checks, fence the previous driver, complete its last decision, and end undecided transactions (rule 1).

Another query, or an older copy of this query, must never take over a sink unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.attempt import Claim, Known
from twopc.batch import Position, locate
from twopc.binding import FORMAT as BINDING_FORMAT
from twopc.binding import Bound
from twopc.crash_points import crash_point
from twopc.driver_run import DriverRun
from twopc.errors import DecisionLogDamagedError, FencedError, RefusedStartError
from twopc.log_view import LogView, fold
from twopc.recovery import Outcome, lookup
from twopc.refusals import DEADLINE, damaged, refused
from twopc.sealed import OtherVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twopc.batch import Batch
    from twopc.decision_log import DecisionLog
    from twopc.pending import Pending
    from twopc.records import LogContents
    from twopc.settings import Setup

    #: By sink name, the query that last owned the sink; None if no query has owned it, or if the sink's own log names the owner.
    Owners = Mapping[str, str | None]


def recover(setup: Setup, batch: Batch, pending: Pending) -> DriverRun:
    """Take over as the driver. This function may be called again after an error.

    Raises:
        RefusedStartError: this query must not start.
        OtherVersionError: another version of the toolkit wrote the log.
        TwoPhaseCommitError: recovery failed; nothing was decided.
    """
    try:
        return _recover(setup, batch, pending)
    except OtherVersionError as error:
        if setup.participants.prepare_timeout_ms is None:
            raise
        raise OtherVersionError(f"{error}. {DEADLINE}") from None
    except RefusedStartError as error:
        # If the checkpoint is older than the sink, no transaction of this query is decided, so none can expire.
        if setup.participants.prepare_timeout_ms is None or error.case == Position.UNADOPTED.value:
            raise
        raise RefusedStartError(f"{error}. {DEADLINE}", case=error.case) from None


def _recover(setup: Setup, batch: Batch, pending: Pending) -> DriverRun:
    pending.enter("inspect")
    owners = _check_read_only(setup, batch)
    crash_point("driver.inspected")

    pending.enter("acquire")
    name, cluster = setup.log.name, setup.log.cluster
    claim = Claim(
        query_id=batch.query_id,
        run=setup.driver_run_id,
        deciding_log=name,
        deciding_cluster=cluster,
        decides_in_checkpoint=setup.decides_in_checkpoint,
    )
    log_epoch = setup.log.acquire(claim)  # the previous driver can decide nothing after this
    driver_epochs = setup.participants.acquire(claim)
    if not setup.participants.are_fenced_by(setup.log):
        # Before this driver acquired the last sink, a newer driver may have decided a batch, which this driver would sweep.
        setup.log.require_owner()
    view = _view_of(setup.log, setup.log.read)  # up to this driver's record, so nothing is missing
    crash_point("driver.acquired")

    pending.enter("recover")
    bound = _check_binding(setup, _binding_of(view, batch))
    _require_still_startable(setup, view, batch, owners)
    decision = view.decision
    handles = setup.participants.decode_decided(decision)
    evidence = setup.participants.recover(handles, view.scan_start)
    crash_point("driver.recovered")
    run = DriverRun(setup, bound, log_epoch, driver_epochs, view, handles, evidence)
    # After an unknown outcome, the query stops anyway, and the open transaction would hide the newer ones.
    if run.outcome is not Outcome.UNKNOWN or run.is_abandoned:
        _require_known(setup, view, batch, is_swept=True)
    highest = view.highest_batch_of(batch.query_id)
    if highest is not None and run.outcome is Outcome.COMMITTED:
        run.committed_through = highest
    return run


def _check_read_only(setup: Setup, batch: Batch) -> Owners:
    """Run every check that needs no fence, because the previous driver may be healthy. Return each sink's last owner."""
    owners = setup.participants.inspect()
    try:
        require_same_owner(setup, owners, batch)
    except RefusedStartError:
        # A restored store names its owner at the time of the backup. Ending that query would not bring the lost rows back.
        _require_kept(setup, owners, _view_of(setup.log, setup.log.inspect), batch)
        raise
    if setup.binding.is_listed_at_once:
        _check_binding(setup, 0)  # before reading a log that may belong to another sink
    decided = _view_of(setup.log, setup.log.inspect)
    _check_binding(setup, _binding_of(decided, batch))
    decided = _startable(setup, decided, batch, owners)
    require_same_log_owner(setup, decided, batch)
    setup.participants.decode_decided(decided.decision)
    highest = decided.highest_batch_of(batch.query_id)
    if highest is None or highest < batch.batch_id:
        _require_unwritten(setup, batch)
    return owners


def _view_of(log: DecisionLog, read: Callable[[], LogContents]) -> LogView:
    """Read a log, and reduce it to a view. If the log is too damaged to read, raise the same error as for other damage.

    Raises:
        OtherVersionError: the log is intact, but another version of the toolkit wrote it.
        DecisionLogDamagedError: the log is damaged.
    """
    try:
        return fold(read())
    except OtherVersionError as error:
        raise OtherVersionError(f"decision log {log.name}: {error}") from error
    except DecisionLogDamagedError as error:
        raise damaged(LogView(damage=str(error)), log.name) from error


def _startable(setup: Setup, view: LogView, batch: Batch, owners: Owners) -> LogView:
    """Check that the query may start. Return the view on which the check is based.

    The previous driver may still be deciding. If it decides after the log was read but before a sink is read, the sink shows a
    decision or a repair that is missing from the view. A refusal therefore counts only if the log has neither.
    """
    while True:
        try:
            _require_startable(setup, view, batch, owners)
        except RefusedStartError:
            newer = _view_of(setup.log, setup.log.inspect)
            if (newer.kept, newer.decision, newer.begin) == (view.kept, view.decision, view.begin):
                raise
            view = newer
        else:
            return view


def _require_still_startable(setup: Setup, view: LogView, batch: Batch, owners: Owners) -> None:
    """Check again after this driver has acquired all sinks and logs.

    If the start is refused now, the cause may be that another driver has fenced this one.

    Raises:
        FencedError: another driver has fenced this one.
        RefusedStartError: this query must not start.
    """
    try:
        _require_startable(setup, view, batch, owners)
    except RefusedStartError as error:
        last = _view_of(setup.log, setup.log.inspect).acquired
        if last is None or last.run == setup.driver_run_id:
            raise
        raise FencedError(
            f"{setup.log.name}: another driver has started, and has fenced this one. No data is at risk. Stop this run"
        ) from error


def _require_startable(setup: Setup, view: LogView, batch: Batch, owners: Owners) -> None:
    position = locate(view, batch, setup.settings.overrides)
    case = lookup(view.status, Outcome.COMMITTED, position, staged=False)
    if case.step.stops:
        raise refused(case, position, view, batch, setup.log.name)
    _require_kept(setup, owners, view, batch)
    _require_newest(setup, owners, view, batch)
    _require_known(setup, view, batch, is_swept=False)


def _binding_of(view: LogView, batch: Batch) -> int:
    """Return the number of the binding in this query's last decision; 0 if the query has no decision."""
    last = view.decision
    return last.binding if last is not None and last.query_id == batch.query_id else 0


def _check_binding(setup: Setup, decided: int) -> Bound:
    identity, sinks = setup.log.identity(), setup.participants.bindings()
    bound = Bound(format=BINDING_FORMAT, log=setup.log.name, log_identity=identity, sinks=sinks)
    setup.binding.check(bound, add_sink=setup.settings.overrides.add_sink, decided=decided)
    return bound


def require_same_owner(setup: Setup, owners: Owners, batch: Batch) -> None:
    """Check each sink that has no log, because another query's last decision in that sink may still be incomplete.

    Raises:
        RefusedStartError: another query owned a sink last, and no override names that query.
    """
    for name, last in owners.items():
        if last is not None and last not in {batch.query_id, setup.settings.overrides.end_query_id}:
            raise _name_in_use(f"sink {name!r}", last, batch)


def _require_kept(setup: Setup, owners: Owners, view: LogView, batch: Batch) -> None:
    """Refuse the start if a sink's store was restored, and lacks decisions of this query.

    This applies whichever owner the store names, because if this query took the sink over after the backup, the restored store
    names an earlier owner.

    Raises:
        RefusedStartError: a sink does not show a decision that is in the log.
    """
    mine, begin = batch.query_id, view.begin
    if begin is None or begin.query_id != mine or (begin.ends is not None and view.decision is None):
        return  # a sink need not keep an ended query's decisions
    for name, committer in setup.participants.committers.items():
        # A sink that is not in the newest decision was added later.
        scan_start = view.scan_start.get(name)
        if scan_start is not None and committer.lacks_decisions(scan_start):
            raise RefusedStartError(
                f"older store: decisions in {setup.log.name} (up to batch {view.highest_batch}) are missing from the store "
                f"of sink {name!r}. The store was restored from a backup, or a failover lost acknowledged writes, so the "
                "rows of these batches are lost. Continuing would leave an unnoticed gap. Restore a newer state of the "
                "store, or restore the checkpoint and the query's other sinks to the time of the backup. To accept the gap "
                f"instead, start with a new checkpoint and override=EndQuery({owners[name] or mine!r}). Nothing was written",
                case="older store",
            )


def _require_newest(setup: Setup, owners: Owners, view: LogView, batch: Batch) -> None:
    """Refuse the start if the log lacks a decision that a sink shows. The checkpoint is then outdated.

    ``owners`` was read before the sinks were acquired.

    Raises:
        RefusedStartError: a sink shows a decision that is not in the log.
    """
    mine = batch.query_id
    for name, committer in setup.participants.committers.items():
        # A sink that is not in the newest decision was added later. Any decision that it shows is then a newer one.
        if owners[name] == mine and committer.has_newer_decision(view.scan_start.get(name, {})):
            raise _older_copy(name, batch)


def _require_known(setup: Setup, view: LogView, batch: Batch, *, is_swept: bool) -> None:
    """Refuse the start if the decisions are in the checkpoint, but lack a transaction that a sink with a log shows.

    No log of such a sink contains the decisions, and no control record does, so only its transactions tell. They also tell in a
    second way: if two copies have decided the same batch, one copy's transactions are missing from the other's decision.

    The first check must not stop a healthy driver, so another run may still commit after it. The second check follows this
    driver's sweep. After that, the other run can commit nothing more: its open transactions have ended, and the sink confirms
    no new ones.

    Raises:
        RefusedStartError: a sink shows a transaction that is not in the log.
    """
    if not setup.decides_in_checkpoint:
        return  # the copies use the same log
    highest = view.highest_batch_of(batch.query_id)
    if highest is None:  # the log's decisions, if any, are another query's
        first, decision, starts = batch.batch_id, None, {}
    elif (
        view.decision is None or batch.batch_id > highest + 1
    ):  # batches were abandoned, or skipped with the user's permission
        first, decision, starts = max(batch.batch_id, highest + 1), None, view.scan_start
    else:
        first, decision, starts = highest, view.decision, view.scan_start
    known = Known[Any](batch.query_id, first, (), is_swept)
    for name in setup.participants.with_unknown_commits(known, setup.participants.decode_decided(decision), starts):
        raise _older_copy(name, batch, has_fenced=is_swept)


def _older_copy(name: str, batch: Batch, *, has_fenced: bool = False) -> RefusedStartError:
    fenced = ". This start has stopped the other run, so restart that run" if has_fenced else ""
    return RefusedStartError(
        f"older copy: sink {name!r} shows a decision that this checkpoint (at batch {batch.batch_id}) does not "
        "contain. The checkpoint was copied or restored, and another run continued from it. Continuing would write "
        "batches twice. Use the checkpoint of the run that wrote last, or start with a new checkpoint and "
        f"override=EndQuery({batch.query_id!r}). Nothing was written{fenced}",
        case="older copy",
    )


def _require_unwritten(setup: Setup, batch: Batch) -> None:
    """Reject a batch that the checkpoint's previous writer has made visible, but that Spark has not recorded.

    Raises:
        RefusedStartError: a sink's store contains the batch.
    """
    for name, committer in setup.participants.committers.items():
        newest = committer.newest_batch_of_others(batch.query_id)
        if newest is not None and newest >= batch.batch_id:
            raise RefusedStartError(
                f"written already: another writer of query {batch.query_id} has written batch {newest} to the store of sink "
                f"{name!r}, and this start is at batch {batch.batch_id}. Writing the batch again would duplicate its rows. "
                "Nothing was written. Start the previous version of the query again with this checkpoint. That "
                "version records the batch without writing it again. Stop that version when it is idle, then start "
                "this one",
                case="written already",
            )


def require_same_log_owner(setup: Setup, decided: LogView, batch: Batch) -> None:
    """Check the last owner in every sink's own log. This check only reads.

    ``decided`` is the view of the deciding log.

    Raises:
        RefusedStartError: another query owned a sink last, and no override names that query.
    """
    for log in setup.participants.decision_logs():
        view = decided if log is setup.log else _view_of(log, log.inspect)
        last = view.acquired
        if last is None or setup.settings.overrides.end_query_id == last.query_id:
            continue
        # If the last owner's decisions are in this log, the begin record shows their query. If not, only the owner is known.
        decides = last.deciding_log == log.name and last.deciding_cluster in {"", log.cluster}
        is_foreign = last.query_id != batch.query_id and not decides
        is_abandoned = log is not setup.log and decides and view.begin is not None
        if is_foreign or is_abandoned:
            raise _name_in_use(f"{log.name} (decisions in {last.deciding_log})", last.query_id, batch)


def _name_in_use(what: str, last: str, batch: Batch) -> RefusedStartError:
    return RefusedStartError(
        f"name in use: {what} was last used by query {last}; this is query {batch.query_id}. If this is the same "
        "query, but its checkpointLocation is missing or has changed, set the old checkpointLocation again, and "
        f"restart. If query {last} has ended for good, and all of its decided batches are visible, pass "
        f"override=EndQuery({last!r}). Otherwise, rename this sink. Nothing was written",
        case="name in use",
    )
