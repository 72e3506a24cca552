"""Run a query with Spark Connect, with the server and the client in separate processes."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psutil

from twopc.integration.services import ServiceError
from twopc.integration.services.query_processes import QueryProcesses
from twopc.testing.kill_loop.hold import end_of, release
from twopc.testing.kill_loop.kills import Victim
from twopc.testing.kill_loop.server import Server, Zombie

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twopc.testing.kill_loop.run import Run


def require_connect() -> None:
    """Check that the installed PySpark supports Spark Connect.

    Raises:
        ServiceError: PySpark is older than 4.0, or a package is missing.
    """
    import pyspark  # noqa: PLC0415 - a classic loop does not need PySpark

    if pyspark.__version__.startswith("3."):
        raise ServiceError(
            f"Spark Connect needs PySpark 4.0 or newer, but this is {pyspark.__version__}. Nothing was started. Install a newer "
            "version, or use a classic session"
        )
    try:
        importlib.import_module("pyspark.sql.connect.session")
    except ImportError as error:
        raise ServiceError(
            f"Spark Connect needs a package that is missing. Nothing was started. Run pip install 'spark-twopc[connect]'. {error}"
        ) from error


class ConnectRun:
    """A client whose query runs on a server; see ``RunningQuery``."""

    def __init__(self, client: QueryProcesses, server: Server, reached: str) -> None:
        self._client = client
        self._server = server
        self._reached = reached
        self.leaves_server = False
        self.zombie: Zombie | None = None

    @property
    def exit_code(self) -> int | None:
        """See ``RunningQuery``."""
        return self._client.exit_code

    def kill(self, victim: Victim) -> Victim:
        """See ``RunningQuery``."""
        match victim:
            case Victim.WORKER if functions := self._server.functions():
                for process in functions:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                release(self._reached)  # a task may be held, too
            case Victim.SERVER:
                end_of(self._reached).unlink(missing_ok=True)  # the file may be left over from an earlier batch
                self.zombie = Zombie(self._server, self._server.kill_all_but_functions(), self._reached)
                self._client.kill()  # without its server, the client would only keep reconnecting
            case Victim.CLIENT:
                self._client.kill()
                release(self._reached)
                self.leaves_server = True
            case _:
                self._client.kill()
                self._server.kill()
                return Victim.ALL
        return victim


@dataclass
class ConnectSessions:
    """See ``Sessions``. Each run starts its own server, unless the previous kill terminated only the client.

    Attributes:
        directory: the working directory.
        zombies: see ``Sessions``.
    """

    directory: Path
    zombies: list[str]
    _server: Server | None = None
    _living: list[Zombie] = field(default_factory=list)
    _servers: int = 0

    @contextlib.contextmanager
    def started(self, run: Run, log: Path) -> Iterator[ConnectRun]:
        """See ``Sessions``."""
        if self._server is not None and run.kill is not None and run.kill.is_in_task:
            self._end_server()  # only a new server's workers can be armed
        if self._server is None:
            self._servers += 1
            self._server = Server(run, self.directory, f"server-{self._servers}")
        server, self._server = self._server, None
        started: ConnectRun | None = None
        try:
            command = replace(run, server=server.url).command()
            with QueryProcesses(command, log=log, cwd=self.directory) as client:
                started = ConnectRun(client, server, run.reached)
                yield started
        finally:
            if started is not None and started.zombie is not None:
                self._living.append(started.zombie)
            elif started is not None and started.leaves_server:
                self._server = server
            else:
                server.kill()

    def batch_finished(self) -> None:
        """See ``Sessions``."""
        for zombie in self._living:
            zombie.wake()

    def close(self) -> None:
        """See ``Sessions``."""
        self.batch_finished()
        self._end_server()
        while self._living:
            self.zombies += self._living.pop(0).end()

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server = None
