"""Complete the decisions in the logs in which this query does not decide.

A query may take over a sink whose own log contains the last decision of a query that has ended. If that query's driver died after
the decision, the sweep would end the decided transactions. So a start first commits the last decision in every log, and spares
the transactions of all these decisions. The start closes each completed log with a begin record. Later starts then do not have
to prove the commit again. By that time, the evidence may have been deleted. The start tries to commit all decisions before it
judges those that are left. Before that, the user cannot know what to give up. If the start dies in between, the log is still open
for the next start, even though the sink has a new owner.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from twopc import refusals
from twopc.attempt import Evidence
from twopc.errors import InDoubtError, RetriableError
from twopc.last_decision import LastDecision, in_order
from twopc.log_reader import view_of
from twopc.log_view import fold_more
from twopc.offsets import is_same
from twopc.records import Begin, Decision
from twopc.unproven import LEFT_BEHIND, Unproven, abandon, together

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twopc.attempt import TaskKey
    from twopc.batch import Batch
    from twopc.decision_log import DecisionLog
    from twopc.errors import CommitBlockedError, TwoPhaseCommitError
    from twopc.log_view import LogView
    from twopc.override import Overrides
    from twopc.settings import Setup

logger = logging.getLogger(__name__)


def require_completable(setup: Setup, log: DecisionLog, view: LogView, batch: Batch) -> None:
    """Check that this start can try to complete the last decision in another log. This check only reads.

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

    Nobody else would commit this sink's transactions. The batch is complete if the engine has moved past it in this checkpoint.
    The engine moves on only when the batch is visible in every sink, unless the user's function swallows the toolkit's errors.
    A restored savepoint continues the ended query's batches under a new id. The offsets of any other query prove nothing, even
    if they are equal. If the binding names the sink, the check of the binding has already refused the start. However, a new
    checkpoint has no binding yet.
    """
    last, overrides = view.decision, setup.settings.overrides
    sinks = setup.participants.left_out(last) if last is not None else []
    if last is None or not sinks or _abandons(setup, log, view, last, sinks):
        return
    is_ahead = _continues(setup, last, batch) and batch.batch_id > last.batch_id
    prior = batch.offsets_of(last.batch_id) if is_ahead else None
    if prior is None or not is_same(last.offsets, prior):
        raise refusals.left_out(log.name, last, sinks, overrides)


def _continues(setup: Setup, last: Decision, batch: Batch) -> bool:
    """Whether the query that starts continues the batches of the query that made this decision."""
    return batch.query_id in {last.query_id, setup.settings.overrides.adopt_query_id}


def _abandons(setup: Setup, log: DecisionLog, view: LogView, last: Decision, sinks: Sequence[str]) -> bool:
    # The decision in another log belongs to another query. An override without an id may be meant for this query's own batch.
    needs_id = log is not setup.log or bool(view.ended)
    return setup.settings.overrides.abandons(last.query_id, last.batch_id, sinks, needs_id=needs_id)


def complete(setup: Setup, view: LogView, batch: Batch) -> tuple[LogView, LastDecision]:
    """Commit the last decision in every log, and close each log whose decision is complete.

    The deciding log stays open, so that a later start proves its decision again. But if a newer decision may destroy the proof,
    the deciding log is closed, too. ``view`` is the view of the deciding log. This driver owns all logs, so their decisions are
    final.

    Returns:
        the deciding log's new view, and what is left to do for its last decision.

    Raises:
        CommitBlockedError: the decision in another log cannot be proven committed now.
        InDoubtError: the decision in another log has lost transactions, or can no longer be proven, and the user has not
            abandoned its batch.
        TwoPhaseCommitError: a log could not be read or closed, or a sink has failed. A restart tries again.
    """
    mine, *others = decisions = _last_decisions(setup, view, batch)
    failed, has_abandoned = None, False
    for one in in_order(decisions):
        try:
            setup.participants.recover(one, decisions, batch.query_id)
            _tell_unneeded(one)
            is_newest = not any(one.precedes(other) for other in decisions)
            if one.decision is None or (one is mine and is_newest) or not (one.is_proven or one.is_abandoned):
                continue
            # Close the log now, because the store may no longer prove this decision once a newer one is committed.
            has_abandoned |= one.is_abandoned
            offset, begin = _record_end(one, one.decision)
        except RetriableError as error:
            failed = failed or error
            continue
        view = fold_more(view, offset, [begin]) if one is mine else view
        one.close()
    if failed is not None:
        raise failed
    _judge(setup, mine, others, batch)
    if has_abandoned:  # the sweep no longer has to spare these transactions
        setup.participants.sweep(mine.handles)
    return view, mine


def _last_decisions(setup: Setup, view: LogView, batch: Batch) -> list[LastDecision]:
    """List the last decision in every log. The deciding log's decision comes first."""
    found = [(setup.log, view)]
    for log in setup.other_logs.values():
        found.append((log, view_of(log, log.read)))
        require_completable(setup, *found[-1], batch)
    return [_last_decision(setup, log, one, batch) for log, one in found]


