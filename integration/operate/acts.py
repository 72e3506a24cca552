"""Commit or abort open transactions as recovery would. Even with --force, reject anything that the decision record forbids.

An operator commits in the same way as the committer. The command sends EndTxn with the handle's producer id and epoch, and then
waits until readers see the rows. An operator aborts in the same way as the sweep, with InitProducerId, which also stops the
writer.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twopc.attempt import Claim, Evidence
from twopc.counted import counted
from twopc.errors import FatalError
from twopc.integration.operate.advice import NOT_LISTED
from twopc.integration.operate.observe import SinkState, observe
from twopc.integration.operate.opened import OpenTransaction, Standing
from twopc.integration.verify.cluster import Cluster
from twopc.integration.verify.deciding import NOTHING_KNOWN
from twopc.integration.verify.history import history_of
from twopc.integration.verify.transactions import decided_in
from twopc.records import LogContents
from twopc.sinks.kafka.errors import on_ids
from twopc.sinks.kafka.kept_rows import KeptRows, unended
from twopc.sinks.kafka.prepared import await_visible, end_all, fence
from twopc.sinks.kafka.reports import NO_ANSWER, NONE, NOT_AUTHORIZED
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from twopc.integration.verify.deciding import QueryFacts
    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.handle import KafkaHandle

_NEVER: Final = "Nothing was done. --force cannot override this"
_FORCE: Final = "Nothing was done. If you are sure, add --force --reason TEXT"
_LOSS: Final = "if the transaction was decided, its rows will be lost"
#: The possible effect of aborting a transaction that the decision record does not mention.
_RISKS: Final = {
    Standing.RUNNING: "the abort fences a live driver, so the driver's query stops",
    Standing.UNMARKED: _LOSS,
    Standing.UNJUDGED: _LOSS,
    Standing.FOREIGN: "the abort will stop the other program's writer, and the transaction's rows will be lost",
}


class ForbiddenError(FatalError):
    """The decision record forbids the action, or the action needs ``--force``."""


class Ended(NamedTuple):
    """The outcome of an action for one transaction."""

    transactional_id: str
    is_done: bool
    text: str

    def facts(self) -> dict[str, object]:
        """Return the facts as a JSON object."""
        return self._asdict()


def chosen(state: SinkState, ids: Collection[str], fitting: Collection[Standing]) -> tuple[OpenTransaction, ...]:
    """Select the open transactions with these ids. Without ids, select every transaction that the command may end.

    Raises:
        ForbiddenError: at least one id does not belong to an open transaction.
    """
    if not ids:
        return tuple(one for one in state.transactions if one.standing in fitting)
    found = {one.transactional_id: one for one in state.transactions}
    if unknown := sorted(set(ids) - found.keys()):
        raise ForbiddenError(
            f"sink {state.sink!r} has no open transaction {', '.join(unknown)}. Either that transaction has ended, or "
            f"its id is misspelled. `twopc transactions list {state.in_commands}` shows the open transactions"
            if state.is_complete
            else f"it is unknown whether {', '.join(unknown)} is open, because {NOT_LISTED}. Nothing was done. Try again when "
            "every broker responds"
        )
    return tuple(found[tid] for tid in sorted(set(ids)))


def require_committable(state: SinkState, wanted: Sequence[OpenTransaction], *, is_forced: bool) -> None:
    """Check that the decision record allows these commits.

    Raises:
        ForbiddenError: the record forbids a commit, or a commit needs ``--force``.
    """
    for one in wanted:
        if one.standing is not Standing.DECIDED:
            raise ForbiddenError(
                f"{one.transactional_id} must not be committed: {one.evidence}. The transaction's rows would become "
                f"visible without a decision, and the query would write them again. {_NEVER}"
            )
    late = [one for one in wanted if one.batch != state.last_decided]
    if late and not is_forced:
        raise ForbiddenError(
            f"{late[0].transactional_id} is from batch {late[0].batch}, but batch {state.last_decided} is already decided. "
            f"Readers would receive these rows after the rows of later batches. {_FORCE}"
        )


def require_abortable(wanted: Sequence[OpenTransaction], *, is_forced: bool) -> None:
    """Check that the decision record allows these aborts.

    Raises:
        ForbiddenError: the record forbids an abort, or an abort needs ``--force``.
    """
    for one in wanted:
        if one.standing is Standing.DECIDED:
            raise ForbiddenError(
                f"{one.transactional_id} must not be aborted: {one.evidence}. The rows would be lost. Commit the "
                f"transaction, or start the query, which will commit it. {_NEVER}"
            )
        if one.standing is Standing.DRIVER:
            raise ForbiddenError(
                f"{one.transactional_id} must not be aborted: {one.evidence}. The transaction will expire within a "
                f"minute, or end when you start the query. {_NEVER}"
            )
        if one.standing in _RISKS and not is_forced:
            raise ForbiddenError(f"{one.transactional_id}: {one.evidence}. Risk: {_RISKS[one.standing]}. {_FORCE}")


def _why_unsure(state: SinkState) -> str | None:
    """Say why the newest decisions may be unknown. Return None if every decision was read."""
    if state.checkpoint:
        return (
            f"the decisions are in the checkpoint {state.checkpoint}. An older copy of a checkpoint lacks the newest "
            "decisions, and this command cannot recognize a copy. If the query is not running, start it. It will end "
            "these transactions correctly"
        )
    return state.problem


def require_decisions_read(state: SinkState, wanted: Sequence[OpenTransaction], *, is_blind: bool) -> None:
    """Check that the decisions could be read. With ``is_blind``, the user accepts that decided rows may be lost.

    Raises:
        ForbiddenError: some decisions may be unknown, so each of these transactions may already have been decided.
    """
    why = _why_unsure(state)
    unread = [one for one in wanted if why is not None or one.standing is Standing.UNMARKED]
    if unread and not is_blind:
        problem = why or (
            f"the transactions' markers are missing from {state.ledger}. Either the tasks died while writing, or another ledger "
            "contains the decisions. If the query is not running, start it. It will end these transactions "
            "correctly. If the sink uses another ledger, add --ledger-topic, or pass the query's checkpoint"
        )
        raise ForbiddenError(
            f"this command may not have seen every decision of sink {state.sink!r}, so {counted(len(unread), 'transaction')} may "
            "already have been decided. If you abort a decided transaction, its rows are lost, and readers may see "
            f"only part of its batch. --force alone is therefore not enough. Nothing was done. Cause: {problem}. If "
            "you have compared the output with the source, and you accept that these rows may be lost, add "
            "--without-decisions"
        )


def commit(sink: KafkaSink, wanted: Sequence[OpenTransaction], facts: QueryFacts = NOTHING_KNOWN) -> list[Ended]:
    """Commit the decided transactions, and check whether readers see the transactions' rows.

    If the decisions are on another cluster, ``facts`` may identify it.

    Raises:
        TwoPhaseCommitError: no broker responds.
    """
    ids = {one.identity for one in wanted}
    with closing(Cluster(sink, facts)) as cluster:
        # Read the decisions again, because a commit must match the current decision.
        found = cluster.ledgers().history()
        decided = [one for one in decided_in(found, sink).values() if one.handle.identity in ids and not one.abandoned]
        handles = [one.handle for one in decided]
        starts = [found.batches[one.id].decision.scan_start.get(sink.name, {}) for one in decided]
        withheld = _without_rows(cluster.transactions, handles, starts, timeout_ms=sink.timeout_ms)
        reports = end_all(
            cluster.transactions, [one for one in handles if one not in withheld], timeout_ms=sink.timeout_ms
        )
        await_visible(
            cluster.transactions, [h for h, report in reports.items() if report == NONE], timeout_ms=sink.timeout_ms
        )
    state = observe(sink, facts)
    unproven = {one.transaction: one for one in state.proofs if one.evidence is not Evidence.COMMITTED}

    def outcome(handle: KafkaHandle) -> str:
        if handle in withheld:
            return withheld[handle]
        if handle.transaction not in unproven:
            return "committed, and readers see its rows"
        return f"{_refusal(handle.transactional_id, reports[handle])}; {unproven[handle.transaction].text}"

    return [
        Ended(handle.transactional_id, handle not in withheld and handle.transaction not in unproven, outcome(handle))
        for handle in handles
    ]


def _without_rows(
    client: TransactionClient,
    handles: Sequence[KafkaHandle],
    scan_starts: Sequence[Mapping[str, Any]],
    *,
    timeout_ms: float,
) -> dict[KafkaHandle, str]:
    """Return the open transactions that have lost rows, and say why they are not committed."""
    topic_ids = {topic: one for start in scan_starts for topic, one in start.get("topic_ids", {}).items()}
    still_open = [*unended(client, handles, timeout_ms=timeout_ms)]
    missing = KeptRows(client, timeout_ms=timeout_ms).absent(still_open, topic_ids)
    return {
        handle: f"not committed: {missing[handle]}. Start the query, which aborts the transaction and writes its rows again"
        for handle in unended(client, missing, timeout_ms=timeout_ms)
    }


def _refusal(transactional_id: str, report: str) -> str:
    if report == NOT_AUTHORIZED:
        return f"not authorized. Allow {on_ids('Write', transactional_id)}"
    return "no broker responded" if report == NO_ANSWER else f"the coordinator returned {report}"


def abort(
    sink: KafkaSink,
    wanted: Sequence[OpenTransaction],
    facts: QueryFacts = NOTHING_KNOWN,
    *,
    before: Callable[[], object] = lambda: None,
) -> list[Ended]:
    """Abort undecided transactions. Call ``before`` ahead of the first abort.

    When ``before`` is called, drivers can no longer decide these transactions. If the decisions are on another cluster,
    ``facts`` may identify it.

    Raises:
        ForbiddenError: a driver has decided one of the transactions in the meantime.
        TwoPhaseCommitError: no broker responds.
    """
    if any(one.standing is Standing.RUNNING for one in wanted):
        _require_still_undecided(sink, wanted, facts)
    before()
    with closing(TransactionClient(sink.committing_config())) as client:
        unfenced = fence(client, [one.identity for one in wanted], timeout_ms=sink.timeout_ms)
    return [
        Ended(
            one.transactional_id,
            one.transactional_id not in unfenced,
            f"not aborted: {_refusal(one.transactional_id, unfenced[one.transactional_id])}. Check again, and retry the abort"
            if one.transactional_id in unfenced
            else "aborted, and its writer is fenced",
        )
        for one in wanted
    ]


def _require_still_undecided(sink: KafkaSink, wanted: Sequence[OpenTransaction], facts: QueryFacts) -> None:
    """Fence the newest driver to prevent further decisions, then read the driver's decisions (rule 1).

    Raises:
        ForbiddenError: the driver decided one of the transactions, or another sink stores the decisions.
    """
    with closing(Cluster(sink, facts)) as cluster:
        ledgers, here = cluster.ledgers(), cluster.transactions.cluster_id
        found = ledgers.history()
        acquired = found.newest
        query_id = acquired.query_id if acquired is not None else (found.last.query_id if found.last else "")
    if not ledgers.is_own or not query_id:
        checkpoint = "" if acquired is None else facts.checkpoint_of(acquired)
        fence = "only the query's next start" if checkpoint else "only that ledger's sink"
        raise ForbiddenError(
            f"the decisions of sink {sink.name!r} are in {checkpoint or ledgers.name}, but {fence} can fence the driver. "
            "Nothing was done. Start the query to end the transactions, or wait until they expire"
        )
    with closing(sink.create_decision_log()) as log:
        log.acquire(Claim(query_id, uuid.uuid4().hex, deciding_log=ledgers.name, deciding_cluster=here))
        read = log.read()  # reads up to the record just written, so no decision can be missing
        held = LogContents(read.start, tuple(read.entries))
    decided = decided_in(history_of(held, held), sink)
    by_identity = {one.handle.identity: one for one in decided.values()}
    for one in wanted:
        if (now := by_identity.get(one.identity)) is not None:
            raise ForbiddenError(
                f"the driver has since decided {one.transactional_id}, in batch {now.id.batch}, so an abort would lose "
                "the transaction's rows. Nothing was aborted, but the driver is now fenced. Start the query again. The "
                "query will commit the batch"
            )
