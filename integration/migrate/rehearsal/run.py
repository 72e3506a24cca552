"""Run ``twopc migrate rehearse`` with parsed options: rehearse each way, print the report, and return the exit status."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from confluent_kafka import KafkaException
from rich.console import Console

from twopc.counted import counted
from twopc.integration.migrate.rehearsal.report import facts, is_passed, show
from twopc.integration.migrate.rehearsal.ways import WAYS
from twopc.integration.services import ServiceError
from twopc.integration.services.class_data import driver_flags
from twopc.integration.signals import ended_by_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.integration.migrate.rehearsal.steps import Step
    from twopc.integration.migrate.rehearsal.ways import Scale


def main(names: Sequence[str], scale: Scale, *, as_json: bool) -> int:
    """Rehearse, and return the exit status.

    Args:
        names: the names of the ways to migrate.
        scale: the seed, the number of kills and the batch size.
        as_json: whether to print one JSON object to stdout and everything else to stderr.
    """
    stderr = Console(stderr=True, highlight=False)
    console = stderr if as_json else Console(highlight=False)
    began = time.monotonic()
    try:
        ways = _rehearse(names, scale, console)
    except (ServiceError, KafkaException) as error:
        text = f"twopc migrate rehearse failed (seed {scale.seed}): {error}"
        stderr.print(text, style="red", markup=False, soft_wrap=True)
        return 1
    seconds = time.monotonic() - began
    if as_json:
        typer.echo(json.dumps(facts(scale, ways, seconds)))
    else:
        show(console, scale, ways, seconds)
    return 0 if is_passed(ways) else 1


def _rehearse(names: Sequence[str], scale: Scale, console: Console) -> dict[str, list[Step]]:
    """Rehearse one way after another. When this function returns or raises, every process of the rehearsal has exited."""
    ways: dict[str, list[Step]] = {}
    console.print(
        f"twopc migrate rehearse: {', '.join(names)}; {counted(scale.kills, 'kill')} of each sink, seed {scale.seed}"
    )
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_by_signals(ServiceError))
        directory = Path(tempfile.mkdtemp(prefix="twopc-rehearsal-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        with console.status("preparing Spark (first run only)"):
            driver_flags()
        for name in names:
            (directory / name).mkdir()
            ways[name] = WAYS[name](directory / name, scale, lambda step: _told(console, step))
    return ways


def _told(console: Console, step: Step) -> None:
    console.print(f"{step.seconds:6.1f} s  {step.name}: {step.problem or step.done}", markup=False, soft_wrap=True)
