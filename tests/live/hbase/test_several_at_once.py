"""Slices, and chunks, without a common row run concurrently; chunks that share a row, and appends, keep their order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.hbase.support import lose_answers, sink_of
from tests.live.one_task import batch
from twopc.attempt import Evidence
from twopc.sinks.hbase.apply import Applier
from twopc.sinks.hbase.connection import RegionServer
from twopc.sinks.hbase.fence import Fence
from twopc.sinks.hbase.mappings import COUNTER, Append, Increment, Put
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    import pyarrow as pa

    from tests.live.hbase.support import Store
    from twopc.sinks.hbase.mappings import Mapping

CHUNKS = 4
SLICES = 3
DIFFERENT = list(range(2 * CHUNKS))
MAPPINGS: list[type[Mapping]] = [Put, Increment, Append]


def mapping_of(kind: type[Mapping], store: Store) -> Mapping:
    return kind(f"{store.prefix}:{{id}}", {"d:v": "n"})


def rows(ids: list[int]) -> pa.RecordBatch:
    return batch(id=ids, n=[1] * len(ids))


def let_meet(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> None:
    """Let a method of the applier continue only when this number of threads has entered it."""
    original, together = getattr(Applier, name), threading.Barrier(count, timeout=30)

    def meet(*arguments: Any, **named: Any) -> Any:
        together.wait()
        return original(*arguments, **named)

    monkeypatch.setattr(Applier, name, meet)


@pytest.mark.parametrize("kind", MAPPINGS)
def test_chunks_without_a_common_row_are_applied_concurrently(
    kind: type[Mapping], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_meet(monkeypatch, "apply_chunk", CHUNKS)
    driver = Driver(sink_of(store, mapping_of(kind, store), chunk_rows=2))
    scan_start = driver.begin()
    assert driver.commit([driver.prepare(rows(DIFFERENT))], scan_start) == [Evidence.COMMITTED]
    assert {store.value(number) for number in DIFFERENT} == {COUNTER.pack(1) if kind is Increment else b"1"}


@pytest.mark.parametrize("kind", MAPPINGS)
def test_chunks_with_a_common_row_are_applied_one_after_the_other(
    kind: type[Mapping], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_chunk, by = Applier.apply_chunk, []

    def watched(*arguments: Any) -> Any:
        by.append((threading.current_thread(), arguments[-1]))
        return apply_chunk(*arguments)

    monkeypatch.setattr(Applier, "apply_chunk", watched)
    driver = Driver(sink_of(store, mapping_of(kind, store), chunk_rows=2))
    scan_start = driver.begin()
    driver.commit([driver.prepare(rows([*DIFFERENT[:-1], 0]))], scan_start)
    assert by == [(threading.current_thread(), done) for done in range(CHUNKS)]


@pytest.mark.parametrize("kind", [Put, Increment])
def test_slices_of_a_decision_are_applied_concurrently(
    kind: type[Mapping], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_meet(monkeypatch, "apply", SLICES)
    driver = Driver(sink_of(store, mapping_of(kind, store)))
    scan_start = driver.begin()
    handles = [driver.prepare(rows([task, SLICES]), partition=task) for task in range(SLICES)]
    assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * SLICES
    expected = COUNTER.pack(SLICES) if kind is Increment else b"1"
    assert store.value(SLICES) == expected


@pytest.mark.parametrize(("kind", "ids"), [(Append, [0, 1]), (Put, [0, 1, 0])])
def test_slices_whose_order_matters_are_applied_one_after_the_other(
    kind: type[Mapping], ids: list[int], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, by = Applier.apply, []

    def watched(*arguments: Any, **named: Any) -> Any:
        by.append((threading.current_thread(), arguments[1].partition))
        return apply(*arguments, **named)

    monkeypatch.setattr(Applier, "apply", watched)
    driver = Driver(sink_of(store, mapping_of(kind, store), chunk_rows=2))
    scan_start = driver.begin()
    handles = [driver.prepare(rows(ids), partition=task) for task in range(SLICES)]
    assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * SLICES
    assert by == [(threading.current_thread(), task) for task in range(SLICES)]


@pytest.mark.parametrize("kind", [Increment, Append])
def test_rows_are_applied_once_even_if_concurrent_chunks_lose_responses(
    kind: type[Mapping], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(monkeypatch, RegionServer)
    ids = list(range(40))
    driver = Driver(sink_of(store, mapping_of(kind, store), chunk_rows=3))
    scan_start = driver.begin()
    assert driver.commit([driver.prepare(rows(ids))], scan_start) == [Evidence.COMMITTED]
    assert {store.value(number) for number in ids} == {COUNTER.pack(1) if kind is Increment else b"1"}


def test_a_slice_with_a_gap_is_not_recorded_as_applied(store: Store) -> None:
    sink = sink_of(store, mapping_of(Increment, store), chunk_rows=2)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(rows(DIFFERENT))
    store.write(3, b"in the way", at_ms=1)  # in the second chunk
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    fence = Fence(store.client, table=sink.staging_table, sink=sink.name)
    assert fence.read().done == {handle.uuid: 0}
    store.write(3, COUNTER.pack(10), at_ms=2)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert [store.total(number) for number in DIFFERENT] == [1, 1, 1, 11, 1, 1, 1, 1]


def test_a_task_does_not_append_while_an_earlier_task_is_blocked(store: Store) -> None:
    sink = sink_of(store, mapping_of(Append, store), chunk_rows=1)
    driver = Driver(sink)
    scan_start = driver.begin()
    first, second = batch(id=[9, 1, 1], n=["x" * 200, "a", "b"]), batch(id=[1], n=["c"])
    handles = [driver.prepare(first, partition=0), driver.prepare(second, partition=1)]
    store.write(9, b"x" * 10_485_600, at_ms=1)  # 200 more bytes exceed HBase's limit
    assert set(driver.committer.commit(handles, scan_start).values()) == {Evidence.UNKNOWN}
    store.write(9, b"", at_ms=2)
    assert set(driver.committer.commit(handles, scan_start).values()) == {Evidence.COMMITTED}
    assert (store.value(1), store.value(9)) == (b"abc", b"x" * 200)
