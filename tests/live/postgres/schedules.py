"""Random schedules for `vote="prepared"`: several drivers of one query, and faulty statements.

A statement fails, takes effect without a response, or arrives late, or its driver dies. A driver may be paused within a
statement while another driver runs. Everything runs in one thread, so a seed determines the schedule, except for the
server's own timeouts.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from tests.live.postgres.support import sink_of
from twopc.errors import RefusedStartError, TwoPhaseCommitError
from twopc.sinks.postgres.database import Database
from twopc.testing.contract import Case, Crash, numbers
from twopc.testing.contract.drivers import Query, all_rows

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from twopc.coordinator import Coordinator

_ENDS = ("COMMIT", "PREPARE TRANSACTION", "ROLLBACK PREPARED")
#: The probability that something happens to a statement, by the statement's first words.
_CHANCES = {"COMMIT PREPARED": 0.4, "PREPARE TRANSACTION": 0.3, "ROLLBACK PREPARED": 0.3, "COMMIT": 0.03}
_DRIVERS = 3
_TIMEOUT_MS = 2_000


@dataclass(eq=False)
class History:
    """A checkpoint, or a copy of it. Spark replays the batch after the highest one that it has recorded as done."""

    query: Query
    committed: int = -1


class Schedule:
    """A query whose drivers come and go, and a server that responds as the seed says.

    Attributes:
        reported: the highest batch that some driver has reported as visible.
        log: what happened, to be printed with a failure.
    """

    def __init__(self, random: random.Random, dsn: str, directory: Path, *, may_change: bool) -> None:
        self._random = random
        self._dsn = dsn
        self._may_change = may_change
        self._directory = directory
        self._histories = [History(Query(self._case("prepared"), directory / "original"))]
        self._of: dict[Coordinator, History] = {}
        self._running: list[Coordinator] = []
        self._busy: list[Coordinator] = []
        self._late: list[tuple[Any, Any]] = []
        self._depth = 0
        self._dying: set[int] = set()  # the depths at which the driver is dead and cannot clean up
        self.is_faulty = True
        self.is_paused = False
        self.reported = -1
        self.log: list[str] = []

    def _case(self, vote: str) -> Case:
        return Case(sink_of(self._dsn, vote=vote, timeout_ms=_TIMEOUT_MS), numbers, lambda: _values(self._dsn))

    # -- the drivers ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let one driver process the next batch, or the last one again; or start another driver."""
        free = [driver for driver in self._running if driver not in self._busy]
        if not free or self._random.random() < 0.4:
            vote = self._random.choice(["prepared", "prepared", "staged"]) if self._may_change else "prepared"
            if self._random.random() < 0.15:
                self._copy()
            history = self._random.choice(self._histories)
            history.query._case = self._case(vote)
            self._note(f"start {vote} on checkpoint {self._histories.index(history)}")
            self._running.append(history.query.start())
            self._of[self._running[-1]] = history
            free.append(self._running[-1])
        driver = self._random.choice([free[-1], *free])
        history = self._of[driver]
        batch = history.committed + 1
        name = self._running.index(driver)
        self._busy.append(driver)
        try:
            history.query.continue_with(driver, batch)
        except Crash:
            self._note(f"driver {name} died in batch {batch}")
            self._remove(driver)
        except TwoPhaseCommitError as error:
            self._note(f"driver {name}, batch {batch}: {type(error).__name__}: {str(error)[:150]}")
            self._remove(driver)
        else:
            self._note(f"driver {name} finished batch {batch}")
            self.reported = max(self.reported, batch)
            if self._random.random() < 0.7:
                history.committed = max(history.committed, batch)
        finally:
            self._dying.discard(self._depth)
            self._busy.remove(driver)
        self.check()

    def finish(self) -> None:
        """Without faults: a new driver completes two more batches, and nothing is left."""
        self.is_faulty = False
        self.deliver()
        refused: list[RefusedStartError] = []
        for history in self._histories:
            history.query._case = self._case("prepared")
            last = history.committed + 3
            try:
                history.query.run(*range(history.committed + 1, last + 1))
            except RefusedStartError as error:
                refused.append(error)
            else:
                break
        self.log += [f"refused: {error}" for error in refused]
        assert len(refused) < len(self._histories)
        assert _values(self._dsn) == all_rows(*range(last + 1))

    def check(self) -> None:
        """Each batch is completely visible once, or invisible. Every batch that a driver has reported is visible."""
        found = _values(self._dsn)
        batches = sorted({row // 100 for row in found})
        assert found == all_rows(*batches)
        assert set(batches) >= set(range(self.reported + 1))

    def _copy(self) -> None:
        """Copy a checkpoint. If both copies continue, one of them is an older copy."""
        history = self._random.choice(self._histories)
        copied = history.query.copied(self._directory / f"copy{len(self._histories)}")
        self._histories.append(History(copied, history.committed))

    def _remove(self, driver: Coordinator) -> None:
        self._running.remove(driver)
        driver.close()

    # -- the faults ----------------------------------------------------------------------------------------------------

    def execute(self, connection: Any, query: Any, run: Any) -> Any:
        """Execute a statement, or let something happen to it."""
        if self._depth in self._dying:
            raise Crash
        text = query.as_string() if isinstance(query, sql.Composable) else str(query)
        is_end = text.startswith(_ENDS)
        chance = next((chance for words, chance in _CHANCES.items() if text.startswith(words)), 0.005)
        if not self.is_faulty or self._random.random() > chance:
            return run()
        fault = self._random.choice(
            ["fails", "unseen", "dies", "dies after", "pause", "pause", *["late", "late, dies"] * is_end]
        )
        self._note(f"{fault}: {text[:60]!r}")
        if fault == "pause":
            self._elsewhere()
            return run()
        if fault.startswith("late"):
            connection.is_kept = True
            self._late.append((connection, query))
        elif fault in {"unseen", "dies after"}:
            run()
        if not connection.is_kept:
            connection.close()
        if "dies" in fault:
            self._dying.add(self._depth)
            raise Crash
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def deliver(self) -> None:
        """Let the late statements arrive."""
        late, self._late = self._late, []
        for connection, query in late:
            self._note(f"arrives: {query.as_string()[:60]!r}")
            with contextlib.suppress(psycopg.Error):
                psycopg.Connection.execute(connection, query)
            connection.is_kept = False
            connection.close()

    def _elsewhere(self) -> None:
        if self._depth == _DRIVERS:
            return
        self._depth += 1
        self.is_paused = True
        try:
            for _ in range(self._random.choice([1, 2, 3])):
                self.step()
            if self._random.random() < 0.5:
                self.deliver()
        finally:
            self._depth -= 1
            self.is_paused = self._depth > 0

    def _note(self, what: str) -> None:
        self.log.append("  " * self._depth + what)


@contextlib.contextmanager
def faulty(schedule: Schedule, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every statement of the sink goes through the schedule."""

    class Faulty(psycopg.Connection[Any]):
        is_kept = False

        def execute(self, query: Any, *arguments: Any, **named: Any) -> Any:
            return schedule.execute(self, query, lambda: super(Faulty, self).execute(query, *arguments, **named))

        def close(self) -> None:
            if not self.is_kept:
                super().close()

    broken = Database._break

    def unless_paused(database: Database) -> None:
        if not schedule.is_paused:
            broken(database)

    with patch.context() as patched:
        patched.setattr(psycopg, "connect", Faulty.connect)
        patched.setattr(Database, "_break", unless_paused)
        yield


def _values(dsn: str) -> list[int]:
    with contextlib.closing(psycopg.Connection.connect(dsn, autocommit=True)) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM target ORDER BY 1")]
