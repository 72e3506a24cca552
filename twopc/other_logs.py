"""Complete the decisions in the logs in which this query does not decide.

A query may take over a sink whose own log contains the last decision of a query that has ended. If that query's driver died after
the decision, the sweep would end the decided transactions. So a start commits them first. Then it closes the log with a begin
record, so that later starts need not prove the commit again: by then, the evidence may be deleted. If the start dies in between,
the log is still open for the next start, although the sink has a new owner.

This query may already have used one of the ended query's sinks, without the sink that has the log. The store may then have no
evidence for the ended query's transactions there, and a sweep could end those that this query itself has decided. So the start is
refused, unless the user abandons the batch. It then leaves such a sink alone.
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
    from collections.abc import Collection, Iterator, Mapping

    from twopc.attempt import TaskKey
    from twopc.batch import Batch
    from twopc.decision_log import DecisionLog
    from twopc.log_view import LogView
    from twopc.participants import Handles
    from twopc.records import Decision
    from twopc.settings import Setup

logger = logging.getLogger(__name__)


def used_before(sink: str, decided: LogView, batch: Batch) -> frozenset[str]:
    """Return the sinks in which this query has decided before it used the sink of another log.

    Args:
        sink: the name of the sink that has the other log.
        decided: the view of the deciding log.
        batch: this query's batch.
    """
    is_own = decided.decision is not None and decided.decision.query_id == batch.query_id
    # If this query has used the log's sink, it closed the log then, so the decision in the log is newer than its own.
    return frozenset() if not is_own or sink in decided.scan_start else frozenset(decided.scan_start)


def require_completable(setup: Setup, log: DecisionLog, view: LogView, batch: Batch, used: Collection[str]) -> None:
    """Check that this start can complete the last decision in another log. This check only reads.

    ``used`` is the result of :func:`used_before`.

    Raises:
        DecisionLogDamagedError: the log is damaged, so it may have lost another query's decision.
        RefusedStartError: the decision has transactions in a sink that this start does not pass, or that this query has
            already used.
        ConfigurationError: a sink cannot read its handles.
    """
    is_ours = view.acquired is not None and view.acquired.query_id == batch.query_id
    if view.damage is not None and not is_ours:
        raise refusals.damaged(view, log.name)
    require_all_sinks(setup, log, view, batch)
    last = view.decision
    shared = sorted({sink for sink, _ in setup.participants.decode_decided(last)} & set(used))
    if last is not None and shared and not _is_abandoned(setup, view, last):
        raise refusals.used_already(log.name, last, shared, setup.settings.overrides)


def require_all_sinks(setup: Setup, log: DecisionLog, view: LogView, batch: Batch) -> None:
    """Refuse a start that leaves out a sink in which the last decided batch may still be invisible.

    Nobody else would commit this sink's transactions. The batch is complete if the engine has moved past it in this checkpoint:
    the engine does so only when the batch is visible in every sink, unless the user's function swallows the toolkit's errors.
    A restored savepoint continues the ended query's batches under a new id. The offsets of any other query say nothing, even if
    they are equal. The binding refuses the start first if it names the sink. A new checkpoint has no binding yet.
    """
    last, overrides = view.decision, setup.settings.overrides
    if last is None or _is_abandoned(setup, view, last):
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
    for log in setup.other_logs.values():
        if found := view_of(log, log.inspect).scan_start.get(sink):
            yield found


def complete_others(setup: Setup, view: LogView, batch: Batch) -> None:
    """Complete the last decision in every other log. This driver owns the logs, so the decisions are final.

    ``view`` is the view of the deciding log.

    Raises:
        CommitBlockedError: a decision's commit cannot be proven now.
        InDoubtError: a decision has lost transactions, and the user has not abandoned its batch.
        TwoPhaseCommitError: a log could not be read or closed. A restart tries again.
    """
    for sink, log in setup.other_logs.items():
        other, used = view_of(log, log.read), used_before(sink, view, batch)
        require_completable(setup, log, other, batch, used)
        if other.decision is not None:
            log.append([_completed(setup, other, other.decision, batch, used)])


def _completed(setup: Setup, view: LogView, last: Decision, batch: Batch, used: Collection[str]) -> Begin:
    """Commit a decision's transactions, except in the used sinks. Return the record that closes the log."""
    handles = setup.participants.decode_decided(last)
    others = {key: handle for key, handle in handles.items() if key[0] not in used}
    evidence = dict.fromkeys(handles, Evidence.UNKNOWN)
    evidence |= setup.participants.recover(others, view.scan_start, only_its_sinks=True)
    rest = [handles[key].transaction for key, found in evidence.items() if found is not Evidence.COMMITTED]
    if rest and not _is_abandoned(setup, view, last):
        raise _unproven(setup, last, handles, evidence, batch)
    if rest:
        logger.warning(
            "override=Abandon(%d, %r) abandons this batch's transactions that are not proven visible: %s",
            last.batch_id,
            last.query_id,
            ", ".join(rest),
        )
    # The record does not end the query, because this query has not decided anything yet, and its first batch may be rejected.
    return Begin(query_id=last.query_id, first_batch=last.batch_id + 1, prior_offsets=last.offsets, abandons=bool(rest))


def _is_abandoned(setup: Setup, view: LogView, last: Decision) -> bool:
    return setup.settings.overrides.abandons(last.query_id, last.batch_id, view.ended)


def _unproven(
    setup: Setup, last: Decision, handles: Handles, evidence: Mapping[TaskKey, Evidence], batch: Batch
) -> Exception:
    unproven = [handles[key].transaction for key, found in evidence.items() if found is Evidence.UNKNOWN]
    if unproven:
        return refusals.blocked(last, unproven, setup.participants.blockers())
    lost = {key for key, found in evidence.items() if found is Evidence.ABORTED}
    staged = refusals.staged_elsewhere(last, repair.unseen_files(last, lost, setup.staging), batch.query_id)
    return refusals.in_doubt(last, handles, evidence, refusals.LEFT_BEHIND, staged)
