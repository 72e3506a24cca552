"""Run ``twopc transactions list | prove | commit | abort`` with parsed options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from twopc.attempt import Evidence
from twopc.counted import counted
from twopc.errors import ConfigurationError
from twopc.integration.operate import acts
from twopc.integration.operate.advice import NOT_LISTED
from twopc.integration.operate.journal import write_down
from twopc.integration.operate.observe import observe, observe_all
from twopc.integration.operate.opened import Standing
from twopc.integration.operate.printing import ATTENTION, DONE, Answer, show_lines, show_transactions
from twopc.integration.operate.subject import subject_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console

    from twopc.integration.operate.acts import Ended
    from twopc.integration.operate.observe import Proof, SinkState
    from twopc.integration.operate.opened import OpenTransaction
    from twopc.integration.operate.subject import Connection
    from twopc.integration.verify.deciding import QueryFacts
    from twopc.sinks.kafka import KafkaSink


def list_open(what: str | None, connection: Connection) -> Answer:
    """List every open transaction of the sinks.

    Raises:
        TwoPhaseCommitError: no broker responds, or the checkpoint has no Kafka sink.
    """
    subject = subject_of(what, connection)
    sinks = subject.with_transactions()
    states = observe_all(sinks) if what is None else [observe(sink, subject.query) for sink in sinks]
    facts = [
        {
            "sink": state.sink,
            "problem": state.problem,
            "is_complete": state.is_complete,
            "transactions": [one.facts() for one in state.transactions],
        }
        for state in states
    ]

    def show(console: Console) -> None:
        for state in states:
            console.print(
                f"[bold]{state.sink}[/]: {state.problem or f'{len(state.transactions)} open'}", soft_wrap=True
            )
            if not state.is_complete:
                console.print(NOT_LISTED, soft_wrap=True)
            if state.transactions:
                show_transactions(state.transactions, console)
        if not states:
            console.print("No sinks.")

    return Answer(DONE if all(map(_is_quiet, states)) else ATTENTION, facts, show)


def _is_quiet(state: SinkState) -> bool:
    """Whether the sink certainly has no transaction in doubt."""
    is_known = state.is_complete and (state.problem is None or state.is_elsewhere)
    return is_known and not any(one.is_in_doubt for one in state.transactions)


def prove(what: str, connection: Connection) -> Answer:
    """For each transaction in the last decision, show what is proven. Do not end or fence any transaction.

    Raises:
        TwoPhaseCommitError: no broker responds.
    """
    subject = subject_of(what, connection)
    states = [_judged(observe(sink, subject.query)) for sink in subject.with_transactions()]
    facts = [
        {"sink": state.sink, "batch": state.last_decided, "transactions": [one.facts() for one in state.proofs]}
        for state in states
    ]
    lines = []
    for state in states:
        lines.append(f"{state.sink}: last decided batch {state.last_decided}")
        lines += [f"  {_line(one)}" for one in state.proofs]
    is_proven = all(one.evidence is Evidence.COMMITTED for state in states for one in state.proofs)
    return Answer(DONE if is_proven else ATTENTION, facts, show_lines(lines))


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """The options for a commit or an abort that a user asks for.

    Attributes:
        checkpoint: the query's checkpoint, where the reason is stored.
        is_forced: the value of the option ``--force``.
        is_blind: the value of the option ``--without-decisions``.
        reason: the value of the option ``--reason``.
        is_sure: the value of the option ``--yes``.
    """

    checkpoint: Path | None = None
    is_forced: bool = False
    is_blind: bool = False
    reason: str | None = None
    is_sure: bool = False

    def require_reason(self) -> None:
        """Require a reason with ``--force``.

        Raises:
            ConfigurationError: no reason was given.
        """
        if self.is_forced and not (self.reason or "").strip():
            raise ConfigurationError("--force needs --reason TEXT, because the reason is recorded for later review")

    def write_down(self, directory: Path, command: str, sink: str, wanted: Sequence[OpenTransaction]) -> str | None:
        """Write the reason durably, and return the name of its file. Return None without ``--force``."""
        if not self.is_forced:
            return None
        named = {one.transactional_id: one.standing.value for one in wanted}
        return write_down(directory, command, sink, named, self.reason or "")


def commit(what: str, ids: Collection[str], connection: Connection, by_hand: ByHand) -> Answer:
    """Commit the decided transactions.

    Raises:
        ForbiddenError: the decision record forbids the commit, or allows it only with ``--force``.
        TwoPhaseCommitError: no broker responds.
    """
    by_hand.require_reason()
    sink, query, directory = _one_sink(what, connection, by_hand.checkpoint)
    state = _judged(observe(sink, query))
    wanted = acts.chosen(state, ids, {Standing.DECIDED})
    acts.require_committable(state, wanted, is_forced=by_hand.is_forced)
    if not wanted:
        return _nothing(sink.name, "decided and open", _not_proven(state))
    _confirm("commit", wanted, is_sure=by_hand.is_sure)
    file = by_hand.write_down(directory, "commit", sink.name, wanted)
    ended = acts.commit(sink, wanted, query)
    return _answer(sink.name, ended, file, _NOTHING_LEFT if ids else _not_proven(observe(sink, query)))


def abort(what: str, ids: Collection[str], connection: Connection, by_hand: ByHand) -> Answer:
    """Abort undecided transactions.

    Raises:
        ForbiddenError: the decision record forbids the abort, or allows it only with ``--force``.
        TwoPhaseCommitError: no broker responds.
    """
    by_hand.require_reason()
    sink, query, directory = _one_sink(what, connection, by_hand.checkpoint)
    state = observe(sink, query)
    fitting = {Standing.ORPHAN, Standing.ABANDONED}
    # Even with --force, another program's transaction is chosen only if the user passes its id.
    forced = {Standing.RUNNING, Standing.UNMARKED, Standing.UNJUDGED}
    wanted = acts.chosen(state, ids, fitting | forced if by_hand.is_forced else fitting)
    acts.require_abortable(wanted, is_forced=by_hand.is_forced)
    acts.require_decisions_read(state, wanted, is_blind=by_hand.is_blind)
    left = _NOTHING_LEFT if ids else _not_judged(state, wanted)
    if not wanted:
        return _nothing(sink.name, "open and permanently undecided", left)
    _confirm("abort", wanted, is_sure=by_hand.is_sure)
    file = by_hand.write_down(directory, "abort", sink.name, wanted)
    return _answer(sink.name, acts.abort(sink, wanted, query), file, left)


def _one_sink(what: str, connection: Connection, checkpoint: Path | None) -> tuple[KafkaSink, QueryFacts, Path]:
    """Find the sink, what is known about its query, and the directory in which the reason for ``--force`` is stored.

    The directory is in the checkpoint, or it is the current directory if the user named no checkpoint.
    """
    subject = subject_of(what, connection, checkpoint=checkpoint)
    if len(subject.with_transactions()) != 1:
        names = ", ".join(sink.name for sink in subject.sinks) or "none"
        raise ConfigurationError(
            f"this command needs exactly one sink, but {what} is bound to these Kafka sinks: {names}. Pass the name of "
            f"one sink, and add --checkpoint {what}"
        )
    here = Path.cwd() if subject.checkpoint is None else Path(subject.checkpoint.location) / "twopc"
    return subject.sinks[0], subject.query, here


def _judged(state: SinkState) -> SinkState:
    """Require a readable decision log, because without it nothing can be proven or committed."""
    if state.problem is not None:
        raise ConfigurationError(
            f"sink {state.sink!r}: {state.problem}. The decisions are unknown, so nothing was done"
        )
    return state


class _Left(NamedTuple):
    """The transactions that the command could not end, so the user must act."""

    facts: Sequence[dict[str, Any]]
    lines: Sequence[str]


_NOTHING_LEFT: Final = _Left((), ())


def _not_proven(state: SinkState) -> _Left:
    """List the decided transactions that are not proven committed."""
    found = [one for one in state.proofs if one.evidence is not Evidence.COMMITTED]
    lines = [_line(one) for one in found]
    if found:
        lines.append(f"`twopc resolve {state.in_commands}` shows what the query will do when it next starts")
    return _left(state, [one.facts() for one in found], lines)


def _not_judged(state: SinkState, wanted: Sequence[OpenTransaction]) -> _Left:
    """List the open transactions, other than ``wanted``, that may already have been decided even though no decision was found."""
    unknown = {Standing.UNJUDGED, Standing.UNMARKED}
    found = [one for one in state.transactions if one.standing in unknown and one not in wanted]
    lines = [f"{one.transactional_id}: left open: {one.evidence}" for one in found]
    if found and state.problem is not None:
        lines.append(state.problem)
    return _left(state, [one.facts() for one in found], lines)


def _left(state: SinkState, facts: list[dict[str, Any]], lines: list[str]) -> _Left:
    return _Left(facts, lines if state.is_complete else [*lines, NOT_LISTED])


def _line(proof: Proof) -> str:
    where = f"batch {proof.batch} task {proof.task}"
    return f"{where}: {proof.evidence.value}: {proof.text} ({proof.transaction}, {counted(proof.rows, 'row')})"


def _confirm(act: str, wanted: Sequence[OpenTransaction], *, is_sure: bool) -> None:
    if is_sure:
        return
    for one in wanted:
        typer.echo(f"{one.transactional_id}: {one.evidence}", err=True)
    if not typer.confirm(f"{act} {counted(len(wanted), 'transaction')}?", err=True):
        raise ConfigurationError("nothing was done, because you did not confirm")


def _nothing(sink: str, what: str, left: _Left) -> Answer:
    return _answered(sink, [f"{sink}: no transaction is {what}"], [], None, left)


def _answer(sink: str, ended: Sequence[Ended], file: str | None, left: _Left) -> Answer:
    lines = [f"{one.transactional_id}: {one.text}" for one in ended]
    if file is not None:
        lines.append(f"The reason is recorded in {file}")
    return _answered(sink, lines, ended, file, left)


def _answered(sink: str, lines: list[str], ended: Sequence[Ended], file: str | None, left: _Left) -> Answer:
    facts = {"sink": sink, "ended": [one.facts() for one in ended], "reason_in": file, "left": left.facts}
    is_done = all(one.is_done for one in ended) and not left.lines
    return Answer(DONE if is_done else ATTENTION, facts, show_lines([*lines, *left.lines]))
