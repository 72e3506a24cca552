"""Start and kill a Spark Connect server for the query under test, and terminate processes that outlive the server."""

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

#: The end of the module's name in the command line of a process that calls a ``foreachBatch`` function for a server.
_OF_FUNCTION: Final = ".foreach_batch_worker"
_START_TIMEOUT_S: Final = 300
_END_TIMEOUT_S: Final = 20
#: A process whose server has exited finishes its next step and then exits, unless that step calls the server. In that
#: case, PySpark retries for minutes.
_ZOMBIE_TIMEOUT_S: Final = 20


class Server:
    """A server on 127.0.0.1, and all processes that it starts.

    The server ends when its owner ends, even if the owner is killed.

    Attributes:
        url: the server's address.
        log: the file with the server's output, including the function's errors.
    """

    def __init__(self, run: Run, directory: Path, name: str) -> None:
        """Start the server for a run, and wait until it accepts connections.

        Raises:
            ServiceError: the server did not start.
        """
        self.log, ready = directory / f"{name}.log", directory / f"{name}.port"
        command = run.server_command(str(ready))
        self._processes = QueryProcesses(command, log=self.log, cwd=directory, ends_family=True)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.kill)
            wait_until(lambda: ready.exists() or self._processes.exit_code is not None, _START_TIMEOUT_S)
            if not ready.exists():
                raise ServiceError(f"The Spark Connect server did not start. {tail(self.log)}")
            cleanup.pop_all()
        self.url = f"sc://127.0.0.1:{ready.read_text()}"

    def functions(self) -> list[psutil.Process]:
        """Return the processes in which the server calls ``foreachBatch`` functions."""
        return [process for process in self._processes.members() if _calls_function(process)]

    def kill_all_but_functions(self) -> list[psutil.Process]:
        """Kill the JVM and its workers, and suspend the processes that call ``foreachBatch`` functions.

        Return the suspended processes.
        """
        functions = self.functions()
        for process in functions:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

        def others() -> list[psutil.Process]:
            # The process that started the JVM keeps running, so that processes left behind by the JVM later exit with that
            # process.
            spared = {self._processes.pid, *(process.pid for process in functions)}
            return [process for process in self._processes.members() if process.pid not in spared]

        def none_is_left() -> bool:
            left = others()
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return not left

        if not wait_until(none_is_left, _END_TIMEOUT_S):
            raise ServiceError(f"Some server processes survived SIGKILL: {others()}. Kill them manually.")
        return functions

    def kill(self) -> None:
        """Kill the server and all processes that it has started."""
        self._processes.kill()


@dataclass
class Zombie:
    """A ``foreachBatch`` worker process that has outlived its Spark Connect server.

    Attributes:
        server: the Spark Connect server's other processes.
        processes: a list with the worker process; empty if the query has no worker process.
        reached: the file that appears when the worker process reaches the moment at which it is held.
    """

    server: Server
    processes: list[psutil.Process]
    reached: str

    def wake(self) -> None:
        """Let the process continue if it is held or suspended."""
        release(self.reached)
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def end(self) -> list[str]:
        """Wait until the process's function call has ended, or terminate the process.

        Return how the call ended, once for each process that was held or suspended.
        """
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
