"""In-memory sink, engine and staged rows that the coordinator tests run on.

A :class:`World` outlives its drivers. ``World.crash()`` kills every process together: objects created before the crash
can do nothing afterwards, not even clean up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.tasks import prepare_all
from twopc.attempt import Evidence
from twopc.batch import Batch
from twopc.checkpoint_config import CheckpointConfig
from twopc.checkpointing import PASSING, Checkpoints
from twopc.committer import SinkCommitter
from twopc.coordinator import Coordinator
from twopc.crash_points import crash_point
from twopc.engine import Publish
from twopc.errors import RetriableError
from twopc.files import LocalFiles
from twopc.listeners import Listener, Listeners
from twopc.records import TaskReport
from twopc.registers import RegisterLog
from twopc.sink import TwoPhaseCommitSink
from twopc.testing.contract.case import Crash as Crash  # noqa: PLC0414 - re-exported, because it ends the fake world
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from twopc.attempt import Claim, Known, Owner, TaskAttempt
    from twopc.decision_log import DecisionLog
    from twopc.engine import Work
    from twopc.files import Files
    from twopc.settings import Settings
    from twopc.times import Times

QUERY_ID = "query-a"
PARTITIONS = 3


@dataclass
class Transaction:
    """One transaction outside any process."""

    driver_epoch: int
    query_id: str = ""
    batch_id: int = -1
    state: str = "open"
    rows: list[int] = field(default_factory=list)


@dataclass
class Store:
    """The data that one sink stores outside of any process."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    driver_epoch: int = 0
    unreachable: bool = False
    refused_confirmations: int = 0
    expire_on_commit: int = 0
    sweeps: int = 0

    def visible(self) -> list[int]:
        return sorted(row for t in self.transactions.values() if t.state == "committed" for row in t.rows)

    def pending(self) -> list[str]:
        return [name for name, t in self.transactions.items() if t.state in {"open", "prepared"}]

    def expire(self, count: int | None = None) -> None:
        """The broker aborts pending transactions: all of them, or the first ``count``."""
        for name in self.pending()[:count]:
            self.transactions[name].state = "aborted"


@dataclass
class World:
    """Everything that survives a crash."""

    stores: dict[str, Store] = field(default_factory=dict)
    staged: dict[str, list[int]] = field(default_factory=dict)
    generation: int = 0
    logs: dict[str, Files] = field(default_factory=dict)  #: files of each sink's own decision log, by sink name

    def store(self, name: str = "fake") -> Store:
        return self.stores.setdefault(name, Store())

    def crash(self) -> None:
        self.generation += 1
        raise Crash


@dataclass(frozen=True)
class FakeHandle:
    transaction: str


class FakeWriter(SinkWriter[FakeHandle]):
    def __init__(self, world: World, sink: str, task: TaskAttempt) -> None:
        self._world, self._generation = world, world.generation
        self._store = world.store(sink)
        self._task = task
        self._name = f"{sink}.{task.driver_epoch}.{len(self._store.transactions)}"

    def begin_transaction(self) -> None:
        self._store.transactions[self._name] = Transaction(
            self._task.driver_epoch, self._task.query_id, self._task.batch_id
        )

    def write(self, rows: pa.RecordBatch) -> None:
        values: list[int] = rows.column("value").to_pylist()  # type: ignore[assignment]
        self._store.transactions[self._name].rows += values

    def pre_commit(self) -> FakeHandle:
        self._store.transactions[self._name].state = "prepared"
        return FakeHandle(self._name)

    def abort(self) -> None:
        if self._generation == self._world.generation:
            self._store.transactions[self._name].state = "aborted"


class OwnLog(RegisterLog):
    """A decision log that a sink provides. The logs of several sinks have one name, but are on different clusters."""

    name = "own log"

    def __init__(self, files: Files, cluster: str = "") -> None:
        super().__init__(files)
        self.cluster = cluster


