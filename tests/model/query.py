"""One streaming query as Spark runs it: a checkpoint that outlives drivers, tasks in workers, a state version per batch.

The order is Spark's: ``offsets/N`` before ``foreachBatch``, ``commits/N`` after it. A restart begins with the last batch
that has no commit.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tests.model.simulation import Crash, Process, Simulation
from tests.tasks import attempt_of, prepare
from twopc import errors
from twopc.batch import Batch
from twopc.checkpoint_config import CheckpointConfig
from twopc.checkpointing import PASSING, Checkpoints
from twopc.coordinator import Coordinator
from twopc.engine import Publish, Repair
from twopc.errors import CheckpointExpiredError, FatalError, RetriableError, TwoPhaseCommitError
from twopc.listeners import Listeners
from twopc.override import Overrides
from twopc.records import Part, TaskReport, added_up
from twopc.settings import Settings
from twopc.sinks.kafka import KafkaSink, producer_pool

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twopc.engine import Work

OUTPUT: Final = "out"
LEDGERS: Final = ("twopc-ledger-m", "twopc-ledger-a")
QUERY_ID: Final = "query-a"
TRANSACTION_TIMEOUT_MS: Final = 60_000
_TASK_ATTEMPTS: Final = 3
_SPECULATED: Final = 0.1
_DIRECT: Final = 0.3
_SKIPPED: Final = 0.4
_LISTED: Final = 0.5
#: The probability that a driver plans the partitions in a different order.
_REORDERED: Final = 0.2
#: The probability that each task receives exactly one partition of the plan.
_ONE_EACH: Final = 0.4

#: The rows of a task, by partition of the plan.
_Given = dict[int, list[int]]


class ModelViolation(AssertionError):  # noqa: N818 - a verdict, not an error
    """The product broke a promise."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a history's query.

    ``shuffled``: a replay moves rows to other tasks. ``staged``: tasks keep their rows until the batch is proven. ``skips``:
    the user's function leaves some batches out. ``objects``: the checkpoint is on an object store.
    ``tolerable``: how many checkpoints may fail in a row before a driver stops.
    """

    batches: int
    tasks: int
    workers: int
    shuffled: bool
    staged: bool
    keep_batches: int
    skips: bool
    objects: bool
    tolerable: int


@dataclass
class Checkpointed:
    """The data that survives every process: the query's checkpoint directory and its source's plan."""

    offsets: dict[int, int] = field(default_factory=dict)  #: batch -> its end offset in the source
    commits: set[int] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    staged: dict[str, list[int]] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)  #: written state versions
    skipped: set[int] = field(default_factory=set)  #: batches that the user's function leaves out
    query_id: str = QUERY_ID
    start: int = 0  #: where the query begins in the source

    def plan(self, batch: int, end: int, *, skips: bool) -> None:
        """Plan a batch, if no other driver has."""
        if batch in self.offsets:
            return
        self.offsets[batch] = end
        if skips:
            self.skipped.add(batch)

    def rows_of(self, batch: int) -> range:
        return range(self.begin_of(batch), self.offsets[batch])

    def begin_of(self, batch: int) -> int:
        return self.offsets.get(batch - 1, self.start)

    def offsets_of(self, batch: int) -> tuple[str, ...] | None:
        return (str(self.offsets[batch]),) if batch in self.offsets else None


class Files:
    """See :class:`twopc.files.Files`. Every access to the checkpoint is a request.

    An object store lists some of its files. Its put looks for the file when it begins. The file appears when the put ends, and
    replaces any file that appeared in between.
    """

    location = "checkpoint"

    def __init__(self, simulation: Simulation, files: dict[str, bytes], *, is_atomic: bool) -> None:
        self._simulation, self._files, self.is_atomic = simulation, files, is_atomic

    def read(self, name: str) -> bytes | None:
        return self._simulation.request("file", lambda: self._files.get(name))

    def read_end(self, name: str, size: int) -> bytes | None:
        data = self.read(name)
        return None if data is None else data[-size:]

    def names(self, directory: str) -> list[str]:
        assert not directory
        names = self._simulation.request("file", lambda: sorted(self._files))
        return [name for name in names if self.is_atomic or self._simulation.chance.random() < _LISTED]

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if not self.is_atomic:
            if self._simulation.request("file", lambda: name in self._files):
                return False
            self._simulation.request("file", lambda: self._files.__setitem__(name, data))
            return True
        return self._simulation.request("file", lambda: self._files.setdefault(name, data) is data)

    def remove(self, name: str) -> None:
        self._simulation.request("file", lambda: self._files.pop(name, None))


class Staging:
    """See :class:`twopc.engine.StagedRows`."""

    def __init__(self, simulation: Simulation, staged_files: dict[str, list[int]]) -> None:
        self._simulation, self._staged_files = simulation, staged_files

    def has(self, name: str) -> bool:
        return self._simulation.request("file", lambda: name in self._staged_files)

    def release(self, driver_epoch: int, batch: int) -> None:
        def drop() -> None:
            for name in list(self._staged_files):
                of, number, _ = name.split("/")
                if int(of) <= driver_epoch and int(number) <= batch:
                    del self._staged_files[name]

        self._simulation.request("file", drop)

    def discard(self, driver_epoch: int, decided: Collection[str]) -> None:
        def drop() -> None:
            for name in self._staged_files.keys() - set(decided):
                if int(name.partition("/")[0]) <= driver_epoch:
                    del self._staged_files[name]

        self._simulation.request("file", drop)


def record_batch(rows: list[int]) -> pa.RecordBatch:
    values = pa.array([b"%d" % row for row in rows], pa.binary())
    return pa.record_batch({"key": values, "value": values})


SINK: Final = KafkaSink(
    name="m",
    bootstrap_servers="model:1",
    topic=OUTPUT,
    options={"kafka.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)},
    timeout_ms=5_000,
)
#: A sink with its own ledger. It sorts before the other one.
ANOTHER_SINK: Final = replace(SINK, name="a")


class Query:
    """A query with all its drivers. It passes all of ``sinks``, and writes to the first one."""

    def __init__(
        self,
        simulation: Simulation,
        shape: Shape,
        checkpointed: Checkpointed | None = None,
        sinks: Sequence[KafkaSink] = (SINK,),
    ) -> None:
        self.simulation = simulation
        self.shape = shape
        self.kept = checkpointed or Checkpointed()
        self.sinks, self.sink = sinks, sinks[0]
        self.speculates = True
        self.skips = shape.skips
        self.checkpoints = CheckpointConfig(tolerable_failures=shape.tolerable)
        self.overrides = Overrides()  #: for drivers that start from now on
        self.idle: list[Process] = []  #: idle Python workers; a restart in the same application reuses them
        self._workers = 0

    def drive(self, process: Process, batches: int) -> None:
        """Run a driver: every batch up to ``batches``, or until something stops it."""
        simulation, kept = self.simulation, self.kept
        staging = Staging(simulation, kept.staged) if self.shape.staged else None
        settings = Settings(max_attempts=2, keep_batches=self.shape.keep_batches, overrides=self.overrides)
        files = Files(simulation, kept.files, is_atomic=not self.shape.objects)
        coordinator = Coordinator(self.sinks, files, settings=settings, staging=staging)
        run = Run(self, process)
        checkpoints = Checkpoints(self.checkpoints, Listeners(), process.name, lambda _: None)
        while (batch := self._planned(batches)) is not None:
            if batch in kept.skipped:
                kept.states.add(batch)
            else:
                checkpoint = Batch(kept.query_id, batch, kept.offsets_of(batch) or (), kept.offsets_of)
                engine = Engine(run, batch)
                checkpoints.complete(
                    checkpoint,
                    lambda pending, _, of=checkpoint, by=engine: coordinator.process(of, by, pending),  # type: ignore[misc]
                    lambda error, of=checkpoint: isinstance(error, PASSING) and coordinator.is_undecided(of),  # type: ignore[misc]
                )
            if batch not in kept.states:
                raise ModelViolation(f"batch {batch} was never fully evaluated: it has no state version")
            simulation.request("file", lambda done=batch: kept.commits.add(done))  # type: ignore[misc]

    def _planned(self, batches: int) -> int | None:
        last = max(self.kept.offsets, default=-1)
        if last >= 0 and last not in self.kept.commits:
            return last
        if last + 1 >= batches:
            return None
        end = self.kept.offsets.get(last, self.kept.start) + self.simulation.chance.choice((0, 1, 2, 4, 6))
        skips = self.skips and last >= 0 and self.simulation.chance.random() < _SKIPPED
        self.simulation.request("file", lambda: self.kept.plan(last + 1, end, skips=skips))
        return last + 1

    def split(self, batch: int) -> list[list[int]]:
        """The rows of each partition of the plan in this attempt."""
        rows = list(self.kept.rows_of(batch))
        tasks: list[list[int]] = [[] for _ in range(self.shape.tasks)]
        for row in rows:
            place = self.simulation.chance.randrange(self.shape.tasks) if self.shape.shuffled else row
            tasks[place % self.shape.tasks].append(row)
        return tasks

    def grouped(self, partitions: list[list[int]]) -> dict[int, _Given]:
        """Give each task one or more partitions.

        Spark's placement of the partitions decides, so each attempt may group them differently.
        """
        chance, count = self.simulation.chance, len(partitions)
        tasks = count if chance.random() < _ONE_EACH else chance.randint(1, count)
        given: dict[int, _Given] = {task: {} for task in range(tasks)}
        for index in chance.sample(range(count), count):
            given[index if tasks == count else chance.randrange(tasks)][index] = partitions[index]
        return given

    def new_worker(self, driver: Process) -> Process:
        self._workers += 1
        return Process(f"{driver.name}/w{self._workers}")


class Run:
    """One driver and its workers."""

    def __init__(self, query: Query, driver: Process) -> None:
        self.query = query
        self.driver = driver

    def worker(self) -> Process:
        usable = [worker for worker in self.query.idle if worker.alive and not worker.paused]
        if not usable:
            return self.query.new_worker(self.driver)
        self.query.idle.remove(usable[0])
        return usable[0]

    def give_back(self, worker: Process) -> None:
        if len(self.query.idle) < self.query.shape.workers:
            self.query.idle.append(worker)


class Engine:
    """See :class:`twopc.engine.Engine`. Serves one batch of a run."""

    def __init__(self, run: Run, batch: int) -> None:
        self._run, self._batch = run, batch
        self._query, self._simulation = run.query, run.query.simulation

    def evaluate(self) -> None:
        self._simulation.request("file", self._write_state)

    def _write_state(self) -> None:
        states = self._query.kept.states
        if self._batch > 0 and self._batch - 1 not in states:
            raise ModelViolation(f"state version {self._batch - 1}, which batch {self._batch} needs, is missing")
        states.add(self._batch)

    def prepare(self, work: Work) -> list[TaskReport]:
        mode = work.mode
        if isinstance(mode, Publish):
            rows = self._simulation.request("file", lambda: self._staged(mode.tasks))
        elif "" in mode.direct if isinstance(mode, Repair) else self._draws_direct():
            return self._prepare_direct(work)
        else:
            rows = self._query.grouped(self._reordered(self._query.split(self._batch)))
        job = _Job(self._run, work, rows)
        for partition in rows:
            job.attempt(partition)
            if self._query.speculates and self._simulation.chance.random() < _SPECULATED:
                job.attempt(partition)
        if not self._simulation.wait(job.is_over, work.timeout_ms):
            raise CheckpointExpiredError(f"batch {self._batch} was not written in time")
        job.cancelled = True
        if job.error is not None:
            raise job.error
        if not isinstance(mode, Publish):
            self._write_state()
        return [job.accepted[partition] for partition in sorted(job.accepted, reverse=True)]

    def _reordered(self, partitions: list[list[int]]) -> list[list[int]]:
        """After a restart, Spark may plan the partitions of a batch in a different order."""
        chance = random.Random(f"order {self._run.driver.name} {self._batch}")
        return chance.sample(partitions, len(partitions)) if chance.random() < _REORDERED else partitions

    def _staged(self, tasks: tuple[TaskReport, ...]) -> dict[int, _Given]:
        kept = self._query.kept.staged
        if {str(task.staged) for task in tasks} - kept.keys():
            raise FatalError("the staged rows are gone, because a newer driver has proven their batch")
        return {task.partition: {task.partition: kept[str(task.staged)]} for task in tasks}

    def _draws_direct(self) -> bool:
        return self._simulation.chance.random() < _DIRECT

    def _prepare_direct(self, work: Work) -> list[TaskReport]:
        """The driver itself writes all rows, as one task. Everything that ends the driver ends the writer."""
        rows = [row for task in self._query.split(self._batch) for row in task]
        report = _Job(self._run, work, {0: {0: rows}}).write(0)
        self._write_state()
        return [msgspec.structs.replace(report, is_direct=True)]


class _Job:
    """The tasks of one attempt. Tasks that are still running when it ends keep running."""

    def __init__(self, run: Run, work: Work, rows: dict[int, _Given]) -> None:
        self._run, self._work, self._rows = run, work, rows
        self._tries = dict.fromkeys(rows, 0)
        self._running: list[int] = []
        self.accepted: dict[int, TaskReport] = {}
        self.error: TwoPhaseCommitError | None = None
        self.cancelled = False

    def is_over(self) -> bool:
        return self.error is not None or len(self.accepted) == len(self._rows)

    def attempt(self, partition: int) -> None:
        self._tries[partition] += 1
        worker = self._run.worker()
        simulation = self._run.query.simulation
        simulation.launch(worker, lambda: self._run_in(worker, partition))

    def _run_in(self, worker: Process, partition: int) -> None:
        try:
            report = self.write(partition)
        except Crash:
            self._failed(partition, RetriableError("a worker was lost"))
            raise
        except FatalError as error:
            self.error = self.error or getattr(errors, type(error).__name__)(str(error))
        except TwoPhaseCommitError as error:
            self._failed(partition, error)
        else:
            if partition not in self.accepted and not self.cancelled:
                self.accepted[partition] = report
        self._run.give_back(worker)

    def _failed(self, partition: int, error: TwoPhaseCommitError) -> None:
        if self.cancelled or not self._run.driver.alive or partition in self.accepted:
            return
        if self._tries[partition] >= _TASK_ATTEMPTS:
            self.error = self.error or error
        else:
            self.attempt(partition)

    def write(self, partition: int) -> TaskReport:
        """Does the same as ``twopc.integration.spark.task``."""
        query, work, given = self._run.query, self._work, self._rows[partition]
        rows = [row for some in given.values() for row in some]
        handles, staged = self._prepare(partition, given), None
        if query.shape.staged:
            file_id = query.simulation.chance.getrandbits(64)
            name = f"{work.driver_epochs[query.sink.name]}/{work.batch.batch_id}/{file_id:x}"
            query.simulation.request("file", lambda: query.kept.staged.setdefault(name, rows))
            staged = name
        parts = tuple(Part(index, len(some), sum(map(_hashed, some)) % 2**64) for index, some in given.items() if some)
        return TaskReport(
            partition=partition,
            rows=len(rows),
            checksum=added_up(parts)[1],
            handles=handles,
            staged=staged,
            parts=parts,
        )

    def _prepare(self, partition: int, given: _Given) -> dict[str, dict[str, Any]]:
        """Write the rows of the wanted partitions."""
        sink, work, mode = self._run.query.sink, self._work, self._work.mode
        if isinstance(mode, Repair):
            lost = mode.lost.get(sink.name, frozenset())
            given = {index: rows for index, rows in given.items() if ("", index) in lost}
            if sink.name not in mode.lost:
                return {}
        rows = [row for some in given.values() for row in some]
        half = len(rows) // 2
        batches = [record_batch(rows[:half]), record_batch(rows[half:])]
        handle = prepare(sink, attempt_of(work, sink.name, partition), batches)
        return {} if handle is None else {sink.name: sink.encode_handle(handle)}


@cache
def _hashed(row: int) -> int:
    """Stands in for a row's xxhash64. It must not be linear: otherwise {2, 4} has the same sum as {1, 5}."""
    return int.from_bytes(hashlib.blake2b(b"%d" % row, digest_size=8).digest(), "big")


def use_pools_of(process: Process) -> None:
    """Give each process its own copy of the product's module state."""
    producer_pool._pools = process.pools
