"""A query's processes: the driver, its JVM and the Python workers, ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Final

import psutil

from integration.services.guard import GuardedProcess
from integration.services.java import ServiceError

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

_END_TIMEOUT_S: Final = 20
_POLL_S: Final = 0.02


class QueryProcesses:
    """A started query in a session of its own. Its JVM and workers share the session, whatever groups they make."""

    def __init__(self, command: list[str], *, log: Path, cwd: Path) -> None:
        """Start it.

        Raises:
            ServiceError: it cannot be started.
        """
        try:
            self._driver = GuardedProcess(command, log=log, cwd=cwd)
            self._session = os.getsid(self._driver.pid)
        except OSError as error:
            raise ServiceError(f"cannot start the query: {error}") from error
        if self._session == os.getsid(0):
            raise AssertionError("the query's session must not be ours: all of it will be killed")

    @property
    def exit_code(self) -> int | None:
        """The driver's exit code, 128 + N after signal N, None while it runs."""
        return self._driver.exit_code

    def kill(self) -> None:
        """SIGKILL to all of them and wait until none is left, as when their machine or container dies."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        # The driver first: no process of a crashed machine sees another one's end and cleans up.
        self._driver.signal(signal.SIGKILL)
        while left := self._members():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()  # psutil knows it by its start time, too: never a successor of the same number
            if time.monotonic() > deadline:
                raise ServiceError(f"processes of the query outlive SIGKILL: {[process.pid for process in left]}")
            time.sleep(_POLL_S)
        self._driver.kill()

    def __enter__(self) -> Self:
        """Nothing more to do: it is running."""
        return self

    def __exit__(self, *_: object) -> None:
        """See :meth:`kill`; nothing of a run may live into the next one."""
        self.kill()

    def _members(self) -> list[psutil.Process]:
        found = []
        for pid in psutil.pids():
            # The session's leader is the guard, which ends with the driver and reports how that ended.
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if pid != self._session and os.getsid(pid) == self._session:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found