class FakeCommitter(SinkCommitter[FakeHandle]):
    def __init__(self, world: World, sink: str) -> None:
        self._world, self._generation = world, world.generation
        self._sink, self._run = sink, ""
        self._log = OwnLog(world.logs[sink], sink) if sink in world.logs else None
        self.driver_epoch = -1
        self.asked: list[tuple[Known[FakeHandle], Mapping[str, Any]]] = []
        self._orphans_ended = 0

    @property
    def _store(self) -> Store:
        if self._generation != self._world.generation:
            raise Crash  # the process is gone
        return self._world.store(self._sink)

    def binding(self) -> Mapping[str, str]:
        return {"store": self._sink}

    def decision_log(self) -> DecisionLog | None:
        return self._log

    def inspect(self) -> None:
        """Finds nothing wrong."""

    def has_unknown_commit(self, known: Known[FakeHandle], scan_start: Mapping[str, Any]) -> bool:
        self.asked.append((known, scan_start))
        decided = {handle.transaction for handle in known.handles}
        return any(
            found.state == "committed" and found.query_id == known.query_id and found.batch_id >= known.first_batch
            for name, found in self._store.transactions.items()
            if name not in decided
        )

    def acquire(self, claim: Claim, seen: Owner | None = None) -> int:
        del seen
        if self._log is not None:
            self._log.acquire(claim)
        if self._run != claim.run:
            self._run = claim.run
            self._store.driver_epoch += 1
            self.driver_epoch = self._store.driver_epoch
            crash_point("driver.fenced")
        return self.driver_epoch

    def begin_attempt(self) -> Mapping[str, Any]:
        return {"at": len(self._store.transactions)}

    def confirm(self, handles: Sequence[FakeHandle], age_ms: float) -> None:
        assert age_ms >= 0
        if self._store.refused_confirmations:
            self._store.refused_confirmations -= 1
            raise RetriableError("the confirmation was refused")
        if any(self._store.transactions[handle.transaction].state != "prepared" for handle in handles):
            raise RetriableError("a transaction is gone")

    def commit(self, handles: Sequence[FakeHandle], scan_start: Mapping[str, Any]) -> Mapping[FakeHandle, Evidence]:
        if self._store.expire_on_commit:
            self._store.expire_on_commit -= 1
            self._store.expire()
        for handle in handles:
            transaction = self._store.transactions[handle.transaction]
            if transaction.state == "prepared" and not self._store.unreachable:
                transaction.state = "committed"
            crash_point("driver.committing")
        return self.prove(handles, scan_start)

    def abort(self, handles: Sequence[FakeHandle]) -> None:
        for handle in handles:
            self._store.transactions[handle.transaction].state = "aborted"

    def prove(self, handles: Sequence[FakeHandle], scan_start: Mapping[str, Any]) -> Mapping[FakeHandle, Evidence]:
        assert "at" in scan_start
        known = {"committed": Evidence.COMMITTED, "aborted": Evidence.ABORTED}
        return {h: known.get(self._store.transactions[h.transaction].state, Evidence.UNKNOWN) for h in handles}

    def recover_and_abort(self, decided: Collection[FakeHandle]) -> None:
        self._store.sweeps += 1
        spared = {handle.transaction for handle in decided}
        for name in self._store.pending():
            if name not in spared and self._store.transactions[name].driver_epoch <= self.driver_epoch:
                self._store.transactions[name].state = "aborted"
                self._orphans_ended += 1

    def orphans_ended(self) -> int:
        return self._orphans_ended

    def close(self) -> None:
        """Holds no resources."""


@dataclass(frozen=True)
class FakeSink(TwoPhaseCommitSink[FakeHandle]):
    world: World
    name: str = "fake"
    handle_type: type[FakeHandle] = FakeHandle
    prepare_timeout_ms: float | None = None

    def create_writer(self, task: TaskAttempt) -> FakeWriter:
        return FakeWriter(self.world, self.name, task)

    def create_committer(self) -> FakeCommitter:
        return FakeCommitter(self.world, self.name)


class FakeStaging:
    def __init__(self, world: World) -> None:
        self._world = world
        self.released: list[tuple[int, int]] = []
        self.discards: list[int] = []

    def has(self, name: str) -> bool:
        return name in self._world.staged

    def release(self, driver_epoch: int, batch: int) -> None:
        self.released.append((driver_epoch, batch))

    def discard(self, driver_epoch: int, decided: Collection[str]) -> None:
        self.discards.append(driver_epoch)
        for name in self._world.staged.keys() - set(decided):
            del self._world.staged[name]


