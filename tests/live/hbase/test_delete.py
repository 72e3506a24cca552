"""A deletion removes cells up to its decision's version and no newer ones, however late and often it is retried."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.hbase.support import FAMILY, Sleeper, sink_of
from tests.live.one_task import apply, batch
from twopc.attempt import Evidence
from twopc.sinks.hbase.mappings import Delete, Put
from twopc.sinks.hbase.row_ops import Op, put
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from tests.live.hbase.support import Store
    from twopc.sinks.hbase import HBaseSink

NAMES = ("v", "w", "other")


def fill(store: Store, name: int, *, at_ms: int) -> None:
    """Write a row of three cells as another client would."""
    cells = {(FAMILY, name.encode()): b"here" for name in NAMES}
    mutation = put(store.row(name), cells, at_ms=at_ms)
    assert store.client.execute([Op(store.table, store.row(name), mutations=(mutation,))]) == [True]


def left(store: Store, name: int) -> set[str]:
    """The names of a row's cells."""
    return {qualifier.decode() for _, qualifier in store.cells(name)}


def deleting(store: Store, cells: tuple[str, ...] = (), **arguments: Any) -> HBaseSink:
    return sink_of(store, Delete(f"{store.prefix}:{{id}}", cells), **arguments)


@pytest.mark.parametrize(("cells", "remain"), [((), set()), (("d:v", "d:w"), {"other"}), (("d:absent",), set(NAMES))])
def test_delete_removes_a_row_or_all_versions_of_the_given_cells(
    cells: tuple[str, ...], remain: set[str], store: Store
) -> None:
    for number in (1, 2, 3):
        for at_ms in (1, 2):
            fill(store, number, at_ms=at_ms)
    assert apply(deleting(store, cells), batch(id=[1, 2, 1, 9])) == [Evidence.COMMITTED]
    assert [left(store, number) for number in (1, 2, 3, 9)] == [remain, remain, set(NAMES), set()]


@pytest.mark.parametrize("cells", [(), ("d:v", "d:w", "d:other")])
def test_an_older_deletion_never_removes_a_newer_cell(cells: tuple[str, ...], store: Store) -> None:
    sink = deleting(store, cells, chunk_rows=1)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1, 2, 3]), partition=5)
    fill(store, 1, at_ms=scan_start["base"] + 1)  # between the decision and the deletion
    fill(store, 2, at_ms=scan_start["base"])
    fill(store, 3, at_ms=scan_start["base"] - 1)
    with contextlib.closing(Sleeper(sink)) as sleeper:
        for done in range(3):
            assert sleeper.apply_chunk(handle, scan_start, done) == []
        assert [left(store, number) for number in (1, 2, 3)] == [set(NAMES), set(), set()]
        fill(store, 3, at_ms=scan_start["base"] + 1)
        for done in range(3):  # a delayed call
            assert sleeper.apply_chunk(handle, scan_start, done) == []
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert [left(store, number) for number in (1, 2, 3)] == [set(NAMES), set(), set(NAMES)]


def test_a_deletion_hides_puts_from_earlier_batches_but_not_from_later_ones(store: Store) -> None:
    puts = sink_of(store, Put(f"{store.prefix}:{{id}}", {"d:v": "v"}))
    writer = Driver(puts)
    earlier = writer.begin()
    handle = writer.prepare(batch(id=[1], v=["old"]))
    assert apply(deleting(store), batch(id=[1])) == [Evidence.COMMITTED]
    assert writer.commit([handle], earlier) == [Evidence.COMMITTED]
    assert store.value(1) is None
    assert apply(puts, batch(id=[1], v=["new"])) == [Evidence.COMMITTED]
    assert store.value(1) == b"new"


def test_a_deletion_interrupted_between_chunks_is_completed(store: Store) -> None:
    for number in range(6):
        fill(store, number, at_ms=1)
    sink = deleting(store, chunk_rows=2)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=list(range(6))))
    with contextlib.closing(Sleeper(sink)) as sleeper:
        sleeper.begin(handle, scan_start)
        sleeper.apply_chunk(handle, scan_start, 0)
        assert [bool(left(store, number)) for number in range(6)] == [False, False, True, True, True, True]
    assert Driver(sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert [left(store, number) for number in range(6)] == [set()] * 6
