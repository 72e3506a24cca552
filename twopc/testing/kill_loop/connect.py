"""The runs of the query under test under Spark Connect: a server and a client, each as a separate process."""

from __future__ import annotations

import contextlib
import importlib
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import psutil

from twopc.integration.services import ServiceError
from twopc.integration.services.query_processes import QueryProcesses
from twopc.integration.services.server import wait_until
from twopc.testing.kill_loop.kills import Victim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twopc.testing.kill_loop.run import Run

#: The end of the module's name in the command line of the process in which a server calls a function of ``foreachBatch``.
_OF_FUNCTION: Final = ".foreach_batch_worker"
_START_TIMEOUT_S: Final = 300
_END_TIMEOUT_S: Final = 20
#: A process whose server is gone ends after its next step, unless that step asks the server: PySpark then tries for minutes.
_ZOMBIE_TIMEOUT_S: Final = 20
_LOG_LINES: Final = 40


def require_connect() -> None:
    """Check that this PySpark has Spark Connect.

    Raises:
        ServiceError: it is older than 4.0, or a package is missing.
    """
    import pyspark  # noqa: PLC0415 - a classic session must not wait for what follows

    if int(pyspark.__version__.partition(".")[0]) < 4:  # noqa: PLR2004 - the first version with an API of its own kind
        raise ServiceError(
            f"Spark Connect needs PySpark 4.0 or newer here, and this is {pyspark.__version__}. Nothing was started. Install a "
            "newer one, or use a classic session"
        )
    try:
        importlib.import_module("pyspark.sql.connect.session")
    except ImportError as error:
        raise ServiceError(
            f"Spark Connect needs a package that is missing. Nothing was started. pip install 'spark-twopc[connect]'. {error}"
        ) from error


class Server:
    """A server on 127.0.0.1, and everything that it starts. It ends with its owner, even by SIGKILL.

    Attributes:
        url: its address.
        log: the file for its output, which has the errors of the function.
    """

    def __init__(self, run: Run, directory: Path, name: str) -> None:
        """Start it for a run, and wait until it takes connections.

        Raises:
            ServiceError: it did not start.
        """
        self.log, ready = directory / f"{name}.log", directory / f"{name}.port"
        command = run.server_command(str(ready))
        self._processes = QueryProcesses(command, log=self.log, cwd=directory, ends_family=True)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.kill)
            wait_until(lambda: ready.exists() or self._processes.exit_code is not None, _START_TIMEOUT_S)
            if not ready.exists():
                raise ServiceError(f"The server of Spark Connect did not start. {tail(self.log)}")
            cleanup.pop_all()
        self.url = f"sc://127.0.0.1:{ready.read_text()}"

    def functions(self) -> list[psutil.Process]:
        """The processes in which it calls functions of ``foreachBatch``."""
        return [process for process in self._processes.members() if _calls_function(process)]

    def kill_all_but_functions(self) -> list[psutil.Process]:
        """Kill its JVM and its workers, but only stop the processes of functions; return these."""
        functions = self.functions()
        for process in functions:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

        def others() -> list[psutil.Process]:
            # The process that has started the JVM stays: what the JVM leaves behind ends with it.
            spared = {self._processes.pid, *(process.pid for process in functions)}
            return [process for process in self._processes.members() if process.pid not in spared]

        def none_is_left() -> bool:
            left = others()
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return not left

        if not wait_until(none_is_left, _END_TIMEOUT_S):
            raise ServiceError(f"Processes of the server survive SIGKILL: {others()}. End them.")
        return functions

    def kill(self) -> None:
        """Kill everything that it has started, and itself."""
        self._processes.kill()


@dataclass
class Zombie:
    """A process of a function that has outlived its server.

    Attributes:
        server: what is left of the server.
        processes: the process, or none if the query has none.
        reached: the file of the moment at which it stands still.
    """

    server: Server
    processes: list[psutil.Process]
    reached: str

    def wake(self) -> None:
        """Let it continue; does nothing if it does already."""
        from twopc.testing.kill_loop import moments  # noqa: PLC0415 - imports Spark

        moments.release(self.reached)
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def end(self) -> list[str]:
        """Wait until it has ended, or end it. Returns how it ended, or nothing if there was no process."""
        from twopc.testing.kill_loop import moments  # noqa: PLC0415 - the same

        end = moments.end_of(self.reached)
        wait_until(lambda: end.exists() or not any(map(_runs, self.processes)), _ZOMBIE_TIMEOUT_S)
        self.server.kill()
        return [end.read_text() if end.exists() else "did not end" for _ in self.processes]


class ConnectRun:
    """A client with a query in a server; see ``RunningQuery``."""

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
        from twopc.testing.kill_loop import moments  # noqa: PLC0415 - imports Spark

        match victim:
            case Victim.WORKER if functions := self._server.functions():
                for process in functions:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                moments.release(self._reached)  # a task may stand still, too
            case Victim.SERVER:
                moments.end_of(self._reached).unlink(missing_ok=True)  # of an earlier batch
                self.zombie = Zombie(self._server, self._server.kill_all_but_functions(), self._reached)
                self._client.kill()  # it would only look for its server
            case Victim.CLIENT:
                self._client.kill()
                moments.release(self._reached)
                self.leaves_server = True
            case _:
                self._client.kill()
                self._server.kill()
                return Victim.ALL
        return victim


@dataclass
class ConnectSessions:
    """See ``Sessions``. Each run has a server of its own, except after a kill of the client only.

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


def tail(log: Path) -> str:
    """The end of a log, for an error."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([f"The end of its log ({len(lines)} lines):", *lines[-_LOG_LINES:]])


def _calls_function(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(argument.endswith(_OF_FUNCTION) for argument in process.cmdline())
    return False


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