def record_batch(rows: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(rows, pa.int64())})


class FakeEngine:
    """Runs a batch's tasks one after another: partition p of batch n writes n*100 + p*10 + 0, 1."""

    def __init__(self, *sinks: FakeSink, staging: bool = False) -> None:
        self._sinks = sinks
        self._staging = staging
        self.rows: dict[int, list[int]] | None = None
        self.failures: list[BaseException] = []
        self.works: list[Work] = []
        self.evaluated = 0

    def prepare(self, work: Work) -> list[TaskReport]:
        self.works.append(work)
        if self.failures:
            raise self.failures.pop(0)
        planned = rows_of(work.batch.batch_id) if self.rows is None else self.rows
        if isinstance(work.mode, Publish):
            planned = {task.partition: self._sinks[0].world.staged[str(task.staged)] for task in work.mode.tasks}
        # In reverse order, because real tasks also finish out of order.
        return [self._run_task(work, partition, planned[partition]) for partition in reversed(planned)]

    def evaluate(self) -> None:
        self.evaluated += 1

    def _run_task(self, work: Work, partition: int, rows: list[int]) -> TaskReport:
        handles = prepare_all(self._sinks, work, partition, [record_batch(rows)])
        is_staged = self._staging and not isinstance(work.mode, Publish)
        staged = f"{work.batch.batch_id}-{partition}-{len(self.works)}" if is_staged else None
        if staged:
            self._sinks[0].world.staged[staged] = rows
        return TaskReport(partition=partition, rows=len(rows), checksum=sum(rows), handles=handles, staged=staged)


def rows_of(batch: int) -> dict[int, list[int]]:
    return {partition: [batch * 100 + partition * 10 + i for i in range(2)] for partition in range(PARTITIONS)}


def all_rows(*batches: int) -> list[int]:
    return sorted(row for batch in batches for rows in rows_of(batch).values() for row in rows)


def offsets_of(batch: int) -> tuple[str, ...]:
    return (f'{{"t":{{"0":{batch}}}}}',)


def batch_of(batch: int, *, query_id: str = QUERY_ID, history: str = "", times: Times | None = None) -> Batch:
    """A batch of the checkpoint of a query with state; a different ``history`` has different planned offsets."""

    def offsets(of: int) -> tuple[str, ...]:
        return tuple(history + offset for offset in offsets_of(of))

    return Batch(query_id, batch, offsets(batch), offsets, times_of=lambda _: times, keeps_state=lambda: True)


@dataclass
class Query:
    """One run of the query: a coordinator and its engine."""

    coordinator: Coordinator
    engine: FakeEngine
    checkpoints: Checkpoints

    def run(self, *batches: int, query_id: str = QUERY_ID, history: str = "") -> None:
        for number in batches:
            batch = batch_of(number, query_id=query_id, history=history)
            self.checkpoints.complete(
                batch,
                lambda pending, _, batch=batch: self.coordinator.process(batch, self.engine, pending),  # type: ignore[misc]
                lambda error, batch=batch: isinstance(error, PASSING) and self.coordinator.is_undecided(batch),  # type: ignore[misc]
            )


class Cluster:
    """A world, one checkpoint directory, and a way to start queries on them."""

    def __init__(self, directory: Path) -> None:
        self.world = World()
        self.files: Files = LocalFiles(directory)
        self.kinds: dict[str, Callable[[World, str], Any]] = {}  #: what a sink of this name is, if it is no FakeSink

    @property
    def store(self) -> Store:
        return self.world.store()

    def start(
        self,
        *sinks: str,
        staging: bool = False,
        settings: Settings | None = None,
        files: Files | None = None,
        listeners: Sequence[Listener] = (),
        checkpoints: CheckpointConfig | None = None,
        wait_ms: Callable[[int], None] = lambda _: None,
    ) -> Query:
        made = [self.kinds.get(name, FakeSink)(self.world, name) for name in sinks or ("fake",)]
        staged = FakeStaging(self.world) if staging else None
        coordinator = Coordinator(made, files or self.files, settings=settings, staging=staged)
        engine = FakeEngine(*made, staging=staging)
        config = checkpoints or CheckpointConfig()
        return Query(coordinator, engine, Checkpoints(config, Listeners(listeners), "run", wait_ms))
