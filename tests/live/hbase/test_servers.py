"""Regions split, tables are disabled, and HBase dies, at any moment of a commit."""

from __future__ import annotations

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.hbase.support import FAMILY, sink_of, until
from tests.live.one_task import OneTask, batch
from twopc.attempt import Evidence
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.errors import CommitBlockedError, RetriableError
from twopc.files import LocalFiles
from twopc.sinks.hbase.apply import Applier
from twopc.sinks.hbase.mappings import COUNTER, Append, Increment, Put
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.live.hbase.support import Store
    from twopc.integration.services.hbase import LocalHBase
    from twopc.sinks.hbase.mappings import Mapping

_KEYS = 100
_ROWS = 600

MAPPINGS: dict[str, Callable[[str], Mapping]] = {
    "put": lambda row: Put(row, {"d:v": "v"}),
    "increment": lambda row: Increment(row, {"d:v": "one"}),
    "append": lambda row: Append(row, {"d:v": "one"}),
}


def rows(number: int = 0) -> Any:
    """The rows of a batch. Each batch has its own number: of equal batches, a lost and a repeated one would cancel out."""
    ids = [f"{number % _KEYS:03d}" for number in range(_ROWS)]
    return batch(id=ids, v=list(range(_ROWS)), one=[number + 1] * _ROWS)


def require_once(store: Store, operation: str, batches: int) -> None:
    """Check that every key reflects each of its rows exactly once after ``batches`` batches."""
    times = _ROWS // _KEYS
    for number in range(_KEYS):
        name = f"{number:03d}"
        if operation == "increment":
            assert store.total(name) == times * sum(range(1, batches + 1)), name
        elif operation == "append":
            assert store.value(name) == b"".join(b"%d" % (of + 1) * times for of in range(batches)), name
        else:
            assert store.value(name) == b"%d" % (_ROWS - _KEYS + number), name


@contextlib.contextmanager
def between_chunks(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> Iterator[None]:
    """Call ``act`` before each chunk is applied, with the number of chunks before it."""
    apply_chunk, count = Applier.apply_chunk, iter(range(1_000_000))

    def meddled(*arguments: Any) -> Any:
        act(next(count))
        return apply_chunk(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Applier, "apply_chunk", meddled)
        yield


def dying_before(chunk: int, server: LocalHBase) -> Callable[[int], None]:
    """Kill HBase before this chunk is applied, and start it again on its data."""

    def act(applied: int) -> None:
        if applied == chunk:
            server.kill()
            server.start()

    return act


@pytest.mark.parametrize("operation", MAPPINGS)
def test_rows_are_applied_once_while_their_region_splits(
    operation: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.table = f"split-{store.prefix}"  # a new table: half of a split region cannot immediately be split again
    store.create_table()
    sink = sink_of(store, MAPPINGS[operation](store.prefix + ":{id}"), chunk_rows=60)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(rows())
    middle = store.row(f"{_KEYS // 2:03d}")

    def split(chunk: int) -> None:
        if chunk == 1:
            store.split(middle)
            until(lambda: store.region_of(middle) not in {b"", store.region_of(store.row("000"))})

    with between_chunks(monkeypatch, split):
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED], driver.committer.blockers()
    assert store.region_of(store.row("000")) != store.region_of(middle)
    require_once(store, operation, batches=1)


def test_a_disabled_table_delays_a_decided_batch_and_loses_no_row(store: Store) -> None:
    table = f"off-{store.prefix}"
    store.create_table(table)
    sink = sink_of(store, Increment(store.prefix + ":{id}", {"d:v": "one"}), table=table, timeout_ms=4_000)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(rows())
    driver.committer.confirm([handle], 0)
    store.take_out_of_service(table)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    assert driver.committer.blockers()
    store.enable(table)
    until(lambda: driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED})
    store.table = table
    require_once(store, "increment", batches=1)


@pytest.mark.whole
@pytest.mark.parametrize(
    "operation",
    [pytest.param("put", marks=pytest.mark.whole), "increment", pytest.param("append", marks=pytest.mark.whole)],
)
def test_rows_are_applied_once_even_if_hbase_dies_between_chunks(
    operation: str, store: Store, local_hbase_server: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(store, MAPPINGS[operation](store.prefix + ":{id}"), chunk_rows=150, timeout_ms=60_000)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(rows())

    with between_chunks(monkeypatch, dying_before(2, local_hbase_server)):
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED], driver.committer.blockers()
    require_once(store, operation, batches=1)


@pytest.mark.whole
@pytest.mark.parametrize("operation", MAPPINGS)
def test_rows_are_applied_once_even_if_hbase_dies_during_concurrent_chunks(
    operation: str, store: Store, local_hbase_server: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The timeout of the other chunks keeps running while HBase restarts.
    sink = sink_of(store, MAPPINGS[operation](store.prefix + ":{id}"), chunk_rows=50, timeout_ms=240_000)
    driver = Driver(sink)
    scan_start = driver.begin()
    ids = list(range(_ROWS))
    handle = driver.prepare(batch(id=ids, v=ids, one=[1] * _ROWS))
    assert handle.distinct

    # HBase dies before the sixth chunk, in the middle of the concurrent chunks.
    with between_chunks(monkeypatch, dying_before(5, local_hbase_server)):
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED], driver.committer.blockers()
    held = {int(row.rpartition(b":")[2]): cells[FAMILY, b"v"].value for row, cells in store.all_cells().items()}
    once = COUNTER.pack(1) if operation == "increment" else b"1"
    assert held == {number: b"%d" % number if operation == "put" else once for number in ids}


@pytest.mark.whole
@pytest.mark.timeout(900)  # long enough for all restarts on a slow machine
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_applied_once_even_if_hbase_dies_at_random_moments(
    seed: int, store: Store, local_hbase_server: LocalHBase, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    sink = sink_of(store, Append(store.prefix + ":{id}", {"d:v": "one"}), chunk_rows=50, timeout_ms=1_500)
    ends, kills, rng = threading.Event(), [0], random.Random(seed)

    def kill() -> None:
        while not ends.wait(rng.uniform(0.2, 3)):
            local_hbase_server.kill()
            local_hbase_server.start()
            kills[0] += 1

    number, stopped, coordinator = 0, 0, None
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        try:
            while (number < 12 or kills[0] < 4) and not killing.done():
                try:
                    coordinator = coordinator or Coordinator([sink], LocalFiles(tmp_path))
                    coordinator.process(batch_of(number), OneTask(sink, rows(number)))
                    number += 1
                except (RetriableError, CommitBlockedError):
                    stopped += 1
                    if coordinator is not None:
                        coordinator.close()
                        coordinator = None
        finally:
            ends.set()
        killing.result()  # raises if HBase has not come back
    # The last response may be missing; a restart determines the batch's outcome.
    patient = sink_of(store, sink.mapping, name=sink.name, chunk_rows=50, timeout_ms=30_000)
    last = Coordinator([patient], LocalFiles(tmp_path))
    last.process(batch_of(number), OneTask(patient, rows(number)))
    last.close()
    add_summary(f"{kills[0]} deaths, {stopped} restarts of the query, {number + 1} batches")
    require_once(store, "append", batches=number + 1)


def batch_of(number: int) -> Batch:
    return Batch("query-a", number, (str(number),), lambda of: (str(of),))
