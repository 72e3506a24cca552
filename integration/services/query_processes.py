"""Start and kill all processes of one Spark query: the driver, its JVM and the Python workers."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final

import psutil

from twopc.integration.services import ServiceError
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.server import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

_END_TIMEOUT_S: Final = 20


class QueryProcesses:
    """A running query in a separate session.

    The JVM and the workers never leave this session, even if they form process groups.
    """

    def __init__(self, command: list[str], *, log: Path, cwd: Path, ends_family: bool = False) -> None:
        """Start `command` with its output appended to `log`.

        Args:
            command: the program and its arguments.
            log: the file for the program's output.
            cwd: the program's working directory.
            ends_family: see :class:`GuardedProcess`.

        Raises:
            ServiceError: the command cannot be started.
        """
        try:
            self._driver = GuardedProcess(command, log=log, cwd=cwd, ends_family=ends_family)
        except OSError as error:
            raise ServiceError(f"Cannot start the query: {error}") from error
        self._session = self._driver.session
        if self._session == os.getsid(0):
            raise AssertionError("the query runs in this process's session, so kill() would also kill this process")

    @property
    def exit_code(self) -> int | None:
        """The driver's exit code: 128 + N after signal N, or None while the driver runs."""
        return self._driver.exit_code

    @property
    def pid(self) -> int:
        """The driver's process id."""
        return self._driver.pid

    def kill(self) -> None:
        """Kill all processes with SIGKILL, as if their machine had failed, and wait until all have ended.

        Raises:
            ServiceError: some processes survive SIGKILL.
        """
        # Kill the driver first. When a machine fails, no process has time to notice another process's exit and to clean
        # up.
        self._driver.signal(signal.SIGKILL)
        if not wait_until(lambda: not self._kill_members(), _END_TIMEOUT_S):
            left = [process.pid for process in self.members()]
            raise ServiceError(f"Some of the query's processes survived SIGKILL: {left}. Kill them manually.")
        self._driver.kill()

    def __enter__(self) -> Self:
        """Return the query, which is already running."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes, because no process may survive into the next run."""
        self.kill()

    def _kill_members(self) -> bool:
        """Kill every process in the session, and return whether any process existed."""
        members = self.members()
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # psutil compares start times, so this never kills another process that reuses the id
        return bool(members)

    def members(self) -> list[psutil.Process]:
        """The running processes, including the driver."""
        found = []
        for pid in psutil.pids():
            # Omit the guard (the session's leader), because it exits with the driver and reports the driver's exit
            # code.
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if pid != self._session and os.getsid(pid) == self._session:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found
