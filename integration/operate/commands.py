"""Declare the options of ``twopc status``, ``twopc report``, ``twopc resolve`` and ``twopc transactions …``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twopc.integration.command_line import Config, ConfigFile, Json, Timeout, connection
from twopc.integration.history.commands import HistoryOf, Last  # noqa: TC001 - typer evaluates annotations at run time

if TYPE_CHECKING:
    from twopc.integration.operate.subject import Connection

transactions = typer.Typer(
    no_args_is_help=True,
    help="List open transactions, show the evidence for each transaction, and end transactions manually.",
)

_force = partial(typer.Option, rich_help_panel="By hand")

_What = Annotated[str, typer.Argument(help="A sink name, or the directory of a query's checkpoint.")]
_WhatOrAll = Annotated[
    str | None,
    typer.Argument(help="A sink name, or the directory of a query's checkpoint. Default: every sink on the cluster."),
]
_Ids = Annotated[
    list[str] | None, typer.Argument(help="Transactional ids. Default: every transaction that the command may end.")
]
_ServersOrNone = Annotated[
    str | None,
    connection(help="host:port of a broker. Without this option, the command shows only what the checkpoint contains."),
]
_Ledger = Annotated[
    str | None,
    connection(
        help="The sink's ledger. Default: the ledger that is recorded in the checkpoint, or else twopc-ledger-<sink>."
    ),
]
_Checkpoint = Annotated[
    Path | None, typer.Option(help="The query's checkpoint. Use this option together with a sink name.")
]
_Sinks = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="Where your code defines the query's sinks: NAME is a sink, a list of sinks, or a function that returns "
        "sinks. The command then compares the stores of these sinks with the decisions.",
    ),
]
_KafkaSinks = Annotated[
    str | None,
    connection(
        "--sinks",
        metavar="MODULE:NAME",
        help="Where your code defines the query's sinks: NAME is a sink, a list of sinks, or a function that returns "
        "sinks. Needed if the query's Kafka sinks are on several clusters, because only one cluster stores the decisions.",
    ),
]
_ServersOrSinks = Annotated[
    str | None, connection(help="A broker's host:port. Separate several brokers with commas. Not needed with --sinks.")
]
_Yes = Annotated[bool, _force("--yes", help="Do not ask for confirmation.")]
_Forced = Annotated[bool, _force("--force", help="Also act on transactions for which no decision is recorded.")]
_Blind = Annotated[
    bool,
    _force(
        "--without-decisions",
        help="With --force, also abort transactions whose decisions could not be read. If one of them was decided, its "
        "rows are lost.",
    ),
]
_Reason = Annotated[
    str | None,
    _force(
        help="Your reason for using --force. The command writes this reason to <checkpoint>/twopc or, without a checkpoint, to "
        "the current directory."
    ),
]


def _connect(  # noqa: PLR0913, PLR0917 - connection options
    servers: str | None,
    ledger: str | None,
    config: list[str] | None,
    config_file: Path | None,
    timeout: int,
    sinks: str | None = None,
) -> Connection:
    from twopc.integration.operate.subject import Connection  # noqa: PLC0415 - slow imports that --help does not need

    return Connection(servers, ledger, config, config_file, timeout, sinks)


def status(  # noqa: PLR0913 - command-line options
    what: _WhatOrAll = None,
    *,
    bootstrap_servers: _ServersOrNone = None,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    checkpoint: _Checkpoint = None,
    sinks: _Sinks = None,
    idle: Annotated[
        bool,
        typer.Option(
            "--idle",
            help="Use this option before you end a stopped query or delete its data. The command then exits with 1 unless the "
            "last decided batch is proven to be complete in every sink. Needs a checkpoint.",
        ),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep checking until you press Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between checks.")] = 5.0,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop --watch after this many seconds.")] = None,
    as_json: Json = False,
) -> None:
    """Show a sink's owner, its progress, its open transactions, the transactions that hold readers back, and what to do.

    With --sinks, the command also compares PostgreSQL, Redis, HBase, Iceberg and Delta stores with the checkpoint's decisions.

    The command only reads, and the query may be running or dead. Ages depend on this machine's clock and the brokers' clocks.

    Exit status: 0 if nothing is urgent; 1 if you must act; 2 if nothing was examined (no broker, no such checkpoint, wrong
    usage). A decided batch that is not yet visible is not always urgent, because the query will complete it. With --idle, 0
    proves that the last decided batch is complete in every sink.
    """
    if what is None and bootstrap_servers is None:
        raise typer.BadParameter("pass a checkpoint, or add --bootstrap-servers")
    from twopc.integration.operate import status as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415
    from twopc.integration.verify.command import Pace  # noqa: PLC0415

    connection = _connect(bootstrap_servers, ledger_topic, config, config_file, timeout, sinks)
    check = partial(command.status, what, connection, checkpoint=checkpoint, is_ending=idle)
    if watch:
        done = command.watch(check, Pace(is_online=True, every_s=interval, for_s=seconds), as_json=as_json)
    else:
        done = run("status", check, as_json=as_json)
    raise typer.Exit(done)


def report(  # noqa: PLR0913 - command-line options
    checkpoint: HistoryOf,
    *,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The file to write.")] = Path("twopc-report.html"),
    last: Last = 200,
    bootstrap_servers: Annotated[
        str | None,
        connection(
            help="host:port of a broker. With this option, the page also shows open transactions and where readers stop."
        ),
    ] = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
) -> None:
    """Write the history as one HTML page, which needs no server or network.

    The page shows a timeline of the phases, the failures and their causes, the rows per second, and the open transactions.

    Exit status: 0 if the page was written; 1 if the page was written without the cluster, which could not be reached; 2 if the
    page was not written.
    """
    from twopc.integration.operate import report as command  # noqa: PLC0415 - slow imports that --help does not need

    connection = _connect(bootstrap_servers, None, config, config_file, timeout)
    raise typer.Exit(command.write_report(checkpoint, out, connection, last=last))


def resolve(  # noqa: PLR0913 - command-line options
    what: _What,
    *,
    bootstrap_servers: _ServersOrSinks = None,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    sinks: _KafkaSinks = None,
    checkpoint: _Checkpoint = None,
    yes: Annotated[bool, _force("--yes", help="Commit decided, open transactions without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Walk through a batch in doubt, step by step. The steps are the state, the evidence and the next action.

    If you confirm, the command commits decided transactions that are still open. The command does not abort any transaction.

    Exit status: 0 if nothing is in doubt; 1 if you must act; 2 if nothing was examined.
    """
    from twopc.integration.operate.printing import run  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.resolve import resolve as go  # noqa: PLC0415

    connection = _connect(bootstrap_servers, ledger_topic, config, config_file, timeout, sinks)
    may_ask = not as_json and sys.stdin.isatty()
    raise typer.Exit(
        run(
            "resolve",
            lambda: go(what, connection, checkpoint=checkpoint, is_sure=yes, may_ask=may_ask),
            as_json=as_json,
        )
    )


