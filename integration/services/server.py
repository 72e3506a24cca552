"""Run a local server process that can be stopped, killed and paused, and that exits when its owner exits."""

from __future__ import annotations

import atexit
import shutil
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil

from twopc.integration.services import ServiceError
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
"""Settings for log4j 1 (reload4j). The log goes to stdout, one line per entry, so that errors can quote it."""

_PORT_ATTEMPTS = 4
_POLL_S = 0.01
_PAUSE_TIMEOUT_S = 10.0
_TAIL_LINES = 25
#: The states of a thread that is stopped, or that has ended but has not been reaped yet. The thread's parent may be stopped.
_AT_REST = ("T", "Z", "X")


def wait_until(is_so: Callable[[], object], timeout_s: float) -> bool:
    """Poll until a condition is true. Return whether the condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


class Startable(ABC):
    """An object that a `with` block starts and closes. The object is also closed if it fails to start."""

    @abstractmethod
    def start(self) -> None:
        """Start the object, and return when it is ready."""

    @abstractmethod
    def close(self) -> None:
        """Stop, and remove the temporary files."""

    def __enter__(self) -> Self:
        """Call `start`."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Call `close`."""
        self.close()


class LocalServer(Startable):
    """A server process that exits when its owner exits, even if kill -9 ends the owner.

    A subclass implements `_program` and `_launch`.

    Attributes:
        data_dir: the directory for everything that the server writes, including its log.
    """

    _LOG: ClassVar[str] = "server.log"
    #: The server's log messages if a port is already in use.
    _PORT_TAKEN: ClassVar[tuple[str, ...]] = ("Address already in use",)
    _START_TIMEOUT_S: ClassVar[float] = 90
    _STOP_TIMEOUT_S: ClassVar[float] = 20
    #: The signal that requests an orderly shutdown.
    _STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGTERM
    #: See `GuardedProcess`.
    _ENDS_FAMILY: ClassVar[bool] = False

    def __init__(self, name: str, ports: Sequence[str], data_dir: Path | None) -> None:
        """Configure a server, but do not start it yet.

        Args:
            name: the server's name in messages.
            ports: a name for each port that the server listens on.
            data_dir: a directory to keep, perhaps with data from an earlier run; None: a temporary directory, which
                `close` removes.
        """
        self._name = name
        self._port_names = tuple(ports)
        self._ports: dict[str, int] = {}
        self._is_temporary = data_dir is None
        prefix = f"twopc-{name.replace(' ', '-').lower()}-"
        self.data_dir = data_dir.absolute() if data_dir else Path(tempfile.mkdtemp(prefix=prefix))
        self._process: GuardedProcess | None = None
        self._user: int | None = None  # see `GuardedProcess`
        self._has_served = False
        self._log_start = 0

    @property
    def log_path(self) -> Path:
        """The log file, to which every run appends."""
        return self.data_dir / self._LOG

    @property
    def pid(self) -> int:
        """The server's process id, not its guard's. Raises ServiceError if the server is not running."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists. A paused process also counts."""
        return self._process is not None and self._process.exit_code is None

    def start(self) -> None:
        """Start the server, and return when it is ready. The first start chooses the ports, and restarts keep them.

        Raises:
            ServiceError: the server exited, or was not ready in time. The message quotes the last lines of its log.
        """
        if self.is_running:
            raise ServiceError(f"{self._name} is already running (process {self.pid})")
        program = self._program()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        for further_attempts in reversed(range(_PORT_ATTEMPTS)):
            if self._port_names and not self._has_served:
                self._ports = dict(zip(self._port_names, free_ports(len(self._port_names)), strict=True))
            self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            try:
                self._launch(program)
            except ServiceError as error:
                self.kill()
                log = self._log_of_start()
                # Another process may take a free port before the server binds it.
                is_taken = any(words in log for words in self._PORT_TAKEN)
                if further_attempts and not self._has_served and is_taken:
                    continue
                raise ServiceError(
                    f"{self._name}: {error}. Last lines of its log ({self.log_path}):\n{_tail(log)}"
                ) from error
            self._has_served = True
            return

    def stop(self) -> None:
        """Shut the server down in an orderly way, and wait until it has exited. Do nothing if the server is not running."""
        if self._process:
            self._process.terminate(self._STOP_TIMEOUT_S, self._STOP_SIGNAL)

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL), and wait until it has exited.

        Do nothing if the server is not running.
        """
        if self._process:
            self._process.kill()

    def restart(self) -> None:
        """Stop the server if it is running, then start it with the same data and ports; see `start`."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process with SIGSTOP, and return when every thread is stopped. Connections stay open, but nothing responds.

        Raises:
            ServiceError: the server is not running, or does not stop.
        """
        process = self._running()
        process.signal(signal.SIGSTOP)
        self._wait_until_stopped(process.pid)

    def _wait_until_stopped(self, pid: int) -> None:
        process = self._running()
        if not wait_until(lambda: process.exit_code is not None or _is_stopped(pid), _PAUSE_TIMEOUT_S):
            raise ServiceError(f"{self._name}: process {pid} was not paused within {_PAUSE_TIMEOUT_S:g} s of SIGSTOP")

    def resume(self) -> None:
        """Resume a paused process (SIGCONT). Raises ServiceError if the server is not running."""
        self._running().signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server. If the data directory is temporary, kill the server (which is faster) and remove the directory."""
        self._end()
        atexit.unregister(self.close)
        if self._is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _end(self) -> None:
        """Stop the server's process permanently. An orderly shutdown is needed only if the data is kept."""
        if self._is_temporary:
            self.kill()
        else:
            self.stop()

    @abstractmethod
    def _program(self) -> list[str]:
        """Download missing files, and return the first part of the command line. `_launch` adds the rest."""

    @abstractmethod
    def _launch(self, program: list[str]) -> None:
        """Configure the server for the ports in `_ports` and call `_serve`."""

    def _run(self, command: list[str]) -> GuardedProcess:
        """Start a process that `stop` and `kill` will end."""
        try:
            self._process = GuardedProcess(
                command, log=self.log_path, cwd=self.data_dir, user=self._user, ends_family=self._ENDS_FAMILY
            )
        except OSError as error:
            raise ServiceError(str(error)) from error
        return self._process

    def _serve(self, command: list[str], is_ready: Callable[[], bool]) -> None:
        """Start the server's process and wait until it is ready.

        Raises:
            ServiceError: the process exited, or was not ready in time.
        """
        process = self._run(command)
        is_in_time = wait_until(lambda: process.exit_code is not None or is_ready(), self._START_TIMEOUT_S)
        if process.exit_code is not None:
            raise ServiceError(f"exited during startup with code {process.exit_code}")
        if not is_in_time:
            raise ServiceError(f"not ready after {self._START_TIMEOUT_S:g} s")

    def _log_of_start(self) -> str:
        """Return the log since the beginning of the last start."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[self._log_start :].decode(errors="replace")

    def _running(self) -> GuardedProcess:
        if self._process is None or self._process.exit_code is not None:
            raise ServiceError(f"{self._name} is not running")
        return self._process


def _is_stopped(pid: int) -> bool:
    """Whether every thread is stopped. After SIGSTOP, a busy thread continues for a few milliseconds and may still respond."""
    if sys.platform != "linux":
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    try:
        return all(
            stat.read_text().rpartition(")")[2].split()[0] in _AT_REST
            for stat in Path(f"/proc/{pid}/task").glob("*/stat")
        )
    except (FileNotFoundError, ProcessLookupError):  # the thread has just exited
        return False


def _tail(log: str) -> str:
    """Return the relevant end of a log: everything from the first error onward, or the last lines if the log contains no error.

    The result begins at the first error, because an orderly shutdown may follow. Stack frames and dumps of settings, which
    are indented by a tab, are omitted.
    """
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("\t")]
    errors = [i for i, line in enumerate(lines) if "Exception" in line or "] ERROR" in line or "] FATAL" in line]
    chosen = lines[errors[0] :][:_TAIL_LINES] if errors else lines[-_TAIL_LINES:]
    return "\n".join(chosen) or "(empty)"
