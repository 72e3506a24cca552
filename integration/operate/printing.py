"""Print the commands' results: tables for people, one JSON object for programs, and one line for an error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from twopc.integration.operate.acts import ForbiddenError
from twopc.integration.operate.finding import Urgency
from twopc.integration.reported import reported
from twopc.integration.tables import show_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twopc.integration.operate.finding import Advice
    from twopc.integration.operate.observe import SinkState
    from twopc.integration.operate.opened import OpenTransaction
    from twopc.integration.operate.store_state import StoreState

#: The exit statuses of all commands in this package.
DONE: Final = 0
ATTENTION: Final = 1  #: the user must act, or the command did only part of its work
NOT_DONE: Final = 2  #: the command could not read the state, or the usage is wrong
REFUSED: Final = 3  #: the decision record forbids the action, or the action needs --force

_LONGEST_OFFSETS: Final = 300
_STYLES: Final = {Urgency.NONE: "green", Urgency.WATCH: "yellow", Urgency.ACT: "bold red"}


class Answer(NamedTuple):
    """A command's result."""

    status: int
    facts: Any  #: the JSON object
    show: Callable[[Console], object]  #: for people


def run(name: str, act: Callable[[], Answer], *, as_json: bool) -> int:
    """Run a command, print its result, and return the exit status. Print an error as one line on stderr."""

    def answered() -> int:
        answer = act()
        typer.echo(json.dumps(answer.facts)) if as_json else answer.show(Console(highlight=False))
        return answer.status

    return reported(name, answered, not_done=NOT_DONE, expected={ForbiddenError: REFUSED}, interrupted="interrupted")


def show_lines(lines: Iterable[str]) -> Callable[[Console], object]:
    """Return a function that prints these lines."""
    return lambda console: console.print("\n".join(lines), markup=False, soft_wrap=True)


def show_transactions(found: Sequence[OpenTransaction], console: Console) -> None:
    """Print a table of open transactions."""
    titles = ("transaction", "decision", "age", "expires in", "batch", "rows", "evidence")
    rows = [
        (
            one.transactional_id,
            one.standing.value,
            "?" if one.age_s is None else f"{one.age_s:.0f} s",
            "?" if one.expires_in_s is None else f"{one.expires_in_s:.0f} s",
            "?" if one.batch is None else str(one.batch),
            "?" if one.rows is None else f"{one.rows:,}",
            one.evidence,
        )
        for one in found
    ]
    left = {"transaction", "decision", "evidence"}
    show_table(console, titles, rows, left=left, first_to_go=("evidence", "rows", "batch"))


def show_advice(found: Sequence[Advice], console: Console) -> None:
    """Print each finding on two lines: first the finding, then the action with a link to the runbook."""
    for one in found:
        style = _STYLES[one.urgency]
        console.print(f"[{style}]{one.urgency.value}[/] {escape(one.what)}", soft_wrap=True)
        console.print(f"   [bold]{escape(one.action)}[/] [dim]{escape(one.link)}[/]", soft_wrap=True)


def show_state(state: SinkState, advice: Sequence[Advice], console: Console) -> None:
    """Print a sink's owner, progress and open transactions, the positions at which readers wait, and the findings."""
    console.print(f"[bold]sink {escape(state.sink)}[/], ledger {escape(state.ledger)}", soft_wrap=True)
    who = state.driver or ("none yet" if state.driver_epoch < 0 else "unknown, because its record was truncated")
    producer = "none" if state.producer_id < 0 else f"producer {state.producer_id} epoch {state.producer_epoch}"
    lines = [
        f"  query {state.query_id or '-'}; driver {who} (epoch {state.driver_epoch}), {state.sink}.driver: {producer}",
        f"  last decided batch {_or_none(state.last_decided)}, last committed {_or_none(state.last_committed)}",
    ]
    if state.last_offsets:
        lines.append(f"  the last decided batch ends at the source offsets {_shortened('; '.join(state.last_offsets))}")
    if state.problem is not None:
        lines = ["  the decisions could not be read, so the query, its driver and its batches are unknown"]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    if state.transactions:
        show_transactions(state.transactions, console)
    for one in state.held:
        text = (
            f"  {one.topic}[{one.partition}]: read_committed readers are stuck at offset {one.stable} (end {one.end}), held back "
            f"by {one.holder}"
        )
        console.print(text, markup=False, soft_wrap=True)
    show_advice(advice, console)


def show_store(state: StoreState, advice: Sequence[Advice], console: Console) -> None:
    """For a sink whose store was compared with the decisions, print the sink's owner and progress, and the findings."""
    console.print(f"[bold]sink {escape(state.sink)}[/], {escape(state.kind)}", soft_wrap=True)
    if state.seen is not None:
        record = state.seen.record
        owner = f"query {record.query_id or '-'}; driver epoch {record.driver_epoch or '-'}"
        lines = [
            f"  {owner}; last decided batch {_or_none(state.batch)}, last published {_or_none(state.published)}",
            *(f"  {name}: {value}" for name, value in state.seen.facts.items()),
        ]
        console.print("\n".join(lines), markup=False, soft_wrap=True)
    show_advice(advice, console)


def _shortened(text: str) -> str:
    """Shorten the offsets of a source with many partitions. The JSON object contains all of them."""
    return text if len(text) <= _LONGEST_OFFSETS else f"{text[:_LONGEST_OFFSETS]}… (--json shows all)"


def _or_none(batch: int | None) -> str:
    return "none" if batch is None or batch < 0 else str(batch)