@transactions.command("list")
def list_open(  # noqa: PLR0913 - command-line options
    what: _WhatOrAll = None,
    *,
    bootstrap_servers: _ServersOrSinks = None,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    sinks: _KafkaSinks = None,
    as_json: Json = False,
) -> None:
    """List open transactions with their age, their expiry, and the evidence from the decision record.

    A prepared transaction that is still open is in doubt, because its rows will be lost if it times out.

    Exit status: 0 if no transaction is in doubt; 1 if a transaction is or may be in doubt; 2 if nothing was examined.
    """
    from twopc.integration.operate import transactions as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415

    connection = _connect(bootstrap_servers, ledger_topic, config, config_file, timeout, sinks)
    raise typer.Exit(run("transactions list", lambda: command.list_open(what, connection), as_json=as_json))


@transactions.command()
def prove(  # noqa: PLR0913 - command-line options
    what: _What,
    *,
    bootstrap_servers: _ServersOrSinks = None,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    sinks: _KafkaSinks = None,
    as_json: Json = False,
) -> None:
    """For each transaction in the last decision, show what its marker proves. The command does not end or fence anything.

    Exit status: 0 if all transactions are proven committed; 1 if a transaction is lost or open, or its outcome cannot be
    proven; 2 if nothing was examined.
    """
    from twopc.integration.operate import transactions as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415

    connection = _connect(bootstrap_servers, ledger_topic, config, config_file, timeout, sinks)
    raise typer.Exit(run("transactions prove", lambda: command.prove(what, connection), as_json=as_json))


@transactions.command()
def commit(  # noqa: PLR0913 - command-line options
    what: _What,
    ids: _Ids = None,
    *,
    bootstrap_servers: _ServersOrSinks = None,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    sinks: _KafkaSinks = None,
    checkpoint: _Checkpoint = None,
    yes: _Yes = False,
    force: _Forced = False,
    reason: _Reason = None,
    as_json: Json = False,
) -> None:
    """Commit decided transactions, as the query's next start would. The command does not disturb a running driver.

    Even with --force, the command never commits a transaction that is not in a decision.

    Exit status: 0 if all commits are proven; 1 if a commit is not proven, or if a decided transaction is lost; 2 if nothing
    was done; 3 if the decision record forbids the commit, or --force is needed.
    """
    from twopc.integration.operate import transactions as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415

    connection = _connect(bootstrap_servers, ledger_topic, config, config_file, timeout, sinks)
    by_hand = command.ByHand(checkpoint=checkpoint, is_forced=force, reason=reason, is_sure=yes)
    raise typer.Exit(
        run("transactions commit", lambda: command.commit(what, ids or (), connection, by_hand), as_json=as_json)
    )


@transactions.command()
def abort(  # noqa: PLR0913 - command-line options
    what: _What,
    ids: _Ids = None,
    *,
    bootstrap_servers: _ServersOrSinks = None,
    ledger_topic: _Ledger = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    sinks: _KafkaSinks = None,
    checkpoint: _Checkpoint = None,
    yes: _Yes = False,
    force: _Forced = False,
    without_decisions: _Blind = False,
    reason: _Reason = None,
    as_json: Json = False,
) -> None:
    """Abort transactions that can no longer be decided, as the sweep does, and fence their writers.

    Even with --force, the command never aborts a transaction that is in a decision. Without --force, the command does
    not abort the newest driver's transactions. With --force, the command fences that driver. If the decisions could not
    be read, the command needs --without-decisions, too.

    Exit status: 0 if all aborts are proven; 1 if an abort is not proven, or if a transaction that may already have been
    decided is left open; 2 if nothing was done; 3 if the decision record forbids the abort, or --force is needed.
    """
    from twopc.integration.operate import transactions as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415

    connection = _connect(bootstrap_servers, ledger_topic, config, config_file, timeout, sinks)
    by_hand = command.ByHand(
        checkpoint=checkpoint, is_forced=force, is_blind=without_decisions, reason=reason, is_sure=yes
    )
    raise typer.Exit(
        run("transactions abort", lambda: command.abort(what, ids or (), connection, by_hand), as_json=as_json)
    )
