"""Start the runs of the query under test, in a classic session or under Spark Connect."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from twopc.integration.services.query_processes import QueryProcesses
from twopc.testing.kill_loop.kills import Victim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from twopc.testing.kill_loop.run import Run

_LOG_LINES: Final = 40


class RunningQuery(Protocol):
    """One run of the query."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of the program that started the query, or 128 + N after signal N.

        None while the program is running.
        """

    def kill(self, victim: Victim) -> Victim:
        """Kill the victim's processes with SIGKILL.

        Return the victim, which is ALL if no process is calling the function.
        """


class Sessions(Protocol):
    """Starts the runs of the query, one after the other.

    Attributes:
        zombies: for each worker process that outlived its server, how the function call ended; see ``Outcome``.
    """

    zombies: list[str]

    def started(self, run: Run, log: Path) -> AbstractContextManager[RunningQuery]:
        """Start a run. When the context ends, all processes have ended, except those that the kill spares."""

    def batch_finished(self) -> None:
        """Resume every process that has outlived its server."""

    def close(self) -> None:
        """Terminate every remaining process."""


class ClassicRun:
    """A driver, with its JVM and Python workers."""

    def __init__(self, processes: QueryProcesses) -> None:
        self._processes = processes

    @property
    def exit_code(self) -> int | None:
        """See :class:`RunningQuery`."""
        return self._processes.exit_code

    def kill(self, victim: Victim) -> Victim:
        """See :class:`RunningQuery`. All processes die together, as if their machine had failed."""
        del victim
        self._processes.kill()
        return Victim.ALL


@dataclass
class ClassicSessions:
    """Starts a new driver for each run.

    Attributes:
        directory: the working directory.
        zombies: always empty.
    """

    directory: Path
    zombies: list[str]

    @contextlib.contextmanager
    def started(self, run: Run, log: Path) -> Iterator[ClassicRun]:
        """See :class:`Sessions`."""
        with QueryProcesses(run.command(), log=log, cwd=self.directory) as processes:
            yield ClassicRun(processes)

    def batch_finished(self) -> None:
        """See :class:`Sessions`."""

    def close(self) -> None:
        """See :class:`Sessions`."""


def tail(log: Path) -> str:
    """Return the last lines of a log, for an error message."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([f"The last lines of the log ({len(lines)} lines in total):", *lines[-_LOG_LINES:]])
