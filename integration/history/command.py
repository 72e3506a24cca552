"""Run ``twopc history``, ``show`` and ``diagnose`` with parsed options: read, print, and return the exit status."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from twopc.counted import counted
from twopc.integration.history.diagnose import diagnose
from twopc.integration.history.reader import HistoryError, read
from twopc.integration.reported import reported
from twopc.integration.tables import show_table
from twopc.progress import describe, seconds, utc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from twopc.integration.history.reader import History, InProgress
    from twopc.progress import Checkpoint, StateSize

_DONE: Final = 0
_FOUND: Final = 1
_NOT_READ: Final = 2
_PHASES: Final = ("prepare", "confirm", "decide", "commit", "finish")
#: On a narrow terminal, `history` omits these columns, in this order. `show` prints all of them.
_FIRST_TO_GO: Final = ("confirm", "finish", "decide", "MB", "tasks", "commit", "prepare", "rows")


def show_history(checkpoint: Path, *, last: int, only_failed: bool, as_json: bool) -> int:
    """Print the newest checkpoints, one per line, and return the exit status."""

    def act() -> int:
        history = read(checkpoint)
        chosen = [one for one in history.checkpoints if one.cause is not None or not only_failed][-last:]
        if as_json:
            typer.echo(json.dumps({**_summary(history), "checkpoints": msgspec.to_builtins(chosen)}))
        else:
            _print_history(history, chosen)
        return _DONE

    return _run("history", act)


def show_one(checkpoint: Path, batch_id: int, *, as_json: bool) -> int:
    """Print the details of one checkpoint, and return the exit status."""

    def act() -> int:
        history = read(checkpoint)
        found = [one for one in history.checkpoints if one.batch_id == batch_id]
        in_progress = history.in_progress
        if not found and (in_progress is None or in_progress.batch_id != batch_id):
            known = sorted({one.batch_id for one in history.checkpoints})
            span = f"The history covers checkpoints {known[0]} to {known[-1]}" if known else "It is empty"
            raise HistoryError(f"the history of {checkpoint} does not contain checkpoint {batch_id}. {span}")
        if as_json:
            typer.echo(json.dumps({"in_progress": _in_progress(history), "ended": msgspec.to_builtins(found)}))
            return _DONE
        for one in found:
            _print_one(one)
        if in_progress is not None and in_progress.batch_id == batch_id:
            typer.echo(_in_progress_line(in_progress))
        return _DONE

    return _run("show", act)


def show_diagnosis(checkpoint: Path, *, last: int, as_json: bool) -> int:
    """Print why checkpoints are slow or fail, and return the exit status."""

    def act() -> int:
        history = read(checkpoint)
        found = diagnose(history, last=last)
        if as_json:
            typer.echo(json.dumps({**_summary(history), "findings": [asdict(one) for one in found]}))
            return _FOUND if found else _DONE
        console = _console()
        for number, one in enumerate(found, start=1):
            console.print(Text(f"{number}. {one.cause}", style="bold"), soft_wrap=True)
            console.print(Text(f"   {one.rule}: {one.evidence}"), soft_wrap=True)
            console.print(Text(f"   {one.advice}", style="cyan"), soft_wrap=True)
        judged = min(last, len(history.checkpoints))
        if not found:
            console.print(f"No problems were found in the last {counted(judged, 'checkpoint')}.")
        return _FOUND if found else _DONE

    return _run("diagnose", act)


def _run(name: str, act: Callable[[], int]) -> int:
    return reported(name, act, not_done=_NOT_READ)


def _console() -> Console:
    return Console(highlight=False)


def counts(checkpoints: Sequence[Checkpoint]) -> dict[str, int]:
    """Count the checkpoints by outcome."""
    outcomes = Counter(one.outcome for one in checkpoints)
    return {name: outcomes[name] for name in ("completed", "declined", "expired", "failed")}


def _summary(history: History) -> dict[str, Any]:
    took = sorted(one.took_ms for one in history.checkpoints if one.cause is None)
    at = {"min": 0.0, "median": 0.5, "p95": 0.95, "max": 1.0}
    return {
        "checkpoint": history.location,
        "counts": counts(history.checkpoints),
        "took_ms": {name: took[round(share * (len(took) - 1))] for name, share in at.items()} if took else None,
        "in_progress": _in_progress(history),
        "skipped": list(history.skipped),
    }


def _in_progress(history: History) -> dict[str, Any] | None:
    return None if history.in_progress is None else asdict(history.in_progress)


def _in_progress_line(one: InProgress) -> str:
    return (
        f"Checkpoint {one.batch_id} was planned at {utc(one.since_ms)} and is not done yet. Either the checkpoint is "
        "in progress, or the query has stopped and will begin with this checkpoint when it restarts."
    )


def _print_history(history: History, chosen: Sequence[Checkpoint]) -> None:
    console = _console()
    titles = ("id", "outcome", "way", "triggered", "took", *_PHASES, "tasks", "rows", "MB")
    rows: list[tuple[str | Text, ...]] = []
    for one in chosen:
        style = "red" if one.cause is not None else "yellow" if one.failed_attempts else ""
        rows.append(
            (
                str(one.batch_id),
                Text(one.outcome, style=style),
                one.way or ("" if one.cause is not None else "replay"),
                utc(one.triggered_ms),
                seconds(one.took_ms),
                *(seconds(one.phases[phase]) if phase in one.phases else "" for phase in _PHASES),
                f"{one.tasks:,}",
                f"{one.rows:,}",
                f"{one.size_bytes / 1e6:,.1f}",
            )
        )
    show_table(console, titles, rows, left={"outcome", "way", "triggered"}, first_to_go=_FIRST_TO_GO)
    for one in chosen:
        if one.cause is not None:
            line = (one.cause.message.splitlines() or [""])[0]
            console.print(Text(f"{one.batch_id}: {one.cause.error}: {line}", style="red"), soft_wrap=True)
    summary = _summary(history)
    ended = ", ".join(f"{number} {name}" for name, number in summary["counts"].items() if number)
    took = summary["took_ms"]
    typical = f"; a completed one took {seconds(took['median'])} (median), {seconds(took['p95'])} (p95)" if took else ""
    console.print(Text(f"{ended or 'none'}{typical}."), soft_wrap=True)
    if history.in_progress is not None:
        console.print(Text(_in_progress_line(history.in_progress)), soft_wrap=True)
    if history.skipped:
        named = ", ".join(history.skipped[:3])
        console.print(
            Text(f"Skipped {counted(len(history.skipped), 'torn or foreign line')}: {named}.", style="yellow"),
            soft_wrap=True,
        )


def _print_one(one: Checkpoint) -> None:
    console = _console()
    console.print(Text(f"{describe(one)}.", style="red" if one.cause is not None else ""), soft_wrap=True)
    wrote = ", ".join(
        (
            counted(one.rows, "row"),
            counted(one.size_bytes, "byte"),
            counted(one.tasks, "task"),
            counted(one.transactions, "transaction"),
        )
    )
    steps = ", ".join(one.steps) or ("none" if one.cause is not None else "none, a replay")
    facts = [f"Steps: {steps}. Written by: {one.way or 'no one'}. {wrote}."]
    if one.orphans_ended:
        facts.append(
            f"Orphaned transactions (from a dead driver or a failed attempt) that were ended: {one.orphans_ended}."
        )
    facts += [_state_line(size) for size in one.state]
    facts += [
        f"Task {vote.partition}: only Spark's attempt {vote.attempt}{f' (on {vote.host})' if vote.host else ''} counts. The "
        "earlier attempts failed, and their rows were aborted."
        for vote in one.retried
    ]
    facts += [f"Query {one.query_id}, run {one.run_id}."]
    facts += [
        f"A failed attempt, which was retried ({cause.reason} in {cause.phase}): {cause.error}: {cause.message}"
        for cause in one.failed_attempts
    ]
    if one.cause is not None:
        facts.append(f"{one.cause.error} in {one.cause.phase or 'start'}: {one.cause.message}")
    for fact in facts:
        console.print(Text(fact), soft_wrap=True)
    if one.slowest:
        console.print(f"Slowest tasks (the median of all tasks is {seconds(one.median_ms)}):", soft_wrap=True)
        titles = ("task", "attempt", "host", "rows", "took", "for its rows", "flush")
        rows = [
            (
                str(vote.partition),
                str(vote.attempt),
                vote.host or "driver",
                f"{vote.rows:,}",
                *(seconds(ms) for ms in (vote.took_ms, vote.read_ms, vote.flush_ms)),
            )
            for vote in one.slowest
        ]
        show_table(console, titles, rows, left={"host"})


def _state_line(size: StateSize) -> str:
    further = "".join(f", {name} {value:,}" for name, value in size.sizes.items())
    return (
        f"State at the trigger: {size.operator} with {counted(size.rows, 'row')}, {size.memory_bytes:,} bytes "
        f"in memory{further}; committed in {seconds(size.commit_ms)}."
    )
