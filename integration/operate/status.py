"""Run ``twopc status``: show the state of a sink, a checkpoint or a cluster, and what to do."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from twopc.errors import ConfigurationError, RetriableError
from twopc.integration.history.reader import HistoryError, read
from twopc.integration.operate.advice import advise, not_reached, undecided
from twopc.integration.operate.checkpoint import combined, read_checkpoint
from twopc.integration.operate.finding import FOREIGN, Advice, Urgency
from twopc.integration.operate.observe import observe, observe_all
from twopc.integration.operate.printing import ATTENTION, DONE, Answer, run, show_advice, show_state, show_store
from twopc.integration.operate.store_advice import not_examined
from twopc.integration.operate.stores import Decisions, observe_store, read_decisions
from twopc.integration.operate.subject import subject_of
from twopc.progress import utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console

    from twopc.integration.operate.checkpoint import CheckpointState
    from twopc.integration.operate.observe import SinkState
    from twopc.integration.operate.store_state import StoreState
    from twopc.integration.operate.subject import Connection, Subject
    from twopc.integration.verify.command import Pace


class Look(NamedTuple):
    """The result of one check.

    Attributes:
        checkpoint: the facts and findings from the checkpoint alone; None if no checkpoint was named.
        sinks: each Kafka sink with its findings.
        strangers: topics that are named like a ledger but cannot be a sink's ledger.
        left_out: the checkpoint's Kafka sinks that could not be reached, each with the id of its cluster.
        stores: each sink that has no ledger and that the user has specified, with the findings about its store.
    """

    checkpoint: CheckpointState | None
    own: list[Advice]
    sinks: list[tuple[SinkState, list[Advice]]]
    strangers: tuple[str, ...] = ()
    stores: Sequence[tuple[StoreState, list[Advice]]] = ()
    left_out: Mapping[str, str] = MappingProxyType({})


def look(what: str | None, connection: Connection, *, checkpoint: Path | None = None) -> Look:
    """Check once.

    Raises:
        TwoPhaseCommitError: the checkpoint does not exist, or no broker responds.
    """
    subject = subject_of(what, connection, checkpoint=checkpoint)
    states = observe_all(subject.sinks) if what is None else [observe(sink, subject.query) for sink in subject.sinks]
    before, after = subject.checkpoint, _read_again(subject.checkpoint)
    compared = None if before is None or after is None else combined(before, after)
    found = [(state, advise(state, compared)) for state in states]
    stores = _stores(subject, connection)
    missed = None if compared is None else _undecided(compared, has_ledgers=bool(found))
    own = [] if after is None else _of_checkpoint(after, missed, has_sinks=bool(found or stores))
    if after is not None:
        left = not_examined(after, frozenset(state.sink for state, _ in stores))
        own += [one for one in (left, not_reached(subject.left_out)) if one is not None]
    if after is not None and (failure := _of_history(Path(after.location))):
        own = [failure, *(one for one in own if one.urgency is not Urgency.NONE)]
    return Look(after, own, found, subject.strangers, stores, subject.left_out)


def status(
    what: str | None, connection: Connection, *, checkpoint: Path | None = None, is_ending: bool = False
) -> Answer:
    """Check once and build the result.

    Args:
        what: a sink's name, or the directory of a checkpoint; None means every sink on the cluster.
        connection: how to reach the brokers and the sinks.
        checkpoint: the query's checkpoint, if ``what`` is a sink's name.
        is_ending: whether the query is to end here. If so, the result is quiet only if the last batch is proven to be
            complete in every sink.

    Raises:
        ConfigurationError: ``is_ending`` needs a checkpoint.
        TwoPhaseCommitError: the checkpoint does not exist, or no broker responds.
    """
    looked = look(what, connection, checkpoint=checkpoint)
    seen, own, found, strangers, stores, _ = looked
    if is_ending:
        own = [*own, *_before_the_end(looked)]
    everything = [*own, *(one for _, advice in (*found, *stores) for one in advice)]
    is_quiet = not any(one.urgency is Urgency.ACT or (is_ending and _is_unfinished(one)) for one in everything)
    facts: dict[str, Any] = {
        "at_ms": int(time.time() * 1000),
        "ok": is_quiet,
        "checkpoint": None if seen is None else seen.facts(),
        "advice": [one.facts() for one in own],
        "sinks": [{**state.facts(), "advice": [one.facts() for one in advice]} for state, advice in found],
        "stores": [{**state.facts(), "advice": [one.facts() for one in advice]} for state, advice in stores],
        "not_ledgers": list(strangers),
    }

    def show(console: Console) -> None:
        if seen is not None:
            _show_checkpoint(seen, console)
            show_advice(own, console)
        for state, advice in found:
            show_state(state, advice, console)
        for store, advice in stores:
            show_store(store, advice, console)
        for topic in strangers:
            text = (
                f"{topic} is not a ledger, because its name does not contain a valid sink name. Either a killed "
                "preflight left it behind, or it is a copy of a ledger"
            )
            console.print(text, markup=False, soft_wrap=True)
        if not found and seen is None:
            console.print("No sink has a ledger or an open transaction on this cluster.")

    return Answer(DONE if is_quiet else ATTENTION, facts, show)


def watch(check: Callable[[], Answer], pace: Pace, *, as_json: bool) -> int:
    """Check repeatedly, until Ctrl-C or for a given time. Return the exit status of the last check.

    If no broker responds, report that, and continue with the next check as usual.
    """
    began, last = time.monotonic(), DONE

    def again() -> Answer:
        try:
            answer = check()
        except RetriableError as error:
            text = f"{time.strftime('%H:%M:%S')} not checked: {error}"
            return Answer(
                ATTENTION, {"ok": False, "problem": str(error)}, lambda console: console.print(text, markup=False)
            )

        def show(console: Console) -> None:
            if sys.stdout.isatty():
                console.clear()
            console.print(time.strftime("%H:%M:%S"))
            answer.show(console)

        return answer._replace(show=show)

    try:
        while True:
            last = run("status", again, as_json=as_json)
            if last > ATTENTION or (pace.for_s is not None and time.monotonic() - began + pace.every_s > pace.for_s):
                return last
            time.sleep(pace.every_s)
    except KeyboardInterrupt:
        return last


def _read_again(checkpoint: CheckpointState | None) -> CheckpointState | None:
    return None if checkpoint is None else read_checkpoint(Path(checkpoint.location))


def _stores(subject: Subject, connection: Connection) -> list[tuple[StoreState, list[Advice]]]:
    """Observe the stores of the sinks without a ledger, one by one. A slow store delays the result, but hides nothing."""
    if subject.checkpoint is None:
        return []
    location = Path(subject.checkpoint.location)

    def read() -> Decisions:
        found = read_checkpoint(location)
        return read_decisions(found, connection.bound_sinks(found.sinks))

    return [observe_store(sink, read) for sink in subject.stores]


def _of_history(checkpoint: Path) -> Advice | None:
    """Build a finding if the newest checkpoint in the history has failed."""
    try:
        last = read(checkpoint).checkpoints[-1]
    except (HistoryError, IndexError):
        return None
    if last.cause is None:
        return None
    ended = utc(last.triggered_ms + last.took_ms)
    what = f"the last checkpoint, {last.batch_id}, {last.outcome} at {ended}: {last.cause.error} in {last.cause.phase or 'start'}"
    action = (
        f"`twopc show {checkpoint} {last.batch_id}` shows the cause, and `twopc diagnose {checkpoint}` says what to "
        "change. Then start the query if it is not running."
    )
    return Advice(Urgency.WATCH, what, action, "checkpoints-fail-again-and-again")


def _before_the_end(seen: Look) -> Iterator[Advice]:
    """Say what is still needed to prove that the checkpoint's last batch is complete in every sink."""
    if seen.checkpoint is None:
        raise ConfigurationError("--idle needs the query's checkpoint. Pass its directory, or add --checkpoint")
    finished = -1 if seen.checkpoint.finished is None else seen.checkpoint.finished
    if seen.checkpoint.log is None and finished >= 0:
        what = f"nothing shows whether batch {finished} is complete, because no batch has been decided with this checkpoint yet"
        action = "If the checkpoint was restored from a savepoint, check the old query's checkpoint instead."
        yield Advice(Urgency.WATCH, what, action, "savepoints")
    # Spark plans a batch before it calls the function, so a stop may leave a planned batch that nothing has decided.
    if (decided := max(_decided(seen, seen.checkpoint), default=-1)) > finished:
        what = f"batch {decided} is decided, but Spark has not finished it"
        yield Advice(Urgency.WATCH, what, "Start the query, and let it finish the batch.", "decided-and-not-published")
    examined = {state.sink for state, _ in seen.sinks} | {store.sink for store, _ in seen.stores}
    if left := sorted(set(seen.checkpoint.sinks) - examined):
        what = f"nothing shows whether the last batch is complete in {', '.join(left)}, because this check did not examine them"
        action = "Add --bootstrap-servers for Kafka sinks, and --sinks MODULE:NAME for all other sinks."
        yield Advice(Urgency.WATCH, what, action, "the-stores-of-sinks")


