"""Describe each finding about a sink with its cause, the next action, and the runbook entry.

This module does no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.attempt import Evidence
from twopc.counted import counted
from twopc.integration.operate.finding import FOREIGN, Advice, Urgency, of_another_query
from twopc.integration.operate.held_advice import of_held
from twopc.integration.operate.opened import Standing
from twopc.integration.spark.former_writers import last_expected
from twopc.new_checkpoint import FROM_MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twopc.integration.operate.checkpoint import CheckpointState
    from twopc.integration.operate.observe import Proof, SinkState
    from twopc.integration.operate.opened import OpenTransaction

#: The message if a broker's open transactions are unknown.
NOT_LISTED: Final = (
    "a broker did not list its open transactions, or no coordinator described a listed transaction. The sink may therefore "
    "have open transactions that are not shown"
)
#: An undecided transaction that has used up this share of its lifetime may expire before it is decided.
_LATE: Final = 2 / 3


def advise(state: SinkState, checkpoint: CheckpointState | None = None) -> list[Advice]:
    """List the findings about a sink. The list is never empty."""
    found = [*_of_log(state), *mismatches(state, checkpoint), *_of_transactions(state), *of_held(state)]
    if not state.is_complete:
        action = (
            "Check again when every broker responds. If every broker already responds, allow Describe on the sink's "
            "transactional ids."
        )
        found.append(Advice(Urgency.WATCH, NOT_LISTED, action, "a-broker-does-not-respond"))
    return found or [
        Advice(Urgency.NONE, "all decided rows are visible, and no transaction is open", "Nothing to do.", "healthy")
    ]


def not_here(sinks: Mapping[str, str]) -> str:
    """Say that these sinks are on other clusters. The mapping's values are the cluster ids."""
    on = "; ".join(f"sink {name!r} is on cluster {cluster}" for name, cluster in sorted(sinks.items()))
    return f"not examined: {on}, and this command does not know how to reach that cluster"


def not_reached(sinks: Mapping[str, str]) -> Advice | None:
    """List the checkpoint's Kafka sinks that were not examined, each with the id of its cluster."""
    if not sinks:
        return None
    action = "Pass all of the query's sinks with --sinks MODULE:NAME."
    return Advice(Urgency.WATCH, not_here(sinks), action, "the-decisions-are-on-another-cluster")


def _of_log(state: SinkState) -> Iterator[Advice]:
    if state.is_elsewhere:
        open_count = sum(one.is_in_doubt for one in state.transactions)
        are = counted(open_count, "transaction is", "transactions are")
        yield Advice(
            Urgency.ACT if open_count else Urgency.WATCH,
            f"{f'{are} open and may already have been decided; {_expiry(state.transactions)}. Cause: ' if open_count else ''}"
            f"{state.problem}",
            "You can let the query run, or start it.",
            "the-decisions-are-on-another-cluster",
        )
    elif state.problem is not None:
        action = "Do not start the query, and do not touch the output, the checkpoint or open transactions before you have read"
        yield Advice(Urgency.ACT, state.problem, f"{action} this entry.", "the-ledger-is-lost-or-damaged")


def mismatches(state: SinkState, checkpoint: CheckpointState | None) -> Iterator[Advice]:
    """List the reasons why the query would refuse to start with this checkpoint."""
    if checkpoint is None or state.problem is not None:
        return
    if state.query_id not in {None, checkpoint.query_id}:
        is_ended = state.history is not None and checkpoint.query_id in state.history.view.ended
        yield of_another_query(checkpoint.query_id, "the ledger", state.query_id, is_ended=is_ended)
        return
    decided, planned = state.last_decided, checkpoint.planned
    if decided is not None and decided > (-1 if planned is None else planned):
        ends = "contains no batch" if planned is None else f"ends at batch {planned}"
        yield Advice(
            Urgency.ACT,
            f"batch {decided} is decided, but the checkpoint {ends}, so the checkpoint is an older copy",
            "Restore the newest checkpoint. The query would refuse to start with this checkpoint.",
            "the-start-is-refused",
        )
    if (missed := undecided(checkpoint, state.ledger, decided)) is not None:
        yield missed


