"""Explain the state of a sink's store, and say what to do next.

For Kafka sinks, see :mod:`twopc.integration.operate.advice`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.counted import counted
from twopc.integration.operate.finding import Advice, Urgency, of_another_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.integration.operate.checkpoint import CheckpointState
    from twopc.integration.operate.store_state import StoreState
    from twopc.observation import Observation


def advise_store(state: StoreState, checkpoint: CheckpointState) -> list[Advice]:
    """List the findings about a store.

    The list is never empty. If the store and the checkpoint do not match, list only this mismatch.
    """
    if state.seen is None:
        return [_unseen(state)]
    if misfit := _misfit(state, state.seen, checkpoint):
        return [misfit]
    if found := [*_of_decision(state, state.seen), *_of_leftovers(state.seen)]:
        return found
    what = f"{_newest(state)} yet" if state.batch is None else f"batch {state.batch} is decided and published"
    return [Advice(Urgency.NONE, what, "Nothing to do.", "healthy")]


def not_examined(checkpoint: CheckpointState, named: frozenset[str]) -> Advice | None:
    """List the sinks whose stores were not compared because the user has not named these sinks."""
    left = sorted(name for name, facts in checkpoint.sinks.items() if "ledger" not in facts and name not in named)
    if not left:
        return None
    what = (
        "the decisions were not compared with "
        f"{'the store of this sink' if len(left) == 1 else 'the stores of these sinks'}: {', '.join(left)}"
    )
    return Advice(
        Urgency.WATCH,
        what,
        "Add --sinks module:name to say where your code defines the query's sinks.",
        "the-stores-of-sinks",
    )


def _newest(state: StoreState) -> str:
    if state.abandoned is None:
        return "no batch is decided"
    return f"batch {state.abandoned} was abandoned, and no later batch is decided"


def overtaken(checks: int) -> Advice:
    """Say that the query's newest batch was not compared, because the query kept deciding newer batches."""
    what = (
        f"this command checked {checks} times, but the query kept deciding new batches between the checks, so the "
        "newest batch was not compared with the store"
    )
    return Advice(Urgency.WATCH, what, "Check again.", "the-stores-of-sinks")


def _unseen(state: StoreState) -> Advice:
    if state.problem is None:
        what = f"the store was not compared with the decisions, because {state.kind} does not report its store's state"
        return Advice(Urgency.WATCH, what, "Compare the sink's output with the source.", "the-stores-of-sinks")
    if not state.answers:
        what = f"the store did not respond: {state.problem}"
        return Advice(
            Urgency.ACT, what, "Make the store reachable again, and repeat this check.", "a-store-does-not-respond"
        )
    action = (
        "Do not start the query, and do not write to the store, until you have read about this finding in the runbook."
    )
    return Advice(Urgency.ACT, state.problem, action, "the-control-record-is-missing-or-unreadable")


def _misfit(state: StoreState, seen: Observation, checkpoint: CheckpointState) -> Advice | None:
    """Say why the store and the checkpoint do not match, or return None if they match.

    A query also makes these checks at startup, in the same order.
    """
    found = _of_binding(state, seen, checkpoint) or _of_owner(state, seen, checkpoint)
    return found or _of_log(state, seen, checkpoint)


def _of_binding(state: StoreState, seen: Observation, checkpoint: CheckpointState) -> Advice | None:
    record, bound = seen.record, state.bound
    if bound is None and checkpoint.log is not None:
        action = (
            "If you have just added this sink with override=AddSink, its first batch will bind the checkpoint to this "
            "sink. Otherwise, --sinks is wrong."
        )
        return Advice(Urgency.WATCH, "the checkpoint is not bound to this sink", action, "the-stores-of-sinks")
    if bound is not None and not record.id:
        what = (
            "the checkpoint is bound to this sink, but the store has no control record: the record was deleted, or the "
            "address now leads to a different store"
        )
        action = "Do not start the query. It would refuse to start. Fix the address, or restore the store."
        return Advice(Urgency.ACT, what, action, "the-control-record-is-missing-or-unreadable")
    if bound is not None and state.changed:
        was = ", ".join(f"{name} {bound.get(name, '(none)')}" for name in state.changed)
        now = ", ".join(f"{name} {seen.bound.get(name, '(none)')}" for name in state.changed)
        what = (
            f"the checkpoint is bound to {was}, but the store now shows {now}, so this is a different store or a "
            "recreated table"
        )
        return Advice(
            Urgency.ACT,
            what,
            "Point the sink at the original store. With this store, the query would refuse to start.",
            "the-start-is-refused",
        )
    return None


