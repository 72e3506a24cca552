"""Declare the options of ``twopc savepoint …``, as in ``twopc.integration.cli``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twopc.integration.command_line import Config, ConfigFile, Json, Timeout, connection

app = typer.Typer(
    no_args_is_help=True, help="Make consistent copies of a query's checkpoint, and restore them here or elsewhere."
)

_Checkpoint = Annotated[
    Path, typer.Argument(help="The query's checkpoint, a local directory. The query may be running.")
]
_Directory = Annotated[Path, typer.Argument(help="The directory for savepoints. Each savepoint is a subdirectory.")]
_Servers = Annotated[
    str | None, connection(help="A broker's host:port. With this option, the command also reads the sinks' ledgers.")
]


@app.command()
def create(  # noqa: PLR0913 - command-line options
    checkpoint: _Checkpoint,
    directory: _Directory,
    *,
    bootstrap_servers: _Servers = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Copy a checkpoint as it was at the end of its last finished batch. The copy can be moved.

    Exit status: 0 if the savepoint was taken; 2 if the command failed. A failure leaves no partial copy.
    """
    from twopc.integration.operate import savepoints as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415
    from twopc.integration.operate.subject import Connection  # noqa: PLC0415

    connection = Connection(bootstrap_servers, None, config, config_file, timeout)
    raise typer.Exit(
        run("savepoint create", lambda: command.create(checkpoint, directory, connection), as_json=as_json)
    )


@app.command("list")
def list_savepoints(
    directory: _Directory,
    *,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Read every file, verify its checksum, and check that no RocksDB file is missing."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the savepoints in a directory, newest first.

    Exit status: 0 if all savepoints are good; 1 if a savepoint is not good; 2 if the directory does not exist.
    """
    from twopc.integration.operate import savepoints as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415

    raise typer.Exit(
        run("savepoint list", lambda: command.list_savepoints(directory, is_thorough=thorough), as_json=as_json)
    )


@app.command()
def restore(  # noqa: PLR0913 - command-line options
    savepoint: Annotated[
        Path,
        typer.Argument(
            help="A savepoint, or a directory of savepoints. "
            "If you pass a directory, the command uses the newest intact savepoint."
        ),
    ],
    checkpoint: Annotated[
        Path, typer.Argument(help="The new checkpoint's directory, which must not exist or must be empty.")
    ],
    *,
    bootstrap_servers: _Servers = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Create a new query's checkpoint from a savepoint, and show which output the new query will duplicate.

    The command compares every file with its checksum, and checks that no RocksDB file is missing. The command writes nothing to
    the sinks.

    Exit status: 0 if the savepoint was restored; 2 if the command failed. A failure leaves no partial copy.
    """
    from twopc.integration.operate import savepoints as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415
    from twopc.integration.operate.subject import Connection  # noqa: PLC0415

    connection = Connection(bootstrap_servers, None, config, config_file, timeout)
    raise typer.Exit(
        run("savepoint restore", lambda: command.restore(savepoint, checkpoint, connection), as_json=as_json)
    )


@app.command("stop-with-savepoint")
def stop_with_savepoint(
    checkpoint: _Checkpoint,
    directory: _Directory,
    *,
    wait: Annotated[float, typer.Option(min=0, help="How many seconds to wait for the end of the batch.")] = 600.0,
    as_json: Json = False,
) -> None:
    """Make a running query take a savepoint at the end of its batch and then stop.

    The query must have twopc.integration.operate.Savepoints(…) among its interceptors. The query ends with
    StoppedWithSavepointError.

    Exit status: 0 if the query stopped; 2 if the query did not stop and continues.
    """
    from twopc.integration.operate import savepoints as command  # noqa: PLC0415 - slow imports that --help does not need
    from twopc.integration.operate.printing import run  # noqa: PLC0415

    raise typer.Exit(
        run("savepoint stop-with-savepoint", lambda: command.stop(checkpoint, directory, wait), as_json=as_json)
    )
