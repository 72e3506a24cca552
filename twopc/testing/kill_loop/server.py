"""A server of Spark Connect for the runs of the query under test, and the processes that outlive it."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

from twopc.integration.services import ServiceError
from twopc.integration.services.query_processes import QueryProcesses
from twopc.integration.services.server import wait_until
from twopc.testing.kill_loop.hold import end_of, release
from twopc.testing.kill_loop.sessions import tail

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.testing.kill_loop.run import Run

#: The end of the module's name in the command line of the process in which a server calls a function of ``foreachBatch``.
_OF_FUNCTION: Final = ".foreach_batch_worker"
_START_TIMEOUT_S: Final = 300
_END_TIMEOUT_S: Final = 20
#: A process whose server is gone ends after its next step, unless that step asks the server: PySpark then tries for minutes.
_ZOMBIE_TIMEOUT_S: Final = 20


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
        release(self.reached)
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def end(self) -> list[str]:
        """Wait until its call has ended, or end it. Returns how the call ended, or nothing if there was no process."""
        end = end_of(self.reached)
        has_ended = wait_until(lambda: end.exists() or not any(map(_runs, self.processes)), _ZOMBIE_TIMEOUT_S)
        self.server.kill()
        result = end.read_text() if end.exists() else "died" if has_ended else "did not end"
        return [result] * len(self.processes)


def _calls_function(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(argument.endswith(_OF_FUNCTION) for argument in process.cmdline())
    return False


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