def undecided(checkpoint: CheckpointState, log: str, decided: int | None) -> Advice | None:
    """Return a finding if Spark has finished batches that were not decided and that no other writer wrote.

    Args:
        checkpoint: the checkpoint. Its finished batches were listed before the decisions were read.
        log: the name of the log in which the decisions were looked up.
        decided: the last decided batch of the checkpoint's query; None if no batch of this query was decided.
    """
    expected = last_expected(log, decided, bound=checkpoint.log, former=checkpoint.former)
    if expected is None or checkpoint.finished is None or checkpoint.finished <= expected:
        return None
    finished = f"Spark has finished batch {checkpoint.finished}"
    if decided is None:
        none = "no batch" if expected < 0 else f"no batch after batch {expected}"
        return Advice(
            Urgency.ACT,
            f"{finished}, but {none} of this query has been decided. Either another sink wrote these batches, or the query "
            "ran without its sinks. For example, its foreachBatch function caught the toolkit's errors",
            f"If another sink wrote all of these batches, {_unfinished(checkpoint)}start the query with "
            f"override=AdoptQuery({checkpoint.query_id!r}). Otherwise, rows are missing from the output. In this case, stop the "
            f"query, fix its function, and {FROM_MISSING}.",
            "the-start-is-refused",
        )
    if checkpoint.registers is not None:
        return Advice(
            Urgency.ACT,
            f"{finished}, but the last decided batch is {decided}, so the query ran without its sinks. For example, its "
            "foreachBatch function returned early, or caught the toolkit's errors",
            "Stop the query, and fix its function. Then start the query. It will refuse to start, and its error message "
            "will say how to write the missing batches.",
            "the-start-is-refused",
        )
    return Advice(
        Urgency.ACT,
        f"{finished}, but the last decided batch is {decided}, so either the query ran without the sink, or the ledger "
        "lost decisions",
        "Stop the query, and compare the checkpoint with the ledger: `twopc verify --checkpoint`.",
        "the-start-is-refused",
    )


def _unfinished(checkpoint: CheckpointState) -> str:
    """Say what to do about a batch that another sink may have begun. After an adoption, the query would write the batch again."""
    if checkpoint.planned == checkpoint.finished:
        return ""
    return f"let that sink also finish batch {checkpoint.planned} (if it writes to Kafka, see `twopc migrate cutover`). Then "


def _of_transactions(state: SinkState) -> Iterator[Advice]:
    by_standing = {one: [found for found in state.transactions if found.standing is one] for one in Standing}
    open_decided = by_standing[Standing.DECIDED]
    if open_decided:
        yield Advice(
            Urgency.ACT,
            f"batch {open_decided[0].batch} is decided, but "
            f"{counted(len(open_decided), 'of its transactions is', 'of its transactions are')} not yet committed; "
            f"{_expiry(open_decided)}",
            "If the query is not running, start it now. At startup, it first commits these transactions. If the query "
            f"cannot start, run `twopc transactions commit {state.in_commands}`.",
            "decided-and-not-committed",
        )
    lost = [one for one in state.proofs if one.evidence is Evidence.ABORTED]
    if lost:
        yield Advice(
            Urgency.ACT,
            f"{counted(len(lost), 'transaction')} of batch {lost[0].batch} {'was' if len(lost) == 1 else 'were'} decided "
            "and then lost (expired, or aborted by another client)",
            "Start the query. It will repair as much as it can. "
            f"`twopc resolve {state.in_commands}` shows the repair in advance.",
            "a-decided-transaction-is-lost",
        )
    unknown = [one for one in state.proofs if one.evidence is Evidence.UNKNOWN]
    if unknown and not open_decided:
        yield _of_unknown(state, unknown)
    ended = by_standing[Standing.ORPHAN] + by_standing[Standing.ABANDONED]
    if ended:
        # An abort by hand needs every decision, and a checkpoint may be an older copy.
        by_hand = "start it" if state.checkpoint else f"run `twopc transactions abort {state.in_commands}`"
        yield Advice(
            Urgency.WATCH,
            f"{_count(ended)} open and holding readers back, and can no longer be decided; {_expiry(ended)}",
            f"The query's next batch sweeps these transactions. If the query is not running, {by_hand}.",
            "orphans-hold-readers-back",
        )
    if running := by_standing[Standing.RUNNING]:
        yield _of_running(state, running)
    if unmarked := by_standing[Standing.UNMARKED]:
        yield Advice(
            Urgency.WATCH,
            f"{_count(unmarked)} open without a decision in {state.ledger}; {_expiry(unmarked)}. Either their tasks died "
            "while writing, or another ledger contains their decisions",
            "If the query is not running, start it. It will commit the decided transactions, and its next batch will "
            "sweep the others. If the sink uses another ledger, add --ledger-topic, or pass the query's checkpoint.",
            "the-sink-has-another-ledger",
        )
    if foreign_ids := by_standing[Standing.FOREIGN]:
        yield Advice(
            Urgency.WATCH,
            f"{_count(foreign_ids)} open with ids that no task of this sink uses: {foreign_ids[0].transactional_id}",
            "Find the program that uses this transactional id, and make it use a different id.",
            FOREIGN,
        )


