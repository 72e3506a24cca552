"""Start a driver: run checks, fence the previous driver, complete its last decision, and end undecided transactions (rule 1).

Another query, or an older copy of this query, must never take over a sink unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.attempt import Claim
from twopc.batch import Position, locate
from twopc.bound import FORMAT as BINDING_FORMAT
from twopc.bound import Bound
from twopc.crash_points import crash_point
from twopc.divergence import (
    require_decided,
    require_kept,
    require_known,
    require_newest,
    require_not_replaced,
    require_undecided,
    require_unwritten,
    shows_unlisted,
)
from twopc.driver_run import DriverRun
from twopc.errors import ConfigurationError, FencedError, RefusedStartError
from twopc.log_reader import view_of
from twopc.other_logs import complete, require_all_sinks
from twopc.ownership import require_same_log_owner, require_same_owner
from twopc.recovery import Outcome, lookup
from twopc.refusals import DEADLINE, LOST_DECISION, refused
from twopc.sealed import OtherVersionError

if TYPE_CHECKING:
    from twopc.batch import Batch
    from twopc.log_view import LogView
    from twopc.ownership import Owners
    from twopc.pending import Pending
    from twopc.settings import Setup


def recover(setup: Setup, batch: Batch, pending: Pending) -> DriverRun:
    """Take over as the driver. This function may be called again after an error.

    Raises:
        RefusedStartError: this query must not start.
        OtherVersionError: another version of the toolkit wrote the log.
        ConfigurationError: a sink or its store has a setting that the start cannot accept.
        TwoPhaseCommitError: recovery failed; nothing was decided.
    """
    try:
        return _recover(setup, batch, pending)
    except (OtherVersionError, RefusedStartError, ConfigurationError) as error:
        if setup.participants.may_expire and not _is_all_proven(setup, error):
            error.args = (f"{error}. {DEADLINE}",)
        raise


def _is_all_proven(setup: Setup, error: Exception) -> bool:
    """Whether a start that fails with this error leaves no decided transaction open."""
    if isinstance(error, RefusedStartError):
        # If the checkpoint is older than the sink, this query has not decided any transaction that could expire. If a decision is
        # lost, all decided transactions before it are proven.
        return error.case in {Position.UNADOPTED.value, LOST_DECISION}
    # A query without a binding has decided nothing.
    is_new = setup.binding.log is None and not setup.settings.overrides.end_query_ids
    return isinstance(error, ConfigurationError) and is_new


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
    log_epoch = setup.log.acquire(claim)  # from here on, the previous driver can decide nothing
    driver_epochs = setup.participants.acquire(claim)
    if not setup.participants.are_fenced_by(setup.log):
        # Before this driver acquired the last sink, a newer driver may have decided a batch, which this driver would sweep.
        setup.log.require_owner()
    view = view_of(setup.log, setup.log.read)  # reads up to this driver's record, so no decision is missing
    crash_point("driver.acquired")

    pending.enter("recover")
    bound = _check_binding(setup, _binding_of(view, batch))
    _require_still_startable(setup, view, batch, owners)
    view, mine = complete(setup, view, batch)
    crash_point("driver.recovered")
    run = DriverRun(
        setup, bound, log_epoch, driver_epochs, view, mine.handles, mine.evidence, mine.blockers, mine.outdated
    )
    # If the outcome is unknown, the query stops anyway, and the check would fail: an open transaction hides newer ones.
    if run.outcome is not Outcome.UNKNOWN or run.is_abandoned:
        require_known(setup, view, batch, is_swept=True)
        if require_decided(setup, view, batch, run.outcome, is_abandoned=run.is_abandoned):
            run.skip(batch)
        elif run.is_abandoned:  # without the override, require_decided refuses this start
            run.is_unlisted = shows_unlisted(setup, view, batch)
    highest = run.view.highest_batch_of(batch.query_id)
    if highest is not None and run.outcome is Outcome.COMMITTED:
        run.committed_through = highest
    return run


def _check_read_only(setup: Setup, batch: Batch) -> Owners:
    """Run every check that needs no fence, because the previous driver may be healthy. Return each sink's last owner."""
    owners = setup.participants.inspect()
    try:
        require_same_owner(setup, owners, batch)
    except RefusedStartError:
        # A restored store still names the owner that it had when it was backed up. Ending that query would not bring
        # the lost rows back. And a query that was ended cannot end its successor.
        view = view_of(setup.log, setup.log.inspect)
        require_kept(setup, owners, view, batch)
        require_not_replaced(setup, owners, view, batch)
        raise
    if setup.binding.is_listed_at_once:
        _check_binding(setup, 0)  # check before reading a log that may belong to another sink
    decided = view_of(setup.log, setup.log.inspect)
    _check_binding(setup, _binding_of(decided, batch))
    decided = _startable(setup, decided, batch, owners)
    require_same_log_owner(setup, decided, batch)
    setup.participants.decode_decided(decided.decision)
    highest = decided.highest_batch_of(batch.query_id)
    if highest is None or highest < batch.batch_id:
        require_unwritten(setup, batch)
    return owners


def _startable(setup: Setup, view: LogView, batch: Batch, owners: Owners) -> LogView:
    """Check that the query may start. Return the view on which the check is based.

    The previous driver may still be deciding. If it decides after the log was read but before a sink is read, the
    sink's store contains a decision or a repair that is missing from the view. So before the start is refused, the log is read
    again. If the log has changed, the check is repeated with the new view.
    """
    while True:
        try:
            _require_startable(setup, view, batch, owners)
        except RefusedStartError:
            newer = view_of(setup.log, setup.log.inspect)
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
        last = view_of(setup.log, setup.log.inspect).acquired
        if last is None or last.run == setup.driver_run_id:
            raise
        raise FencedError(
            f"{setup.log.name}: another driver has started, and has fenced this one. No data is at risk. Stop this run"
        ) from error


def _require_startable(setup: Setup, view: LogView, batch: Batch, owners: Owners) -> None:
    position = locate(view, batch, setup.settings.overrides)
    case = lookup(view.status, Outcome.COMMITTED, position, staged=False)
    if case.step.stops:
        if position is Position.GAP:
            require_undecided(setup, owners, view, batch)
        raise refused(position, view, batch, setup.log.name, setup.settings.overrides)
    require_all_sinks(setup, setup.log, view, batch)
    require_kept(setup, owners, view, batch)
    require_not_replaced(setup, owners, view, batch)
    require_newest(setup, owners, view, batch)
    require_known(setup, view, batch, is_swept=False)


def _binding_of(view: LogView, batch: Batch) -> int:
    """Return the number of the binding in this query's last decision; 0 if the query has no decision."""
    last = view.decision
    return last.binding if last is not None and last.query_id == batch.query_id else 0


def _check_binding(setup: Setup, decided: int) -> Bound:
    identity, sinks = setup.log.identity(), setup.participants.bindings()
    bound = Bound(format=BINDING_FORMAT, log=setup.log.name, log_identity=identity, sinks=sinks)
    setup.binding.check(bound, setup.settings.overrides, decided=decided)
    return bound
