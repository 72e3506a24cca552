"""The data table goes back to an earlier state, for example because its snapshot is restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.live.hbase.support import sink_of
from tests.live.one_task import batch
from twopc.attempt import Evidence
from twopc.sinks.hbase.apply import Applier
from twopc.sinks.hbase.mappings import COUNTER, Append, Increment, Put
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.hbase.support import Store
    from twopc.sinks.hbase import HBaseSink
    from twopc.sinks.hbase.mappings import Mapping
    from twopc.sinks.hbase.staging import HBaseHandle

MAPPINGS: dict[str, Callable[..., Mapping]] = {"put": Put, "increment": Increment, "append": Append}
#: The ids in each task's rows. Every task has two chunks.
TASKS = ([0, 1, 2, 3], [4, 5, 6, 7])
SNAPSHOT = "before"


class Halves:
    """A batch of two tasks, of which only the first task and the second task's first chunk are applied.

    Then, the data table goes back to the state before the batch.
    """

    def __init__(self, store: Store, sink: HBaseSink, blocking: Callable[[int, int], None]) -> None:
        self._sink = sink
        self._blocking = blocking
        driver = Driver(sink)
        self._scan_start = driver.begin()
        self.handles: list[HBaseHandle] = [
            driver.prepare(batch(id=ids, n=[1] * len(ids)), partition=task) for task, ids in enumerate(TASKS)
        ]
        driver.committer.confirm(self.handles, 0)
        store.take_snapshot(SNAPSHOT)
        blocking(1, 1)
        found = driver.committer.commit(self.handles, self._scan_start)
        assert list(found.values()) == [Evidence.COMMITTED, Evidence.UNKNOWN]
        assert [store.value(number) is None for ids in TASKS for number in ids] == [False] * 6 + [True] * 2
        driver.close()
        store.go_back(SNAPSHOT)
        assert store.all_cells() == {}

    def restart(self, *blocked: int) -> list[Evidence]:
        """Start again while a chunk is blocked, or no chunk. Return the evidence for each task."""
        self._blocking(*(blocked or (-1, -1)))
        driver = Driver(self._sink)
        found = driver.committer.initialize_state(self.handles, self._scan_start)
        return list(found.values())


@pytest.fixture
def blocking(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """From now on, a chunk of a task cannot be applied."""
    apply_chunk, blocked = Applier.apply_chunk, [(-1, -1)]

    def apply(self: Applier, handle: HBaseHandle, base: int, start_ms: int, done: int) -> Any:
        if (handle.partition, done) == blocked[0]:
            return ["it is blocked"]
        return apply_chunk(self, handle, base, start_ms, done)

    def block(task: int, chunk: int) -> None:
        blocked[0] = task, chunk

    monkeypatch.setattr(Applier, "apply_chunk", apply)
    return block


@pytest.fixture
def own_table(store: Store) -> Store:
    store.table = f"back-{store.prefix}"
    store.create_table()
    return store


def require_whole(store: Store, operation: str) -> None:
    expected = COUNTER.pack(1) if operation == "increment" else b"1"
    assert {number: store.value(number) for ids in TASKS for number in ids} == dict.fromkeys(range(8), expected)


@pytest.mark.parametrize("operation", ["put", "increment", pytest.param("append", marks=pytest.mark.whole)])
def test_a_blocked_batch_is_applied_from_its_first_row_because_the_data_table_may_have_gone_back(
    operation: str, own_table: Store, blocking: Callable[[int, int], None]
) -> None:
    mapping = MAPPINGS[operation](own_table.prefix + ":{id}", {"d:v": "n"})
    halves = Halves(own_table, sink_of(own_table, mapping, chunk_rows=2, timeout_ms=60_000), blocking)
    assert halves.restart() == [Evidence.COMMITTED] * 2
    require_whole(own_table, operation)
    assert own_table.slices(halves._sink.name) == []


def test_no_further_slice_is_applied_while_an_applied_slice_cannot_be_applied_again(
    own_table: Store, blocking: Callable[[int, int], None]
) -> None:
    mapping = Increment(own_table.prefix + ":{id}", {"d:v": "n"})
    halves = Halves(own_table, sink_of(own_table, mapping, chunk_rows=2, timeout_ms=60_000), blocking)
    assert halves.restart(0, 1) == [Evidence.COMMITTED, Evidence.UNKNOWN]
    assert halves.restart() == [Evidence.COMMITTED] * 2
    require_whole(own_table, "increment")
