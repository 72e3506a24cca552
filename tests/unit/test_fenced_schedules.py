"""A driver loses a response, dies, or is overtaken at each operation on its store, and every row is visible once.

Two stores: the steps of one are transactions; the other has no steps, so each operation takes effect by itself.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from twopc.attempt import Evidence
from twopc.coordinator import Coordinator
from twopc.errors import RefusedStartError, RetriableError, TwoPhaseCommitError, UnavailableError
from twopc.fenced_committer import FencedCommitter, Prepared, transaction_name
from twopc.files import MemoryFiles
from twopc.log_view import fold
from twopc.registers import RegisterLog
from twopc.sink import TwoPhaseCommitSink
from twopc.testing.contract import Case, Crash, numbers
from twopc.testing.contract.drivers import Engine, all_rows, batch_of
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from twopc.attempt import TaskAttempt

    Effect = Callable[[], Any]
    Fault = Callable[["Process", Effect], Any]

LAST_BATCH = 2
PROOFS = {"committed": Evidence.COMMITTED, "aborted": Evidence.ABORTED}


@dataclass
class Content:
    """What a store holds. A transaction is its state and its rows."""

    control: bytes | None = None
    transactions: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    visible: list[int] = field(default_factory=list)

    def state_of(self, name: str) -> str:
        return self.transactions[name][0] if name in self.transactions else "absent"

    def move(self, name: str, before: set[str], after: str) -> bool:
        if self.state_of(name) not in before:
            return False
        self.transactions[name] = after, self.transactions[name][1]
        if after == "committed":
            self.visible += self.transactions[name][1]
        return True


@dataclass
class Store:
    """What outlives every process."""

    has_transactions: bool
    content: Content = field(default_factory=Content)


class Process:
    """One process of a query, with one fault at most."""

    def __init__(self, store: Store, fault: Fault | None = None, at: int = -1) -> None:
        self.store, self.is_dead, self.operations = store, False, 0
        self._fault, self._at = fault, at

    def do(self, effect: Effect) -> Any:
        """One operation on the store."""
        if self.is_dead:
            raise Crash
        self.operations += 1
        if self._fault is not None and self.operations - 1 == self._at:
            return self._fault(self, effect)
        return effect()

    @contextmanager
    def step(self) -> Iterator[Content]:
        if not self.store.has_transactions:
            yield self.store.content
            return
        before = self.do(lambda: self.store.content)
        mine = copy.deepcopy(before)

        def commit() -> None:
            if self.store.content is not before:
                raise UnavailableError("another step was faster")
            self.store.content = mine

        yield mine
        self.do(commit)

    def run(self, files: MemoryFiles, last: int = LAST_BATCH) -> None:
        """Start a driver, and process every batch from the last decided one on."""
        sink = Sink(self)
        decided = fold(RegisterLog(files).inspect()).highest_batch or 0
        coordinator = Coordinator([sink], files)
        for batch in range(decided, last + 1):
            coordinator.process(batch_of(batch), Engine(Case(sink, numbers, list)))


class Sink(TwoPhaseCommitSink[Prepared]):
    name = "s"
    handle_type = Prepared

    def __init__(self, process: Process) -> None:
        self.process = process

    def create_writer(self, task: TaskAttempt) -> Writer:
        return Writer(self.process, transaction_name(self.name, task))

    def create_committer(self) -> Committer:
        return Committer(self.process)


class Writer(SinkWriter[Prepared]):
    def __init__(self, process: Process, name: str) -> None:
        self._process, self._name = process, name

    def _open(self, content: Content, change: Effect) -> None:
        if content.state_of(self._name) != "open":
            raise RetriableError("swept")
        change()

    def begin_transaction(self) -> None:
        with self._process.step() as content:
            self._process.do(lambda: content.transactions.update({self._name: ("open", [])}))

    def write(self, rows: pa.RecordBatch) -> None:
        values: list[int] = rows.column("value").to_pylist()  # type: ignore[assignment]
        with self._process.step() as content:
            self._process.do(lambda: self._open(content, lambda: content.transactions[self._name][1].extend(values)))

    def pre_commit(self) -> Prepared:
        with self._process.step() as content:
            self._process.do(lambda: self._open(content, lambda: content.move(self._name, {"open"}, "prepared")))
        return Prepared(self._name, self.rows)

    def abort(self) -> None:
        """The sweep ends it."""


class Committer(FencedCommitter[Prepared, Content]):
    def __init__(self, process: Process) -> None:
        super().__init__("s")
        self._do, self._process = process.do, process

    def step(self) -> AbstractContextManager[Content]:
        return self._process.step()

    def load(self, step: Content) -> bytes | None:
        stored: bytes | None = self._do(lambda: step.control)
        return stored

    def swap(self, step: Content, old: bytes | None, new: bytes) -> bool:
        def compare_and_set() -> bool:
            if step.control != old:
                return False
            step.control = new
            return True

        return bool(self._do(compare_and_set))

    def is_prepared(self, step: Content, handle: Prepared) -> bool:
        return bool(self._do(lambda: step.state_of(handle.transaction)) == "prepared")

    def publish(self, step: Content, handle: Prepared, version: int) -> None:
        del version
        self._do(lambda: step.move(handle.transaction, {"prepared"}, "committed"))

    def outcome(self, step: Content, handle: Prepared) -> Evidence:
        return PROOFS.get(self._do(lambda: step.state_of(handle.transaction)), Evidence.UNKNOWN)

    def roll_back(self, step: Content, transaction: str, version: int) -> None:
        del version
        self._do(lambda: step.move(transaction, {"open", "prepared"}, "aborted"))

    def pending(self, step: Content) -> list[str]:
        names: list[str] = self._do(lambda: [name for name in step.transactions if step.state_of(name) not in PROOFS])
        return names


# -- the faults --------------------------------------------------------------------------------------------------------


def lose_the_request(_process: Process, _effect: Effect) -> None:
    raise UnavailableError("no answer")


def lose_the_answer(_process: Process, effect: Effect) -> None:
    effect()
    raise UnavailableError("no answer")


def die_before(process: Process, _effect: Effect) -> None:
    process.is_dead = True
    raise Crash


def die_after(process: Process, effect: Effect) -> None:
    effect()
    die_before(process, effect)


def fail(_process: Process, effect: Effect) -> None:
    effect()
    raise ValueError("a bug in the store's client")


def copy_of(files: MemoryFiles) -> MemoryFiles:
    copied = MemoryFiles()
    for name in [*files.names(""), *(f"registers/{name}" for name in files.names("registers"))]:
        if (data := files.read(name)) is not None:
            copied.put_if_absent(name, data)
    return copied


# -- the schedules -----------------------------------------------------------------------------------------------------


def run_with(store: Store, fault: Callable[[MemoryFiles], Fault]) -> Iterator[MemoryFiles]:
    """Run a query with the fault at its first operation, then another one with the fault at its second, and so on.

    The store is emptied for each. ``fault`` is called with the query's checkpoint, which the caller also receives.
    """

    def run(at: int) -> tuple[Process, MemoryFiles]:
        store.content = Content()
        files = MemoryFiles()
        Process(store).run(files, last=0)
        process = Process(store, fault(files), at)
        with suppress(TwoPhaseCommitError, Crash, ValueError):
            process.run(files)
        return process, files

    without_fault, _ = run(-1)
    for at in range(without_fault.operations):
        yield run(at)[1]


def restart(store: Store, *checkpoints: MemoryFiles) -> None:
    """Start every query again. A copy may continue only if it contains the last decision."""
    finished = 0
    for files in checkpoints:
        with suppress(RefusedStartError):
            Process(store).run(files)
            finished += 1
    assert finished
    assert sorted(store.content.visible) == all_rows(*range(LAST_BATCH + 1))


@pytest.fixture(params=[True, False], ids=["transactions", "single operations"])
def store(request: pytest.FixtureRequest) -> Store:
    return Store(request.param)


@pytest.mark.parametrize("fault", [lose_the_request, lose_the_answer, die_before, die_after, fail])
def test_every_row_is_visible_once_after_each_operation_has_failed(fault: Fault, store: Store) -> None:
    for files in run_with(store, lambda _: fault):
        restart(store, files)


@pytest.mark.parametrize("then", [None, lose_the_request, lose_the_answer])
@pytest.mark.parametrize("restarts_first", ["the query", "its copy"])
def test_every_row_is_visible_once_even_if_a_copy_runs_before_each_operation(
    restarts_first: str, then: Fault | None, store: Store
) -> None:
    copies: list[MemoryFiles] = []

    def overtake(files: MemoryFiles) -> Fault:
        def run_copy(process: Process, effect: Effect) -> Any:
            copies.append(copy_of(files))
            with suppress(RefusedStartError):
                Process(store).run(copies[-1])
            return effect() if then is None else then(process, effect)

        return run_copy

    for files in run_with(store, overtake):
        both = [files, copies.pop()]
        restart(store, *(both if restarts_first == "the query" else reversed(both)))
    assert not copies
