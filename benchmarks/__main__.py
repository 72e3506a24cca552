"""``make bench ARGS="…"``: measure, or write the kept results into the pages (``--pages``)."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
from typing import Annotated

import typer

from benchmarks.counting import WrongCountError
from benchmarks.groups import GROUPS
from benchmarks.pages import RESULTS, write_pages
from benchmarks.report import console
from benchmarks.run import run_groups
from benchmarks.settings import Settings, parsed


def main(  # noqa: PLR0913, PLR0917 - the options of the command line
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Run only this group, or only group:case. Groups: {', '.join(group.name for group in GROUPS)}. Repeatable."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side runs. The sides alternate.")] = 5,
    setting: Annotated[
        list[str] | None, typer.Option(help="A setting of exactly_once(), name=value. Repeatable.")
    ] = None,
    results: Annotated[Path, typer.Option(help="The directory for the JSON files and charts.")] = RESULTS,
    whole: Annotated[bool, typer.Option("--whole", help="Also run the long cases.")] = False,  # noqa: FBT002 - a flag
    quick: Annotated[bool, typer.Option("--quick", help="Use few rows, for a trial run.")] = False,  # noqa: FBT002 - a flag
    pages: Annotated[bool, typer.Option("--pages", help="Only write the kept results into the docs.")] = False,  # noqa: FBT002
) -> None:
    """Compare the sinks with their peers. All sides of a case run in turn, on local servers that the benchmark starts."""
    try:
        if pages:
            for file in write_pages():
                console.print(f"wrote {file}", highlight=False)
            return
        chosen = Settings(rounds=rounds, whole=whole, quick=quick, exactly_once=parsed(setting or []))
        run_groups(tuple(only or ()), chosen, results.absolute())
    except (WrongCountError, ValueError) as error:
        console.print(f"failed: {error}", style="red", markup=False)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
