"""An in-memory sink without a log. Its store keeps a control record, as PostgreSQL, Redis and the lake formats do."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.unit.fake_sink import Store, Transaction, World
from twopc.attempt import Evidence
from twopc.errors import RetriableError, UnavailableError
from twopc.fenced_committer import FencedCommitter, Prepared, transaction_name
from twopc.sink import TwoPhaseCommitSink
from twopc.testing.contract.case import Crash
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from twopc.attempt import TaskAttempt

_PROOFS = {"committed": Evidence.COMMITTED, "aborted": Evidence.ABORTED}


@dataclass
class OwnedStore(Store):
    """What outlives every process.

    Attributes:
        control: the control record.
        is_forgetful: whether only the newest decision's outcome can be proven, as in the lake formats.
        published: the version of the newest decision that was published.
    """

    control: bytes | None = None
    is_forgetful: bool = False
    published: int = 0


class OwnedSink(TwoPhaseCommitSink[Prepared]):
    """See the module."""

    handle_type = Prepared

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def create_writer(self, task: TaskAttempt) -> OwnedWriter:
        return OwnedWriter(self.world, self.name, task)

    def create_committer(self) -> OwnedCommitter:
        return OwnedCommitter(self.world, self.name)


class OwnedWriter(SinkWriter[Prepared]):
    def __init__(self, world: World, sink: str, task: TaskAttempt) -> None:
        self._store, self._task, self._name = world.store(sink), task, transaction_name(sink, task)

    @property
    def _transaction(self) -> Transaction:
        return self._store.transactions[self._name]

    def begin_transaction(self) -> None:
        task = self._task
        self._store.transactions[self._name] = Transaction(task.driver_epoch, task.query_id, task.batch_id)

    def write(self, rows: pa.RecordBatch) -> None:
        self._transaction.rows += rows.column("value").to_pylist()  # type: ignore[arg-type]

    def pre_commit(self) -> Prepared:
        if self._transaction.state != "open":
            raise RetriableError("swept")
        self._transaction.state = "prepared"
        return Prepared(self._name, self.rows)

    def abort(self) -> None:
        """The sweep ends it."""


class OwnedCommitter(FencedCommitter[Prepared, OwnedStore]):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(name)
        self._world, self._generation = world, world.generation

    @contextmanager
    def step(self) -> Iterator[OwnedStore]:
        if self._generation != self._world.generation:
            raise Crash  # the process is gone
        store = self._world.store(self.name)
        assert isinstance(store, OwnedStore)
        if store.unreachable:
            raise UnavailableError("no answer")
        yield store

    def load(self, step: OwnedStore) -> bytes | None:
        return step.control

    def swap(self, step: OwnedStore, old: bytes | None, new: bytes) -> bool:
        if step.control != old:
            return False
        step.control = new
        return True

    def is_prepared(self, step: OwnedStore, handle: Prepared) -> bool:
        return step.transactions[handle.transaction].state == "prepared"

    def publish(self, step: OwnedStore, handle: Prepared, version: int) -> None:
        if step.is_forgetful and version < step.published:
            return  # a lake table never publishes an older decision after a newer one
        if step.transactions[handle.transaction].state == "prepared":
            step.transactions[handle.transaction].state = "committed"
        step.published = max(step.published, version)

    def prove(self, handles: Sequence[Prepared], scan_start: Mapping[str, Any]) -> Mapping[Prepared, Evidence]:
        found = super().prove(handles, scan_start)
        store = self._world.store(self.name)
        assert isinstance(store, OwnedStore)
        if store.is_forgetful and store.published > int(scan_start["base"]):
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        return found

    def outcome(self, step: OwnedStore, handle: Prepared) -> Evidence:
        return _PROOFS.get(step.transactions[handle.transaction].state, Evidence.UNKNOWN)

    def roll_back(self, step: OwnedStore, transaction: str, version: int) -> None:
        del version
        if step.transactions[transaction].state in {"open", "prepared"}:
            step.transactions[transaction].state = "aborted"

    def pending(self, step: OwnedStore) -> list[str]:
        return [name for name, one in step.transactions.items() if one.state in {"open", "prepared"}]
