"""Write a page with the history, and with the current state of the query's sinks on the cluster (``twopc report``)."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING, Final

import typer

from twopc.errors import TwoPhaseCommitError
from twopc.integration.history.diagnose import diagnose
from twopc.integration.history.reader import HistoryError, read
from twopc.integration.history.report import cards, none, page, table
from twopc.integration.operate.advice import not_here
from twopc.integration.operate.finding import Urgency
from twopc.integration.operate.status import look
from twopc.integration.reported import reported
from twopc.progress import utc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twopc.integration.operate.finding import Advice
    from twopc.integration.operate.held import HeldPartition
    from twopc.integration.operate.observe import SinkState
    from twopc.integration.operate.opened import OpenTransaction
    from twopc.integration.operate.subject import Connection

_WRITTEN: Final = 0
_NOT_ASKED: Final = 1
_NOT_WRITTEN: Final = 2
_STYLES: Final = {Urgency.NONE: "", Urgency.WATCH: "watch", Urgency.ACT: "bad"}


def write_report(checkpoint: Path, out: Path, connection: Connection, *, last: int) -> int:
    """Write one HTML page, and return the exit status.

    If the cluster does not respond, the page says so, and still shows the history.
    """

    def act() -> int:
        history = read(checkpoint)
        sinks, problem = none("The cluster was not contacted: add --bootstrap-servers."), None
        if connection.bootstrap_servers is not None:
            try:
                seen = look(f"{checkpoint}/", connection)
                sinks = sinks_section(seen.sinks, int(time.time() * 1000))
                sinks += none(not_here(seen.left_out)) if seen.left_out else ""
            except TwoPhaseCommitError as error:
                problem = f"the cluster could not be reached: {error}"
                sinks = f'<p class="bad">{escape(problem)}</p>'
        try:
            out.write_text(page(history, diagnose(history), sinks, last=last), encoding="utf-8")
        except OSError as error:
            raise HistoryError(f"{out} cannot be written: {error.strerror or error}") from error
        count = min(last, len(history.checkpoints))
        typer.echo(f"{out}: {count} checkpoint{'' if count == 1 else 's'}")
        if problem is not None:
            typer.echo(f"twopc report: {problem}. The page was written without the cluster's state.", err=True)
        return _WRITTEN if problem is None else _NOT_ASKED

    return reported("report", act, not_done=_NOT_WRITTEN, interrupted="interrupted")


def sinks_section(sinks: Sequence[tuple[SinkState, Sequence[Advice]]], at_ms: int) -> str:
    """Render each sink: its progress, its open transactions, its readers' lag, and what to do."""
    if not sinks:
        return none("The checkpoint is not bound to any Kafka sink.")
    return "\n".join([none(f"This was the cluster's state at {utc(at_ms)}."), *(_sink(*one) for one in sinks)])


def _sink(state: SinkState, advice: Sequence[Advice]) -> str:
    lag = sum(one.end - one.stable for one in state.held)
    left = [one.expires_in_s for one in state.transactions if one.expires_in_s is not None]
    facts = [("open transactions", f"{len(state.transactions):,}", "watch" if state.transactions else "")]
    if state.problem is None:  # if there is a problem, the decisions are unknown
        facts = [
            ("last decided batch", _or_none(state.last_decided), ""),
            ("last committed batch", _or_none(state.last_committed), ""),
            *facts,
            ("lag of the last stable offset", f"{lag:,}", "watch" if lag else ""),
        ]
    if left:
        facts.append(("until the first expires", f"{max(0.0, min(left)):.0f} s", "watch"))
    parts = [
        f"<h3>Sink <code>{escape(state.sink)}</code>, ledger <code>{escape(state.ledger)}</code></h3>",
        cards(facts),
    ]
    items = (
        f'<li><b class="{_STYLES[one.urgency]}">{one.urgency.value}</b>: {escape(one.what)}.<br>'
        f'{escape(one.action)} <span class="dim">{escape(one.link)}</span></li>'
        for one in advice
    )
    parts.append(f"<ul>{''.join(items)}</ul>")
    if state.transactions:
        rows = [_opened(one) for one in state.transactions]
        parts.append(table(("transaction", "decision", "age", "expires in", "batch", "rows"), rows))
    if state.held:
        rows = [_held(one) for one in state.held]
        parts.append(table(("partition", "last stable offset", "end", "lag", "behind"), rows))
    return "\n".join(parts)


def _opened(one: OpenTransaction) -> list[tuple[str, str]]:
    numbers = (
        _or_unknown(one.age_s, " s"),
        _or_unknown(one.expires_in_s, " s"),
        _or_unknown(one.batch),
        _or_unknown(one.rows),
    )
    return [("long", one.transactional_id), ("", one.standing.value), *(("n", number) for number in numbers)]


def _held(one: HeldPartition) -> list[tuple[str, str]]:
    numbers = (f"{one.stable:,}", f"{one.end:,}", f"{one.end - one.stable:,}")
    return [("", f"{one.topic}[{one.partition}]"), *(("n", number) for number in numbers), ("long", one.holder)]


def _or_none(batch: int | None) -> str:
    return "none" if batch is None or batch < 0 else f"{batch}"


def _or_unknown(value: float | None, unit: str = "") -> str:
    return "?" if value is None else f"{value:,.0f}{unit}"
