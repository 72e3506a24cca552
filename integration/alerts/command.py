"""Run ``twopc alerts`` with parsed options: read the history once or repeatedly, and send alerts."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from twopc.integration.alerts.channels import deliver, line, to_log
from twopc.integration.alerts.episodes import Episodes, ended_ms
from twopc.integration.alerts.file import read_rules
from twopc.integration.alerts.saved import load, save
from twopc.integration.history.reader import HistoryError, read
from twopc.integration.reported import reported
from twopc.progress import utc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twopc.integration.alerts.channels import Channel
    from twopc.integration.alerts.episodes import Alert
    from twopc.integration.history.reader import History

_QUIET: Final = 0
_FIRING: Final = 1
_NOT_LOOKED: Final = 2


@dataclass(frozen=True)
class Watching:
    """The options of ``twopc alerts``.

    Attributes:
        checkpoint: the query's checkpoint.
        rules: the rules file.
        state: the file that records the sent alerts; None: no file.
        name: the query name in alerts.
        interval_s: the time between checks, in seconds; None: check once.
        for_s: how long to watch, in seconds; None: until Ctrl-C.
        clock: returns the time, as a Unix timestamp in seconds.
        pause: waits between checks.
    """

    checkpoint: Path
    rules: Path
    state: Path | None = None
    name: str = ""
    interval_s: float | None = None
    for_s: float | None = None
    clock: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep


def main(watching: Watching, *, as_json: bool) -> int:
    """Check the rules, send alerts, and return the exit status."""
    return reported(
        "alerts",
        lambda: _watch(watching, as_json=as_json),
        not_done=_NOT_LOOKED,
        interrupted="interrupted before the first check was complete",
    )


def _watch(watching: Watching, *, as_json: bool) -> int:
    found = read_rules(watching.rules)
    channels = [one for one in found.channels if one is not to_log]  # the command's output serves as its log
    history = read(watching.checkpoint)  # a wrong path raises an error at startup; later errors are only reported
    began = watching.clock()
    state = load(watching.state)
    seen_ms = state.seen_ms if watching.state is not None and state.seen_ms else _newest_ms(history)
    episodes = Episodes(found.rules, watching.name, int(began * 1000), state)
    episodes.learn(one for one in history.checkpoints if ended_ms(one) <= seen_ms)
    status: int | None = None
    try:
        while True:
            status = _look(episodes, history, watching, channels, as_json=as_json)
            now = watching.clock()
            if watching.interval_s is None or (
                watching.for_s is not None and now + watching.interval_s > began + watching.for_s
            ):
                return status
            watching.pause(watching.interval_s)
            history = _again(history, watching)
    except KeyboardInterrupt:  # Ctrl-C is the normal way to stop watching
        if status is None:
            raise
        return status


def _look(episodes: Episodes, history: History, watching: Watching, channels: list[Channel], *, as_json: bool) -> int:
    seen_ms = episodes.state.seen_ms
    episodes.planned_ms = None if history.in_progress is None else history.in_progress.since_ms
    told = [alert for one in history.checkpoints if ended_ms(one) > seen_ms for alert in episodes.ended(one)]
    now_ms = int(watching.clock() * 1000)
    told += episodes.check(now_ms)
    firing = episodes.firing(now_ms)
    _show(told, firing, watching, is_json=as_json)
    for alert in told:
        for channel in channels:
            deliver(channel, alert)
    save(watching.state, episodes.state)
    return _FIRING if firing else _QUIET


def _again(history: History, watching: Watching) -> History:
    """Read the history again.

    If the history cannot be read, return the previous reading, because rules may depend on the elapsed time.
    """
    try:
        return read(watching.checkpoint)
    except HistoryError as error:
        typer.echo(f"{utc(watching.clock() * 1000)} the history could not be read: {error}", err=True)
        return history


def _show(told: list[Alert], firing: list[Alert], watching: Watching, *, is_json: bool) -> None:
    if is_json:
        facts: dict[str, Any] = {"checkpoint": str(watching.checkpoint), "told": told, "firing": firing}
        typer.echo(json.dumps(msgspec.to_builtins(facts)))
        return
    for alert in told:
        typer.echo(f"{utc(alert.at_ms)} {line(alert)}")
    if watching.interval_s is None:
        new = {alert.rule for alert in told}
        for alert in firing:
            if alert.rule not in new:
                typer.echo(f"{utc(alert.at_ms)} still {line(alert)}")
        if not firing:
            typer.echo("No rule is firing.")


def _newest_ms(history: History) -> int:
    return max((ended_ms(one) for one in history.checkpoints), default=0)
