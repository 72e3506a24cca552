"""Random histories of queries that take over each other's sinks. A user follows every error message literally.

Each query writes to a random subset of the sinks, and some of the sinks have a log. Drivers die at random points, transactions
expire, and stores stop responding. New queries, and queries that add sinks, end the owners of the sinks. In the end, a last query
takes over all sinks. Then every decided row must be visible once, unless an error has named its transaction as lost or unproven
after the start tried to commit it, and the user has abandoned it with the override in that error.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.named_overrides import named_overrides
from tests.unit.fake_sink import FakeCommitter, FakeEngine, FakeHandle, FakeSink, OwnLog, World, batch_of
from tests.unit.owned_sink import OwnedSink, OwnedStore
from twopc import crash_points
from twopc.coordinator import Coordinator
from twopc.errors import CommitBlockedError, InDoubtError, RefusedStartError, TwoPhaseCommitError
from twopc.files import MemoryFiles
from twopc.log_view import fold
from twopc.override import EndQuery, Overrides
from twopc.pending import Pending
from twopc.records import Decision
from twopc.registers import RegisterLog
from twopc.settings import Settings
from twopc.testing.contract.case import Crash
from twopc.testing.crash_points import arm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twopc.attempt import Evidence
    from twopc.override import Override
    from twopc.sink import TwoPhaseCommitSink

LOGGED, OWNED = ("a", "b", "d"), ("p", "q")
SINKS = (*LOGGED, *OWNED)
POINTS = [name for name in crash_points.POINTS if name.startswith("driver.")]
AFTER_THE_DECISION = ["driver.decided", "driver.committing"]
STEPS = 9
MOST_QUERIES = 5
#: How many errors a user handles before the query runs again. More mean that the errors lead in circles.
PATIENCE = 30


class BrokenError(AssertionError):
    """The toolkit broke a promise."""


class LoggedCommitter(FakeCommitter):
    """As in Kafka, an open transaction of an older driver hides the proof, so the proof ends it."""

    _spared: frozenset[str] = frozenset()

    def initialize_state(
        self,
        decided: Sequence[FakeHandle],
        scan_start: Mapping[str, Any],
        spared: Sequence[FakeHandle] = (),
        *,
        is_own: bool = True,
    ) -> Mapping[FakeHandle, Evidence]:
        self._spared = frozenset(handle.transaction for handle in spared)
        try:
            return super().initialize_state(decided, scan_start, spared, is_own=is_own)
        finally:
            self._spared = frozenset()

    def prove(self, handles: Sequence[FakeHandle], scan_start: Mapping[str, Any]) -> Mapping[FakeHandle, Evidence]:
        for name in {*self._store.pending()} - self._spared - {handle.transaction for handle in handles}:
            if self._store.transactions[name].driver_epoch < self.driver_epoch:
                self._store.transactions[name].state = "aborted"
        return super().prove(handles, scan_start)


class LoggedSink(FakeSink):
    def create_committer(self) -> LoggedCommitter:
        return LoggedCommitter(self.world, self.name)


@dataclass(eq=False)
class Owner:
    """A query and its checkpoint."""

    number: int
    sinks: set[str]
    files: MemoryFiles = field(default_factory=MemoryFiles)
    batch: int = 0
    overrides: Sequence[Override] = ()
    is_retired: bool = False  #: the user has ended it
    is_replaced: bool = False  #: its successor has processed a batch

    @property
    def id(self) -> str:
        return f"query-{self.number}"

    def rows_of(self, batch: int) -> dict[int, list[int]]:
        """Every fourth batch has no rows."""
        first = self.number * 10_000 + batch * 10
        return {0: [first], 1: [first + 1]} if batch % 4 != 3 else {0: []}


class History:
    """Plays the history of one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(logs={name: MemoryFiles() for name in LOGGED})
        self.world.stores |= {name: OwnedStore(is_forgetful=name == "q") for name in OWNED}
        self.owners: list[Owner] = []
        self.trace: list[str] = []
        #: The transactions that the user has given up.
        self.excused: set[str] = set()

    def play(self) -> None:
        """Play the history, and judge it.

        Raises:
            BrokenError: a promise is broken; the message contains the steps.
        """
        try:
            for _ in range(self.chance.randint(2, STEPS)):
                self._step()
            self._finish()
        except Exception as error:
            steps = "\n".join(self.trace)
            raise BrokenError(f"{type(error).__name__}: {error}\n{steps}") from error

    def _step(self) -> None:
        chance, live = self.chance, [one for one in self.owners if not one.is_retired]
        what = chance.random()
        if not live or (what < 0.4 and len(self.owners) < MOST_QUERIES):
            one = Owner(len(self.owners), self._some())
            self.owners.append(one)
            self._say(f"{one.id} is new, with {sorted(one.sinks)}")
        else:
            one = chance.choice(live)
        if 0.4 < what < 0.55:
            one.sinks |= self._some(2)
            self._say(f"{one.id} now has {sorted(one.sinks)}")
        self._run(one)

    def _some(self, most: int = 3) -> set[str]:
        """A few sinks. Most of them contain one with a log, and one without."""
        if self.chance.random() < 0.5:
            return {self.chance.choice(LOGGED), self.chance.choice(OWNED)}
        return set(self.chance.sample(SINKS, self.chance.randint(1, most)))

    def _expire(self) -> None:
        """All open transactions of a sink with a log time out."""
        sink = self.chance.choice(LOGGED)
        self._say(f"open transactions in {sink} time out")
        self.world.store(sink).expire()

    def _finish(self) -> None:
        for one in list(self.owners):
            if not one.is_retired and self.chance.random() < 0.3:
                self.bring_up(one)
        self.owners.append(Owner(len(self.owners), set(SINKS)))
        self._say(f"{self.owners[-1].id} takes over everything")
        for _ in range(2):
            self.bring_up(self.owners[-1])
        for one in self.owners:
            if missing := self.missing(one):
                raise BrokenError(f"these decided rows of {one.id} are lost: {missing}")
        for sink in SINKS:
            if twice := [row for row, count in Counter(self.world.store(sink).visible()).items() if count > 1]:
                raise BrokenError(f"rows are visible twice in {sink}: {twice}")

    # -- the drivers -------------------------------------------------------------------------------------------------------

    def _run(self, one: Owner) -> None:
        for _ in range(self.chance.randint(1, 2)):
            if not self.bring_up(one, is_faulty=True):
                return

    def bring_up(self, one: Owner, *, is_faulty: bool = False) -> bool:
        """Start the query, and do what its errors say, until it has processed a batch.

        Return False if the driver died, or if what the errors say has let another query replace this one.
        """
        for _ in range(PATIENCE):
            if one.is_replaced:
                return False
            try:
                with self._faults(is_faulty=is_faulty):
                    self._start(one)
            except Crash:
                self._say(f"{one.id} dies")
                if self.chance.random() < 0.3:
                    self._expire()
                return False
            except TwoPhaseCommitError as error:
                self._say(f"{one.id}: {type(error).__name__}: {error}")
                self._react(one, error)
            else:
                return True
        raise BrokenError(f"the errors lead {one.id} in circles")

    def _start(self, one: Owner) -> None:
        self._say(f"{one.id} starts batch {one.batch} with {sorted(one.sinks)} and {list(one.overrides)}")
        sinks: list[TwoPhaseCommitSink[Any]] = [
            (LoggedSink if name in LOGGED else OwnedSink)(self.world, name)
            for name in self.chance.sample(sorted(one.sinks), len(one.sinks))
        ]
        coordinator = Coordinator(sinks, one.files, settings=Settings(overrides=Overrides.of(one.overrides)))
        engine = FakeEngine(*sinks)  # type: ignore[arg-type]
        engine.rows = one.rows_of(one.batch)
        coordinator.process(batch_of(one.batch, query_id=one.id), engine, Pending())
        one.batch += 1
        for other in self.owners:
            other.is_replaced |= EndQuery(other.id) in one.overrides

    @contextmanager
    def _faults(self, *, is_faulty: bool) -> Iterator[None]:
        chance = self.chance
        if is_faulty and chance.random() < 0.5:
            arm(
                chance.choice(POINTS if chance.random() < 0.5 else AFTER_THE_DECISION),
                self.world.crash,
                passage=chance.choice((1, 1, 1, 2, 3)),
            )
        elif is_faulty and chance.random() < 0.3:
            store = self.world.store(chance.choice(SINKS))

            def fail() -> None:
                store.unreachable = True

            arm(chance.choice(("driver.acquired", "driver.decided")), fail)
        try:
            yield
        finally:
            crash_points.disarm()

    # -- the user ----------------------------------------------------------------------------------------------------------

    def _react(self, one: Owner, error: TwoPhaseCommitError) -> None:
        text = str(error)
        if isinstance(error, (CommitBlockedError, InDoubtError)):
            self._require_all_tried(one, text)
        silent = [store for store in self.world.stores.values() if store.unreachable]
        for store in silent:
            store.unreachable = False
        if silent:
            return  # the user fixes the cause, and restarts the query
        if isinstance(error, CommitBlockedError):
            self._give_up(error.transactions)
        elif isinstance(error, InDoubtError):
            self._give_up([*error.lost, *error.unknown])
        elif not isinstance(error, RefusedStartError) or error.case in {"lost decision", "older copy", "older store"}:
            raise error
        elif error.case == "ended query" and not one.is_replaced:
            one.is_replaced = True  # its successor has died, but has decided a batch before
            return
        elif error.case == "sink left out" and not self._leave_out(one, text):
            return
        elif "all of its decided batches are visible" in text:
            self._make_visible(one, text)
        self._override(one, text)

    def _require_all_tried(self, one: Owner, text: str) -> None:
        """A start has raised this error. It must have tried to commit every decision in the logs of its sinks.

        In a sink, a decision may wait for an older one that the error names.
        """
        logs = [OwnLog(self.world.logs[name]) for name in sorted(one.sinks) if name in LOGGED]
        last = [fold(log.inspect()).decision for log in [*logs, RegisterLog(one.files)]]
        decisions = {
            (sink, task.handles[sink]["transaction"]): decision
            for decision in last
            if decision is not None
            for task in decision.tasks
            for sink in task.handles
        }
        for (sink, name), decision in decisions.items():
            store = self.world.store(sink)
            if sink not in one.sinks or store.unreachable or name not in store.pending():
                continue
            epoch = store.transactions[name].driver_epoch
            awaited = [
                f"batch {older.batch_id} of query {older.query_id}"
                for (other, of_older), older in decisions.items()
                if other == sink and older is not decision and store.transactions[of_older].driver_epoch < epoch
            ]
            if not any(older in text for older in awaited):
                raise BrokenError(f"the start has not tried to commit {name}")

    def _give_up(self, transactions: Sequence[str]) -> None:
        """The user passes the error's override. The start must have tried to commit all of these transactions."""
        if untried := {*transactions} & {name for store in self.world.stores.values() for name in store.pending()}:
            raise BrokenError(f"the error gives up what can still be committed: {untried}")
        self._excuse(transactions)

    def _excuse(self, transactions: Sequence[str]) -> None:
        self._say(f"  the user gives up {list(transactions)}")
        self.excused |= {*transactions}

    def _leave_out(self, one: Owner, text: str) -> bool:
        """Return whether the sinks stay left out."""
        found = re.search(
            r"batch (\d+) of query (\S+) is .* in the sinks (\[.*?\]), but this start does not pass", text
        )
        assert found is not None
        sinks: list[str] = eval(found[3])  # noqa: S307 - a list of names
        of = self._owner(found[2])
        if self.chance.random() < 0.5:
            one.sinks |= {*sinks}
            self._say(f"  the user passes {sinks} again")
            return False
        if not of.is_replaced:
            self._complete(of)
        if not of.is_replaced:
            return True
        for sink in sinks:  # the user checks them, and inserts the rows that are missing
            of_sink = self.world.store(sink).transactions.items()
            self._excuse([name for name, one in of_sink if (one.query_id, one.batch_id) == (of.id, int(found[1]))])
        return True

    def _make_visible(self, one: Owner, text: str) -> None:
        """Check that all decided batches of a query are visible. A sloppy user looks only at the sink that the error names.

        If the query's decisions are in its checkpoint, nothing would ever complete what a sloppy user overlooks.
        """
        found = re.search(r"name in use: (?:sink '(\w)')?.* was last used by query (\S+);", text)
        assert found is not None
        of = self._owner(found[2])
        is_sloppy = found[1] and not fold(RegisterLog(of.files).inspect()).kept and self.chance.random() < 0.5
        if not self.missing(of, [found[1]] if is_sloppy else SINKS):
            return
        if not of.is_replaced:
            self._complete(of)
        if of.is_replaced:
            one.sinks |= of.sinks

    def _complete(self, of: Owner) -> None:
        self._say(f"  the user starts {of.id} once more")
        while self.missing(of) and not of.is_replaced:
            self.bring_up(of)

    def _override(self, one: Owner, text: str) -> None:
        one.overrides = named_overrides(text)
        if not one.overrides:
            raise BrokenError(f"this error offers no way out: {text}")
        self._say(f"  the user passes {one.overrides}")
        for other in self.owners:
            other.is_retired |= EndQuery(other.id) in one.overrides
        if EndQuery(one.id) in one.overrides:
            raise BrokenError(f"{one.id} cannot continue: {text}")

    # -- what is known -----------------------------------------------------------------------------------------------------

    def _owner(self, query_id: str) -> Owner:
        return next(one for one in self.owners if one.id == query_id)

    def missing(self, of: Owner, sinks: Sequence[str] = SINKS) -> dict[str, list[int]]:
        """The decided rows of a query that are not visible, by sink, except those that the user has given up."""
        found: dict[str, list[int]] = {}
        for decision in self._decisions(of):
            for sink in set(sinks) & {name for task in decision.tasks for name in task.handles}:
                store = self.world.store(sink)
                given_up = [
                    row for name in self.excused & store.transactions.keys() for row in store.transactions[name].rows
                ]
                wanted = {row for rows in of.rows_of(decision.batch_id).values() for row in rows}
                if rows := wanted - {*store.visible(), *given_up}:
                    found.setdefault(sink, []).extend(sorted(rows))
        return found

    def _decisions(self, of: Owner) -> Iterator[Decision]:
        for files in [of.files, *self.world.logs.values()]:
            for entry in RegisterLog(files).inspect().entries:
                if isinstance(entry.record, Decision) and entry.record.query_id == of.id:
                    yield entry.record

    def _say(self, what: str) -> None:
        self.trace.append(what)