def _of_unknown(state: SinkState, unknown: Sequence[Proof]) -> Advice:
    """Describe decided transactions that are not visible, and that nothing proves lost.

    If the coordinator described a transaction, the transaction is no longer open and cannot expire. Otherwise, the coordinator
    has not responded for some seconds. The query waits longer than that before it stops, so a running query may still continue.
    """
    silent = [one for one in unknown if not one.is_described and one.batch == state.last_decided]
    found = silent or unknown
    what = (
        f"nothing proves whether {counted(len(found), 'decided transaction')} of batch {found[0].batch} committed: "
        f"{found[0].text}"
    )
    if silent:
        return Advice(
            Urgency.ACT,
            f"{what}. These transactions may still be open. Open transactions expire, and their rows are then lost",
            "Make every broker respond again. A running query waits for the coordinator, and then continues. If the query is "
            "not running, start it now. It will commit these transactions, or report why it cannot.",
            "a-commit-cannot-be-proven",
        )
    return Advice(
        Urgency.WATCH,
        what,
        "Check again when every broker responds. Then start the query. It will prove the commits, or report why it "
        "cannot.",
        "a-commit-cannot-be-proven",
    )


def _of_running(state: SinkState, running: Sequence[OpenTransaction]) -> Advice:
    is_late = any(
        one.age_s is not None and one.expires_in_s is not None and one.age_s > _LATE * (one.age_s + one.expires_in_s)
        for one in running  # a transaction that is already ending does not expire
    )
    who = state.driver or f"epoch {state.driver_epoch}"
    what = f"{_count(running)} open and undecided: the newest driver ({who}) is writing its batch, or has died"
    if is_late:
        return Advice(
            Urgency.ACT,
            f"{what}; {_expiry(running)}",
            "If the driver is dead, start the query. If the driver is alive, the batch takes too long for the "
            "transaction timeout.",
            "transactions-expire-before-the-decision",
        )
    return Advice(
        Urgency.WATCH,
        f"{what}; {_expiry(running)}",
        "If the driver is alive, do nothing. If the driver is dead, start the query. It will abort the transactions "
        "and write the batch again.",
        "a-batch-is-being-written",
    )


def _count(found: Sequence[OpenTransaction]) -> str:
    return counted(len(found), "transaction is", "transactions are")


def _expiry(found: Sequence[OpenTransaction]) -> str:
    left = [one.expires_in_s for one in found if one.expires_in_s is not None]
    if left:
        return f"the first expires in {max(0.0, min(left)):.0f} s"
    is_ending = all(one.state != "Ongoing" for one in found)
    if is_ending:
        return "the coordinator is already ending them, so none expires"
    return "the transactions' age is unknown (perhaps this machine's clock and the brokers' clocks differ)"
