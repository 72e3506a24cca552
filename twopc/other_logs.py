"""Complete the decisions in the logs in which this query does not decide.

A query may take over a sink whose own log contains the last decision of a query that has ended. If that query's driver died after
the decision, the sweep would end the decided transactions. So a start commits them first. Then it closes the log with a begin
record, so that later starts need not prove the commit again: by then, the evidence may be deleted. If the start dies in between,
the log is still open for the next start, although the sink has a new owner.

This query may have taken over one of the ended query's sinks earlier, without the sink that has the log. Then the ended query's
transactions in the former sink were committed or ended at that time, and the store may no longer have the evidence. So this start
leaves such a sink alone: a sweep would end the transactions that this query itself has decided there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from twopc import refusals, repair
from twopc.attempt import Evidence
from twopc.log_reader import view_of
from twopc.offsets import is_same
from twopc.records import Begin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    A restored savepoint continues the ended query's batches under a new id. The offsets of any other query say nothing, even if
    they are equal. The binding refuses the start first if it names the sink. A new checkpoint has no binding yet.
    """
    last, overrides = view.decision, setup.settings.overrides
    if last is None or overrides.abandons(last.query_id, last.batch_id, view.ended):
        return
    continues = batch.query_id in {last.query_id, overrides.adopt_query_id}
    prior = batch.offsets_of(last.batch_id) if continues and batch.batch_id > last.batch_id else None
    has_moved_past = prior is not None and is_same(last.offsets, prior)
    if not has_moved_past and (sinks := setup.participants.left_out(last)):
        raise refusals.left_out(log.name, last, sinks, overrides)


def scan_starts_of_others(setup: Setup, sink: str) -> Iterator[Mapping[str, Any]]:
    """Yield where to start the search for evidence of the newest decision in each other log, if it includes the sink.

    Raises:
        TwoPhaseCommitError: a log could not be read.
    """
    for log in setup.participants.decision_logs():
        if log is not setup.log and (found := view_of(log, log.inspect).scan_start.get(sink)):
            yield found


def complete_others(setup: Setup, view: LogView, batch: Batch) -> None:
    """Complete the last decision in every other log. This driver owns the logs, so the decisions are final.

    ``view`` is the view of the deciding log.

    Raises:
        CommitBlockedError: a decision's commit cannot be proven now.
        InDoubtError: a decision has lost transactions, and the user has not abandoned its batch.
        TwoPhaseCommitError: a log could not be read or closed. A restart tries again.
    """
    is_own = view.decision is not None and view.decision.query_id == batch.query_id
    used = view.scan_start.keys() if is_own else frozenset[str]()
    for name, committer in setup.participants.committers.items():
        log = committer.decision_log()
        if log is None or log is setup.log:
            continue
        other = view_of(log, log.read)
        require_completable(setup, log, other, batch)
        # If this query has used the log's sink, it closed the log then, so this decision is newer than its own.
        settled = frozenset[str]() if name in used else used
        decoded = setup.participants.decode_decided(other.decision)
        handles = {key: handle for key, handle in decoded.items() if key[0] not in settled}
        if other.decision is not None:
            log.append([_completed(setup, other, other.decision, handles, batch)])


def _completed(setup: Setup, view: LogView, last: Decision, handles: Handles, batch: Batch) -> Begin:
    """Commit these transactions of a decision. Return the record that closes its log."""
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
    return Begin(query_id=last.query_id, first_batch=last.batch_id + 1, prior_offsets=last.offsets, abandons=bool(rest))


def _unproven(
    setup: Setup, last: Decision, handles: Handles, evidence: Mapping[TaskKey, Evidence], batch: Batch
) -> Exception:
    unproven = [handles[key].transaction for key, found in evidence.items() if found is Evidence.UNKNOWN]
    if unproven:
        return refusals.blocked(last, unproven, setup.participants.blockers())
    lost = {key for key, found in evidence.items() if found is Evidence.ABORTED}
    staged = refusals.staged_elsewhere(last, repair.unseen_files(last, lost, setup.staging), batch.query_id)
    return refusals.in_doubt(last, handles, evidence, refusals.LEFT_BEHIND, staged)
