"""Child processes that end when their owner ends, however it ends.

A guard process stands between owner and child. `PR_SET_PDEATHSIG` alone would not do: the kernel sends that signal when
the *thread* that started the child ends, so a broker started from a worker thread would die with the thread. The guard
has one thread; it watches the owner's process by its pidfd, and the child dies with the guard by the signal.

This file is both the owner's side, `GuardedProcess`, and the guard (`python guard.py OWNER_PID REPORT_FD COMMAND…`),
so it imports the standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PR_SET_PDEATHSIG = 1
_POLL_WITHOUT_PIDFD_S = 0.2


class GuardedProcess:
    """A running child process in its own session, so that Ctrl-C in a terminal reaches its owner first.

    Attributes:
        pid: process id of the child itself, not of the guard.
    """

    def __init__(self, command: list[str], *, log: Path, cwd: Path) -> None:
        """Start `command` with its output appended to `log`.

        Raises:
            OSError: the command cannot be executed (its log has the reason).
        """
        read_fd, write_fd = os.pipe()
        guard = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(write_fd)]
        with log.open("ab") as output, os.fdopen(read_fd, "rb") as report:
            try:
                self._guard = subprocess.Popen(
                    [*guard, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[write_fd],
                    start_new_session=True,
                    cwd=cwd,
                )
            finally:
                os.close(write_fd)
            reported = report.read()
        if not reported:
            self._guard.wait()
            raise OSError(f"cannot execute {command[0]}, see {log}")
        self.pid = int(reported)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the child (128 + N after signal N), None while it runs."""
        return self._guard.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child; nothing happens when it has ended."""
        # The guard reaps the child and ends with it: while the guard runs, the process id is the child's own.
        if self.exit_code is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end of the child; return its exit code, None if it still runs after `timeout_s`."""
        try:
            return self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End the child by SIGKILL and wait for its end."""
        self.signal(signal.SIGKILL)
        self._guard.wait()

    def terminate(self, timeout_s: float) -> None:
        """End the child by SIGTERM, after `timeout_s` by SIGKILL, and wait for its end."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # A stopped process would not see the other signal.
        if self.wait(timeout_s) is None:
            self.kill()


def die_with_parent() -> None:
    """Ask the kernel (Linux) to kill this process when the thread that started it ends; runs in the child."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - the owner's side does without

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _guard(owner: int, report_fd: int, command: list[str]) -> int:
    """Run `command`, report its process id, kill it when `owner` ends; return the exit code."""
    owner_fd = os.pidfd_open(owner) if hasattr(os, "pidfd_open") else None
    if os.getppid() != owner:
        return 1  # The owner ended before it could be watched.
    child = subprocess.Popen(command, preexec_fn=die_with_parent)  # noqa: PLW1509 - the guard has one thread
    os.write(report_fd, str(child.pid).encode())
    os.close(report_fd)
    if owner_fd is not None:
        waiter = select.poll()
        for fd in (owner_fd, os.pidfd_open(child.pid)):
            waiter.register(fd, select.POLLIN)
        waiter.poll()
    else:
        while child.poll() is None and os.getppid() == owner:
            time.sleep(_POLL_WITHOUT_PIDFD_S)
    if child.poll() is None:
        child.kill()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