def _decided(seen: Look, checkpoint: CheckpointState) -> Iterator[int]:
    """Yield the newest decided batch of the checkpoint's query, according to each examined sink and to the checkpoint."""
    of_sinks = (state.decided_of(checkpoint.query_id) for state, _ in seen.sinks)
    newest = [checkpoint.decided, *of_sinks, *(store.batch for store, _ in seen.stores)]
    yield from (batch for batch in newest if batch is not None)


def _is_unfinished(one: Advice) -> bool:
    """Whether a finding shows that the query may have work left."""
    return one.urgency is not Urgency.NONE and one.anchor != FOREIGN


def _undecided(compared: CheckpointState, *, has_ledgers: bool) -> Advice | None:
    """If the decisions are not in a sink's ledger, report finished batches that are missing from the decisions."""
    if compared.registers is not None:
        return undecided(compared, str(compared.log), compared.decided)
    # The checkpoint is bound before the first decision. The findings about a ledger include this comparison.
    return undecided(compared, "", None) if compared.log is None and not has_ledgers else None


def _of_checkpoint(found: CheckpointState, missed: Advice | None, *, has_sinks: bool) -> list[Advice]:
    """List the findings from the checkpoint alone. ``missed`` is the finding about batches that were not decided."""
    if found.registers is not None and found.registers.damage is not None:
        action = "The query refuses to start with this checkpoint. Restore the checkpoint from a backup."
        return [Advice(Urgency.ACT, f"{found.registers.damage}", action, "the-ledger-is-lost-or-damaged")]
    if missed is not None:
        return [missed]
    if has_sinks:
        return []
    if found.log is None:
        what = "no batch has been decided with this checkpoint yet"
        return [Advice(Urgency.NONE, what, "Nothing to do.", "healthy")]
    unfinished = found.planned is not None and found.planned != found.finished
    where = "" if found.registers is not None else " To see the ledger's state, add --bootstrap-servers."
    if not unfinished:
        return [Advice(Urgency.NONE, f"Spark has finished batch {found.finished}", f"Nothing to do.{where}", "healthy")]
    what = f"Spark has planned batch {found.planned} but not finished it: the query is writing the batch, or has ended"
    return [Advice(Urgency.WATCH, what, f"If the query is not running, start it.{where}", "a-batch-is-being-written")]


def _show_checkpoint(found: CheckpointState, console: Console) -> None:
    decided = "" if found.registers is None else f", decided {found.decided}"
    sinks = ", ".join(found.sinks) or "none yet"
    text = (
        f"checkpoint {found.location}, query {found.query_id}\n"
        f"  Spark: last planned batch {found.planned}, last finished {found.finished}{decided}; decisions in "
        f"{found.log or 'no log yet'}; sinks: {sinks}"
    )
    console.print(text, markup=False, soft_wrap=True)
