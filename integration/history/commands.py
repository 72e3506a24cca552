"""Declare the options of ``twopc history``, ``show`` and ``diagnose``, as in ``twopc.integration.cli``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twopc.integration.command_line import Json  # noqa: TC001 - typer evaluates annotations at run time

app = typer.Typer()

HistoryOf = Annotated[
    Path,
    typer.Argument(
        help="The query's checkpoint (a local directory), or a copy of the checkpoint's twopc/history.",
        show_default=False,
    ),
]
Last = Annotated[int, typer.Option(min=1, help="How many of the most recent checkpoints to show.")]


@app.command()
def history(
    checkpoint: HistoryOf,
    *,
    last: Last = 20,
    only_failed: Annotated[bool, typer.Option("--failed", help="Show only failed checkpoints.")] = False,
    as_json: Json = False,
) -> None:
    """Show the outcome of every checkpoint (batch) of a query. The command only reads, so the query may be running or dead.

    Exit status: 0 if the history was shown; 2 if the history is missing or unreadable.
    """
    from twopc.integration.history import command  # noqa: PLC0415 - slow imports that --help does not need

    raise typer.Exit(command.show_history(checkpoint, last=last, only_failed=only_failed, as_json=as_json))


@app.command()
def show(
    checkpoint: HistoryOf,
    batch: Annotated[
        int, typer.Argument(min=0, help="The checkpoint id, which is the batch number.", show_default=False)
    ],
    *,
    as_json: Json = False,
) -> None:
    """Show the details of one checkpoint: its phases, its slowest tasks, its attempts, and the cause of a failure.

    Exit status: 0 if the checkpoint was shown; 2 if the history is missing or unreadable, or does not contain this
    checkpoint.
    """
    from twopc.integration.history import command  # noqa: PLC0415 - slow imports that --help does not need

    raise typer.Exit(command.show_one(checkpoint, batch, as_json=as_json))


@app.command()
def diagnose(checkpoint: HistoryOf, *, last: Last = 50, as_json: Json = False) -> None:
    """Show why a query's checkpoints are slow or fail, and what to change. The likeliest cause comes first.

    Exit status: 0 if nothing was found; 1 if something was found; 2 if the history is missing or unreadable.
    """
    from twopc.integration.history import command  # noqa: PLC0415 - slow imports that --help does not need

    raise typer.Exit(command.show_diagnosis(checkpoint, last=last, as_json=as_json))
