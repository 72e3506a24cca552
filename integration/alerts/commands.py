"""Declare the options of ``twopc alerts``, as in ``twopc.integration.cli``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer evaluates annotations at run time
from typing import Annotated

import typer

from twopc.integration.command_line import Json  # noqa: TC001 - typer evaluates annotations at run time

app = typer.Typer()


@app.command()
def alerts(  # noqa: PLR0913 - command-line options
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="The query's checkpoint (a local directory), or a copy of the checkpoint's twopc/history.",
            show_default=False,
        ),
    ],
    *,
    rules: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="A file that contains the rules, one setting per line.")
    ],
    watch: Annotated[bool, typer.Option("--watch/--once", help="Keep checking until you press Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between checks.")] = 30.0,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop --watch after this many seconds.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Remember sent alerts in this file, so that several runs report each episode only once.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The name that alerts use for the query. Default: the query id.")] = "",
    as_json: Json = False,
) -> None:
    """Send alerts when checkpoints fail, or when no checkpoint is completed, according to a team's own rules.

    The query may be running or dead.

    Exit status: 0 if no rule is firing; 1 if a rule is firing (with --watch, at the last check); 2 if nothing was checked,
    because the history is missing or a rule is invalid.
    """
    from twopc.integration.alerts.command import Watching, main  # noqa: PLC0415 - slow imports that --help does not need

    watching = Watching(checkpoint, rules, state, name, interval_s=interval if watch else None, for_s=seconds)
    raise typer.Exit(main(watching, as_json=as_json))