def _of_owner(state: StoreState, seen: Observation, checkpoint: CheckpointState) -> Advice | None:
    owner = seen.record.query_id
    if seen.is_behind or owner in {"", checkpoint.query_id}:  # a restored store may name an earlier owner
        return None
    return of_another_query(checkpoint.query_id, "the sink", owner, is_ended=state.is_replaced)


def _of_log(state: StoreState, seen: Observation, checkpoint: CheckpointState) -> Advice | None:
    if not state.is_known:
        what = f"the decisions in {checkpoint.log} could not be read, so they were not compared with the store"
        action = "Add --bootstrap-servers, or include the query's Kafka sinks in --sinks."
        if state.unread is not None:
            what, action = f"{what}: {state.unread}", "Fix this problem, and check again."
        return Advice(Urgency.WATCH, what, action, "the-stores-of-sinks")
    newest = state.abandoned if state.batch is None else state.batch
    ends = "contains no decision" if newest is None else f"ends with batch {newest}"
    if seen.is_ahead:
        what = (
            f"the query's log {ends}, but the store shows a newer decision. The checkpoint is an older copy, or was "
            "restored from a backup"
        )
        action = (
            "Do not start the query with this checkpoint. It would refuse to start. Use the checkpoint of the run that "
            "wrote to the store last."
        )
        return Advice(Urgency.ACT, what, action, "the-start-is-refused")
    if seen.is_behind:
        what = (
            f"the query's log {ends}, but decisions from this log, or rows of these decisions, are missing from the store. "
            "The store was restored from a backup, or a failover lost writes"
        )
        action = "Do not start the query. It would refuse to start. Restore the store to a newer state."
        return Advice(Urgency.ACT, what, action, "the-start-is-refused")
    return None


def _of_decision(state: StoreState, seen: Observation) -> Iterator[Advice]:
    if state.lost:
        what = f"{_of(state.lost)} of batch {state.batch} {'was' if len(state.lost) == 1 else 'were'} decided and then lost"
        action = "Start the query. It will repair as much as it can, or say what to restore."
        yield Advice(Urgency.ACT, what, action, "a-decided-transaction-is-lost")
    elif state.waiting:
        waiting = counted(len(state.waiting), "of its transactions is", "of its transactions are")
        what = f"batch {state.batch} is decided, but {waiting} not published"
        action = (
            "If the query is running, it will publish the batch. If it is not running, start it. It will first "
            "publish the batch."
        )
        yield Advice(Urgency.WATCH, what, action, "decided-and-not-published")
    if state.differing:
        action = "Stop the query. Keep the checkpoint and the table unchanged until you know the cause."
        yield Advice(Urgency.ACT, "; ".join(state.differing), action, "the-rows-of-a-batch-differ")
    if seen.rolled_back is not None:
        action = (
            "If someone rolled the table back on purpose, do nothing: the sink will not write the batch again. "
            "Otherwise, restore the newer state."
        )
        yield Advice(Urgency.ACT, seen.rolled_back, action, "the-table-was-rolled-back")


def _of_leftovers(seen: Observation) -> Iterator[Advice]:
    if left := seen.leftovers:
        what = (
            f"{_of(left)} {_are(left)} staged but undecided: the newest driver (epoch {seen.record.driver_epoch}) is "
            "writing its batch, or has died"
        )
        action = (
            "If the driver is alive, do nothing. If the driver is dead, start the query, which will remove these "
            "transactions."
        )
        yield Advice(Urgency.WATCH, what, action, "a-batch-is-being-written")


def _of(names: list[str] | tuple[str, ...]) -> str:
    return counted(len(names), "transaction")


def _are(names: list[str] | tuple[str, ...]) -> str:
    return "is" if len(names) == 1 else "are"
