"""All processes of one Spark query: the driver, its JVM and the Python workers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Final

import psutil

from integration.services.errors import ServiceError
from integration.services.guard import GuardedProcess

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

_END_TIMEOUT_S: Final = 20
_POLL_S: Final = 0.02


class QueryProcesses:
    """A running query in a session of its own; its JVM and workers stay in it, whatever process groups they form."""

    def __init__(self, command: list[str], *, log: Path, cwd: Path) -> None:
        """Start `command` with its output appended to `log`.

        Raises:
            ServiceError: it cannot be started.
        """
        try:
            self._driver = GuardedProcess(command, log=log, cwd=cwd)
            self._session = os.getsid(self._driver.pid)
        except OSError as error:
            raise ServiceError(f"Cannot start the query: {error}") from error
        if self._session == os.getsid(0):
            raise AssertionError("the query shares our session, which kill() would end")

    @property
    def exit_code(self) -> int | None:
        """The driver's exit code, 128 + N after signal N; None while it runs."""
        return self._driver.exit_code

    def kill(self) -> None:
        """Kill all of them with SIGKILL, as when their machine fails, and wait until none is left.

        Raises:
            ServiceError: some outlive it.
        """
        deadline = time.monotonic() + _END_TIMEOUT_S
        # The driver first: on a machine that fails, no process sees another one end and cleans up.
        self._driver.signal(signal.SIGKILL)
        while left := self._members():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()  # psutil compares start times: never another process that reuses the id
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"Processes of the query survive SIGKILL: {[process.pid for process in left]}. End them."
                )
            time.sleep(_POLL_S)
        self._driver.kill()

    def __enter__(self) -> Self:
        """It is already running."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all of them: no process of one run may live into the next."""
        self.kill()

    def _members(self) -> list[psutil.Process]:
        found = []
        for pid in psutil.pids():
            # Not the session's leader, the guard: it ends with the driver and reports its exit code.
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if pid != self._session and os.getsid(pid) == self._session:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found
