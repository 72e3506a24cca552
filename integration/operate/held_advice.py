"""Describe the transactions that hold ``read_committed`` readers back. This module does no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.counted import counted
from twopc.integration.operate.finding import FOREIGN, Advice, Urgency
from twopc.integration.operate.held import Unnamed
from twopc.sinks.kafka.handle import driver_epoch_of, driver_id, id_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.integration.operate.held import HeldPartition
    from twopc.integration.operate.observe import SinkState


def of_held(state: SinkState) -> Iterator[Advice]:
    """Describe the transactions that hold readers back and that are not among the sink's listed transactions."""
    ours = {one.producer_id for one in state.transactions}
    named = [one for one in state.held if one.producer_id not in ours and one.transactional_id is not None]
    foreign = [one for one in named if not _is_own(state.sink, one.transactional_id)]
    if unjudged := [one for one in named if one not in foreign]:
        yield Advice(
            Urgency.WATCH,
            f"readers of {unjudged[0].topic}[{unjudged[0].partition}] stop at offset {unjudged[0].stable}: this sink's "
            f"transaction {unjudged[0].transactional_id} is open there. The command did not judge this transaction. Either "
            "the transaction began after the sink's transactions were listed, or a broker did not list it",
            "Check again.",
            "a-batch-is-being-written",
        )
    if foreign:
        names = ", ".join(sorted({str(one.transactional_id) for one in foreign}))
        yield Advice(
            Urgency.WATCH,
            f"readers of {foreign[0].topic}[{foreign[0].partition}] stop at offset {foreign[0].stable}: another "
            f"program, {names}, has an open transaction in this partition",
            "Ask the program's owner to end the transaction. Otherwise, it expires after its producer's "
            "transaction.timeout.ms.",
            FOREIGN,
        )
    for why, found in _unnamed(state).items():
        yield _of_unnamed(why, found)


def _is_own(sink: str, transactional_id: str | None) -> bool:
    """Whether a driver or a task of the sink uses this id."""
    tid = transactional_id or ""
    return tid == driver_id(sink) or (tid.startswith(id_prefix(sink)) and driver_epoch_of(tid) is not None)


def _unnamed(state: SinkState) -> dict[Unnamed, list[HeldPartition]]:
    """Group the partitions in which an unnamed transaction holds readers back, by the reason why it has no name.

    Omit the partitions in which the sink itself may hold readers back. If a leader does not name the producer, the producer may
    belong to the sink.
    """
    ours = {one.producer_id for one in state.transactions}
    written = {where for one in state.transactions for where in one.partitions}
    found: dict[Unnamed, list[HeldPartition]] = {}
    for one in state.held:
        is_ours = one.producer_id in ours or (one.producer_id < 0 and f"{one.topic}:{one.partition}" in written)
        if one.unnamed not in {None, Unnamed.ENDED} and not is_ours:
            found.setdefault(one.unnamed, []).append(one)
    return found


def _of_unnamed(why: Unnamed, found: Sequence[HeldPartition]) -> Advice:
    first = found[0]
    more = f" (and {counted(len(found) - 1, 'more partition')} likewise)" if len(found) > 1 else ""
    if why is Unnamed.HIDDEN:
        who = (
            f"producer {first.producer_id} has an open transaction there. Either this principal may not see the "
            "transaction, its coordinator did not respond, or no coordinator knows the transaction. In the last case, the "
            "transaction hangs, and never ends on its own"
        )
        action = (
            "Allow Describe on the transactional ids of the programs that write to the topic. Check again when every broker "
            "responds. Do not abort the transaction before you know which program began it."
        )
    elif why is Unnamed.REFUSED:
        who = "a transaction is open there, but the leader does not tell this principal which producer began it"
        action = f"Allow Read on the topic {first.topic}, and check again."
    else:
        who = "a transaction is open there, but the partition's leader did not say which producer began it"
        action = "Check again when every broker responds."
    return Advice(
        Urgency.WATCH,
        f"readers of {first.topic}[{first.partition}] stop at offset {first.stable}{more}: {who}",
        action,
        FOREIGN,
    )
