"""Complete the decisions in the logs in which this query does not decide.

A query may take over a sink whose own log contains the last decision of a query that has ended. If that query's driver died after
the decision, the sweep would end the decided transactions. So a start commits them first. Then it closes the log with a begin
record, so that later starts need not prove the commit again: by then, the evidence may be deleted. If the start dies in between,
the log is still open for the next start, although the sink has a new owner.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twopc import refusals, repair
from twopc.attempt import Evidence
from twopc.log_reader import view_of
from twopc.offsets import is_same
from twopc.records import Begin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.attempt import TaskKey
    from twopc.batch import Batch
    from twopc.decision_log import DecisionLog
    from twopc.log_view import LogView
    from twopc.participants import Handles
    from twopc.records import Decision
    from twopc.settings import Setup

logger = logging.getLogger(__name__)


def require_completable(setup: Setup, log: DecisionLog, view: LogView, batch: Batch) -> None:
    """Check that this start can complete the last decision in another log. This check only reads.

    Raises:
        DecisionLogDamagedError: the log is damaged, so it may have lost another query's decision.
        RefusedStartError: the decision has transactions in a sink that this start does not pass.
        ConfigurationError: a sink cannot read its handles.
    """
    is_ours = view.acquired is not None and view.acquired.query_id == batch.query_id
    if view.damage is not None and not is_ours:
        raise refusals.damaged(view, log.name)
    require_all_sinks(setup, log, view, batch)
    setup.participants.decode_decided(view.decision)


def require_all_sinks(setup: Setup, log: DecisionLog, view: LogView, batch: Batch) -> None:
    """Refuse a start that leaves out a sink in which the last decided batch may still be invisible.

    Nobody else would commit this sink's transactions. The batch is complete if the engine has moved past it in this checkpoint:
    the engine does so only when the batch is visible in every sink, unless the user's function swallows the toolkit's errors.
    The binding refuses the start first if it names the sink. A new checkpoint has no binding yet.
    """
    last = view.decision
    if last is None or setup.settings.overrides.abandons(last.query_id, last.batch_id, view.ended):
        return
    prior = batch.offsets_of(last.batch_id) if batch.batch_id > last.batch_id else None
    has_moved_past = prior is not None and is_same(last.offsets, prior)
    if not has_moved_past and (sinks := setup.participants.left_out(last)):
        raise refusals.left_out(log.name, last, sinks, batch.query_id)


def complete_others(setup: Setup, batch: Batch) -> None:
    """Complete the last decision in every other log. This driver owns the logs, so the decisions are final.

    Raises:
        CommitBlockedError: a decision's commit cannot be proven now.
        InDoubtError: a decision has lost transactions, and the user has not abandoned its batch.
        TwoPhaseCommitError: a log could not be read or closed. A restart tries again.
    """
    for log in setup.participants.decision_logs():
        if log is setup.log:
            continue
        view = view_of(log, log.read)
        require_completable(setup, log, view, batch)
        if view.decision is not None:
            _complete(setup, log, view, view.decision, batch)


def _complete(setup: Setup, log: DecisionLog, view: LogView, last: Decision, batch: Batch) -> None:
    handles = setup.participants.decode_decided(last)
    evidence = setup.participants.recover(handles, view.scan_start, only_its_sinks=True)
    rest = [handles[key].transaction for key, found in evidence.items() if found is not Evidence.COMMITTED]
    if rest and not setup.settings.overrides.abandons(last.query_id, last.batch_id, view.ended):
        raise _unproven(setup, last, handles, evidence, batch)
    if rest:
        logger.warning(
            "override=Abandon(%d, %r) abandons this batch's transactions that are not visible: %s",
            last.batch_id,
            last.query_id,
            ", ".join(rest),
        )
    # The record does not end the query, because this query has not decided anything yet, and its first batch may be rejected.
    begin = Begin(
        query_id=last.query_id, first_batch=last.batch_id + 1, prior_offsets=last.offsets, abandons=bool(rest)
    )
    log.append([begin])


def _unproven(
    setup: Setup, last: Decision, handles: Handles, evidence: Mapping[TaskKey, Evidence], batch: Batch
) -> Exception:
    unproven = [handles[key].transaction for key, found in evidence.items() if found is Evidence.UNKNOWN]
    if unproven:
        return refusals.blocked(last, unproven, setup.participants.blockers())
    lost = {key for key, found in evidence.items() if found is Evidence.ABORTED}
    staged = refusals.staged_elsewhere(last, repair.unseen_files(last, lost, setup.staging), batch.query_id)
    return refusals.in_doubt(last, handles, evidence, refusals.LEFT_BEHIND, staged)
