"""Random schedules: drivers replace each other, commits fail or come late, others change the table.

The table contains each row once.

``TWOPC_SCHEDULES=100`` plays more; ``TWOPC_SEED=7 TWOPC_SCHEDULES=1`` repeats one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.unit.delta_support import Shop
from tests.unit.lake_support import prepare
from twopc import TwoPhaseCommitError
from twopc.attempt import Evidence
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from twopc.sinks.delta.handle import DeltaHandle

_SCHEDULES = int(os.environ.get("TWOPC_SCHEDULES", "6"))
_STEPS = 14


@dataclass
class Decision:
    """The checkpoint's knowledge of the newest batch: each task's handle, and its rows."""

    batch: int
    scan_start: Mapping[str, Any]
    tasks: dict[DeltaHandle, list[int]]
    everything: set[int] = field(default_factory=set)


class World:
    """One table, one checkpoint, and the drivers that think the sink is theirs; the last one is right."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shop = Shop(directory)
        self.sink = self.shop.named("orders", timeout_ms=300)
        self.numbers = itertools.count(1)
        self.late: list[Callable[[], None]] = []
        self.drivers: list[Driver] = []
        self.decision = Decision(-1, {}, {})
        self.is_settled = True
        self.expected: set[int] = set()
        self.removed: set[int] = set()
        self.depth = 0
        self.calm = False
        self.did: list[str] = []

    # -- what may happen to deltalake's commits ------------------------------------------------------------------------

    def on_commit(self, send: Callable[[], None]) -> None:
        fate = (
            "sent"
            if self.calm
            else self.rng.choice(["sent"] * 4 + ["lost answer", "lost request", "late", "arrival", "rival", "takeover"])
        )
        if fate != "sent":
            self.did.append(f"a commit: {fate}")
        if fate == "rival":
            self.foreign(is_within=True)
        if fate == "arrival":
            self.deliver()
        if fate == "takeover" and self.depth < 2 and self.drivers:
            self.start()
        if fate in {"lost request", "late"}:
            if fate == "late":
                self.late.append(send)
            raise OSError("no answer")
        send()
        if fate == "lost answer":
            raise OSError("no answer")

    # -- the steps -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new driver reads the checkpoint and recovers, unless it fails."""
        self.depth += 1
        try:
            driver = Driver(self.sink)
            self.drivers.append(driver)
            if self.decision.tasks:
                self.settle(driver, driver.committer.initialize_state)
            if self.is_settled:
                driver.committer.recover_and_abort(list(self.decision.tasks))
        except TwoPhaseCommitError as error:
            self.did.append(f"  start failed: {type(error).__name__}")
        finally:
            self.depth -= 1

    def settle(self, driver: Driver, how: Callable[..., Any]) -> None:
        """Commit the decision, and repair what is lost."""
        decision = self.decision
        for _ in range(3):
            handles = list(decision.tasks)
            found = how(handles, decision.scan_start)
            if self.decision is not decision or driver is not self.drivers[-1]:
                return
            if any(evidence is Evidence.UNKNOWN for evidence in found.values()):
                return
            lost = [handle for handle in handles if found[handle] is Evidence.ABORTED]
            self.expected |= {
                row for handle in handles if handle not in lost for row in decision.tasks[handle]
            } - self.removed
            if not lost:
                self.is_settled = True
                return
            self.did.append(f"  repairs {len(lost)} of {len(handles)}")
            attempt = 1000 + next(self.numbers)
            repaired = {
                prepare(
                    driver, self.sink, *decision.tasks[handle], batch=decision.batch, attempt=attempt
                ): decision.tasks[handle]
                for handle in lost
            }
            driver.committer.confirm(list(repaired), 0)
            for handle in lost:
                del decision.tasks[handle]
            decision.tasks.update(repaired)
            how = driver.committer.commit

    def write(self) -> None:
        """The newest driver writes the next batch; perhaps after an attempt that fails."""
        driver = self.drivers[-1]
        if not self.is_settled:
            self.settle(driver, driver.committer.commit)
            return
        batch = self.decision.batch + 1
        for is_decided in [False] * self.rng.choice([0, 0, 1]) + [True]:
            scan_start = driver.begin()
            attempt = next(self.numbers)
            tasks = {}
            for _ in range(self.rng.choice([1, 2, 3])):
                rows = [next(self.numbers) for _ in range(2)] if is_decided else [-next(self.numbers)]
                tasks[prepare(driver, self.sink, *rows, batch=batch, attempt=attempt)] = rows
            if not self.calm and self.rng.random() < 0.2:
                self.foreign()
            if is_decided:
                driver.committer.confirm(list(tasks), 0)
                self.decision, self.is_settled = Decision(batch, scan_start, tasks), False
                if self.calm or self.rng.random() < 0.7:
                    self.settle(driver, driver.committer.commit)
                if self.is_settled and driver is self.drivers[-1]:
                    driver.committer.recover_and_abort(list(self.decision.tasks))

    def former(self) -> None:
        """A replaced driver wakes up, and commits and sweeps the transactions that it knows."""
        driver = self.rng.choice(self.drivers)
        if driver is self.drivers[-1] or not self.decision.tasks:
            return
        handles = list(self.decision.tasks)
        driver.committer.commit(handles, self.decision.scan_start)
        driver.committer.recover_and_abort(handles)

    def foreign(self, *, is_within: bool = False) -> None:
        """Another writer changes the table. VACUUM without retention is harmless only if no commit is under way."""
        what = self.rng.choice(["append", "append", "compact", "checkpoint", "vacuum", "restore", "clean"])
        self.did.append(f"  others: {what}")
        table = self.shop.table()
        if what == "append":
            row = next(self.numbers)
            self.shop.append(row)
            self.expected.add(row)
        with contextlib.suppress(Exception):  # such as a restore to a version whose files VACUUM has deleted
            if what == "compact":
                table.optimize.compact()
            elif what == "checkpoint":
                table.create_checkpoint()
            elif what == "vacuum" and not is_within and not self.late:
                table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
            elif what == "restore" and self.decision.batch < 3:
                before = set(self.shop.values())
                table.restore(max(0, table.version() - self.rng.randrange(1, 4)))
                after = set(self.shop.values())
                self.removed = (self.removed | (before - after)) - after
                self.expected = (self.expected - self.removed) | (after - before)
            elif what == "clean":
                table.create_checkpoint()
                for version in range(table.version()):
                    (self.shop.path / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)

    def deliver(self) -> None:
        """A commit that was held back arrives."""
        if self.late:
            send = self.late.pop(self.rng.randrange(len(self.late)))
            with contextlib.suppress(Exception):
                send()
                self.did.append("  it took effect")

    # -- the rule ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        found = self.shop.values()
        assert len(found) == len(set(found)), f"doubled: {found}"
        assert not [row for row in found if row < 0], f"undecided: {found}"
        open_rows = set() if self.is_settled else {row for rows in self.decision.tasks.values() for row in rows}
        assert set(found) <= self.expected | open_rows, f"strange: {sorted(set(found) - self.expected)}"
        assert self.expected <= set(found), f"missing: {sorted(self.expected - set(found))}"

    def run(self) -> None:
        self.start()
        for _ in range(_STEPS):
            step = self.rng.choice(
                [self.write] * 5 + [self.start, self.former, self.foreign, self.deliver, self.deliver]
            )
            self.did.append(step.__name__)
            if not self.drivers:
                step = self.start
            try:
                step()
            except TwoPhaseCommitError as error:
                self.did.append(f"  {type(error).__name__}: {str(error)[:120]}")
            self.check()
        self.calm = True
        while self.late:
            self.deliver()
        self.start()
        assert self.is_settled, self.drivers[-1].committer.blockers()
        self.check()
        batch = self.decision.batch
        self.write()
        assert (self.decision.batch, self.is_settled) == (batch + 1, True)
        self.check()


@contextlib.contextmanager
def passed_through(world: World) -> Iterator[None]:
    patched: Any = DeltaTable
    real = patched.create_write_transaction
    patched.create_write_transaction = lambda table, *args, **how: world.on_commit(lambda: real(table, *args, **how))
    try:
        yield
    finally:
        patched.create_write_transaction = real


@pytest.mark.parametrize("number", range(_SCHEDULES))
def test_a_decided_batch_is_visible_once_whatever_happens(number: int, tmp_path: Path) -> None:
    given = os.environ.get("TWOPC_SEED")
    seed = secrets.randbits(32) if given is None else int(given) + number
    print(f"schedule {number}: seed {seed}")  # noqa: T201 - pytest shows it if the test fails
    run_schedule(tmp_path, seed)


def run_schedule(directory: Path, seed: int) -> World:
    world = World(directory, seed)
    try:
        with passed_through(world):
            world.run()
    except BaseException:
        print("\n".join([f"seed {seed}", *world.did]))  # noqa: T201
        raise
    finally:
        close_opened()
    return world
