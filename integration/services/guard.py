"""Run child processes that exit when their owner exits, even if SIGKILL ends the owner.

A guard process stands between owner and child. `PR_SET_PDEATHSIG` alone is not enough, because the kernel sends that signal
when the *thread* that started the child ends. So if a worker thread started a broker, the broker would die with the thread.
The guard, which has only one thread, watches its owner through a pidfd, and `PR_SET_PDEATHSIG` ends the child when the guard
ends.

This file contains both the owner's side, `GuardedProcess`, and the guard
(`python guard.py OWNER_PID REPORT_FD USER FAMILY COMMAND…`). The guard runs in Python's isolated mode, so this file imports
only the standard library.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from signal import Signals

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FAMILY = "family"
_POLL_WITHOUT_PIDFD_S = 0.2
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.001, 0.05


class GuardedProcess:
    """A child process that runs in a separate session, so that Ctrl-C in a terminal does not reach it.

    Attributes:
        pid: the child's process id, not the guard's.
        session: the session's id, which stays valid after the child has exited.
    """

    def __init__(
        self, command: list[str], *, log: Path, cwd: Path, user: int | None = None, ends_family: bool = False
    ) -> None:
        """Start `command` with its output appended to `log`.

        Args:
            command: the program and its arguments.
            log: the file for the program's output.
            cwd: the program's working directory.
            user: the program's user id, which is also its only group id; None: this process's user and groups.
            ends_family: whether the child's children are killed once the child has ended (on Linux). Without this
                setting, paused children would never end. With it, the child counts as ended only after its children
                have ended, too.

        Raises:
            OSError: the command cannot be executed; the log says why.
        """
        read_fd, write_fd = os.pipe()
        how = ["" if user is None else str(user), _FAMILY if ends_family else ""]
        guard = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(write_fd), *how]
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
            self.wait()
            raise OSError(f"cannot execute {command[0]}: see {log}")
        self.pid = int(reported)
        self.session = self._guard.pid

    @property
    def exit_code(self) -> int | None:
        """The child's exit code: 128 + N after signal N, or None while the child runs."""
        # Do not call `Popen.poll`: a Ctrl-C between its lock and its `try` would leave the lock taken, so `Popen.wait`
        # would never return. With WNOWAIT, the exit code can be read again until this property has stored it, even
        # after an interruption.
        if self._guard.returncode is None:
            with contextlib.suppress(ChildProcessError):  # another thread has already reaped the guard
                ended = os.waitid(os.P_PID, self._guard.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None:
                    self._guard.returncode = ended.si_status * (1 if ended.si_code == os.CLD_EXITED else -1)
                    os.waitpid(self._guard.pid, 0)
        return self._guard.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child. Do nothing if the child has exited."""
        # The guard reaps the child, and exits when the child exits. So while the guard runs, no other process can have
        # the child's id.
        if self.exit_code is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def wait(self, timeout_s: float = math.inf) -> int | None:
        """Wait until the child exits, and return its exit code. Return None if the child still runs after `timeout_s`."""
        deadline, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
        while self.exit_code is None and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        return self.exit_code

    def kill(self) -> None:
        """Stop the child with SIGKILL and wait until it has exited."""
        self.signal(signal.SIGKILL)
        self.wait()

    def terminate(self, timeout_s: float, number: Signals = Signals.SIGTERM) -> None:
        """Stop the child with a signal, and wait until it has exited.

        If the child still runs after `timeout_s`, use SIGKILL.
        """
        self.signal(number)
        self.signal(signal.SIGCONT)  # A stopped process handles no other signal.
        if self.wait(timeout_s) is None:
            self.kill()


def die_with_parent() -> None:
    """Make Linux kill this process when the thread that started it ends. Call this in the child."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - the owner's process does not need ctypes

        ctypes.CDLL(None).prctl(option, value)


def _guard(owner: int, report_fd: int, user: int | None, command: list[str], *, ends_family: bool) -> int:
    """Run `command`, report the child's process id, and kill the child when `owner` ends. Return the child's exit code."""
    owner_fd = os.pidfd_open(owner) if hasattr(os, "pidfd_open") else None
    if os.getppid() != owner:
        return 1  # The owner has already exited.
    # Always call this, because it also imports the modules that preexec_fn needs, which another user may be unable to read.
    _prctl(_PR_SET_CHILD_SUBREAPER, int(ends_family))
    child = subprocess.Popen(
        command,
        # The kernel resets this flag when the user changes, and preexec_fn runs after that change.
        preexec_fn=die_with_parent,  # noqa: PLW1509 - the guard has only one thread
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
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
    if ends_family and sys.platform == "linux":
        _end_orphans()
    return code if code >= 0 else 128 - code


def _end_orphans() -> None:
    """Kill the processes that this process has inherited from its child, and wait until all have ended."""
    while True:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # another process has just exited
                if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(
        _guard(
            int(sys.argv[1]),
            int(sys.argv[2]),
            int(sys.argv[3]) if sys.argv[3] else None,
            sys.argv[5:],
            ends_family=sys.argv[4] == _FAMILY,
        )
    )