def _last_decision(setup: Setup, log: DecisionLog, view: LogView, batch: Batch) -> LastDecision:
    last = view.decision
    own = last if log is setup.log and last is not None and last.query_id == batch.query_id else None
    return LastDecision(
        log,
        last,
        setup.participants.decode_decided(last),
        view.scan_start,
        _given_up(setup, log, view),
        is_replayed=own is not None and own.batch_id == batch.batch_id,
        may_be_staged=own is not None and setup.staging is not None,
    )


def _given_up(setup: Setup, log: DecisionLog, view: LogView) -> list[str]:
    last, sinks = view.decision, setup.participants.sinks
    return [] if last is None else [name for name in sinks if _abandons(setup, log, view, last, [name])]


def _tell_unneeded(one: LastDecision) -> None:
    """Log in which sinks an override abandons nothing, because the start has just proven that the batch is visible there.

    The user may have kept the batch's rows and would otherwise insert them a second time.
    """
    visible = [name for name in one.given_up if one.in_sink(name) and name not in one.sinks_left]
    if one.decision is not None and visible:
        logger.warning(
            "override=Abandon(%d, %r) was not needed in the sinks %s: all rows of batch %d are visible there. Do not insert them "
            "again",
            one.decision.batch_id,
            one.decision.query_id,
            visible,
            one.decision.batch_id,
        )


def _judge(setup: Setup, mine: LastDecision, others: Sequence[LastDecision], batch: Batch) -> None:
    """Check that no decision in another log is left. The start has tried to commit all of them."""
    unproven = [one for one in others if one.decision is not None]
    if unproven:
        # The query's own decision is judged later, with one exception. If another decision waits for it, and the query cannot
        # complete it now, the error must also say why the query's own decision is not proven.
        is_awaited = any(mine in older for one in unproven for older in one.waits_for.values())
        is_judged = is_awaited and (mine.is_blocked or not (mine.is_replayed or mine.may_be_staged))
        raise _error(setup, [mine, *unproven] if is_judged else unproven, batch)


def _record_end(one: LastDecision, last: Decision) -> tuple[int, Begin]:
    """Write the record that closes a log. Return the record's offset, and the record itself.

    The record does not end the query. The query that starts has not decided anything yet, and its first batch may be rejected.
    """
    if not one.is_proven:
        logger.warning(
            "override=Abandon(%d, %r) abandons this batch's transactions that are not proven visible: %s",
            last.batch_id,
            last.query_id,
            ", ".join(one.handles[key].transaction for key in one.left),
        )
    begin = Begin(
        query_id=last.query_id,
        first_batch=last.batch_id + 1,
        prior_offsets=last.offsets,
        abandons=not one.is_proven,
        prior_times=last.times,
    )
    return one.log.append([begin]), begin


def _error(setup: Setup, unproven: Sequence[LastDecision], batch: Batch) -> TwoPhaseCommitError:
    """Build one error for all of these decisions, because the user must know everything that an override gives up."""
    if not any(one.sinks_blocked for one in unproven):  # only a restored store can show that they wait for each other
        for one in unproven:
            one.waits_for = {}
    overrides = setup.settings.overrides
    blocked = [one for one in unproven if one.sinks_blocked]
    errors = [_error_of(setup, one, batch, overrides) for one in blocked]
    # A batch whose commit is only blocked can still be completed, so the other batches' overrides must not give it up.
    in_doubt = [one for one, error in zip(blocked, errors, strict=True) if isinstance(error, InDoubtError)]
    needed = {abandon(one.decision, one.sinks_blocked) for one in in_doubt if one.decision is not None}
    overrides = replace(overrides, abandoned=overrides.abandoned | needed)
    return together([_error_of(setup, one, batch, overrides) for one in blocked], [*_waiting(setup, unproven, batch)])


def _error_of(setup: Setup, one: LastDecision, batch: Batch, overrides: Overrides) -> CommitBlockedError | InDoubtError:
    evidence = {key: found for key, found in one.evidence.items() if key[0] not in one.waits_for}
    found = _unproven(one, evidence, batch, overrides)
    return found.blocked() if Evidence.UNKNOWN in evidence.values() else found.in_doubt(LEFT_BEHIND, setup.staging)


def _waiting(setup: Setup, unproven: Sequence[LastDecision], batch: Batch) -> Iterator[str]:
    for one in unproven:
        if one.waits_for:
            older = {
                name: [other.decision for other in found if other.decision] for name, found in one.waits_for.items()
            }
            yield _unproven(one, one.evidence, batch, setup.settings.overrides).waiting(older)


def _unproven(one: LastDecision, evidence: Mapping[TaskKey, Evidence], batch: Batch, overrides: Overrides) -> Unproven:
    if one.decision is None:
        raise AssertionError("a log without a decision leaves nothing to prove")
    return Unproven(one.decision, one.handles, evidence, batch.query_id, overrides, one.blockers, one.outdated)
