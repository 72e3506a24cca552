"""Where a run of the query under test happens: in a classic session, or under Spark Connect."""

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
        """The exit code of the program that started the query, 128 + N after signal N; None while it runs."""

    def kill(self, victim: Victim) -> Victim:
        """Kill processes with SIGKILL; return what was killed: all of them if there is no process of a function."""


class Sessions(Protocol):
    """Starts the runs of the query, one after the other.

    Attributes:
        zombies: how the call of each process ended that outlived its server; see ``Outcome``.
    """

    zombies: list[str]

    def started(self, run: Run, log: Path) -> AbstractContextManager[RunningQuery]:
        """Start a run. At the end of the context, nothing of it is left except what the kill was to spare."""

    def batch_finished(self) -> None:
        """Let every process continue that has outlived its server."""

    def close(self) -> None:
        """End every process that is left."""


class ClassicRun:
    """A driver with its JVM and its Python workers."""

    def __init__(self, processes: QueryProcesses) -> None:
        self._processes = processes

    @property
    def exit_code(self) -> int | None:
        """See :class:`RunningQuery`."""
        return self._processes.exit_code

    def kill(self, victim: Victim) -> Victim:
        """See :class:`RunningQuery`. They die together, as if their machine had failed."""
        del victim
        self._processes.kill()
        return Victim.ALL


@dataclass
class ClassicSessions:
    """Each run has a driver of its own.

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
    """The end of a log, for an error."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([f"The end of its log ({len(lines)} lines):", *lines[-_LOG_LINES:]])
