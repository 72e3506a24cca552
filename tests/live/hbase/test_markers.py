"""A row's marker is visible whenever the row is, and a marker of another sink does not count as the sink's own."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.hbase.support import FAMILY, Sleeper, sink_of, unique
from tests.live.one_task import apply, batch
from twopc.attempt import Evidence
from twopc.sinks.hbase.apply import marker_qualifier
from twopc.sinks.hbase.mappings import COUNTER, Append, Increment
from twopc.sinks.hbase.row_ops import Op, delete, put
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.hbase.support import Store
    from twopc.sinks.hbase import HBaseSink

ROWS = batch(id=[1, 2, 3, 1, 2, 1, 1], n=[1, 1, 1, 1, 1, 1, 1])
TOTALS = [4, 2, 1]
AHEAD_MS = 4_000_000_000_000


@pytest.fixture(params=[Increment, Append])
def sink(store: Store, request: pytest.FixtureRequest) -> HBaseSink:
    """Two rows per chunk, so that :data:`ROWS` take four chunks."""
    return sink_of(store, request.param(f"{store.prefix}:{{id}}", {"d:v": "n"}), chunk_rows=2)


@pytest.fixture
def totals(store: Store, sink: HBaseSink) -> Callable[[], list[int]]:
    """How often each row was applied: the counter, or the number of appended characters."""
    if sink.mapping.operation == "INCREMENT":
        return lambda: [store.total(number) for number in (1, 2, 3)]
    return lambda: [len(store.value(number) or b"") for number in (1, 2, 3)]


def put_marker(store: Store, sink: HBaseSink, number: int, base: int, *, at_ms: int) -> None:
    """Write a marker: the first chunk of task 0 is applied by the decision ``base``."""
    cells = {(FAMILY, marker_qualifier(sink.name)): struct.pack(">QII", base, 0, 1)}
    mutation = put(store.row(number), cells, at_ms=at_ms)
    assert store.client.execute([Op(store.table, store.row(number), mutations=(mutation,))]) == [True]


def delete_rows(store: Store, *, up_to_ms: int) -> None:
    """Delete the rows as another client would."""
    ops = [
        Op(store.table, store.row(number), mutations=(delete(store.row(number), up_to_ms=up_to_ms),))
        for number in (1, 2, 3)
    ]
    assert store.client.execute(ops) == [True] * 3


def resumes_after(applied: int, sink: HBaseSink, handle: Any, scan_start: dict[str, Any]) -> None:
    """Apply some chunks, die before recording any, and let the next driver finish."""
    with contextlib.closing(Sleeper(sink)) as sleeper:
        sleeper.begin(handle, scan_start)
        for chunk in range(applied):
            assert sleeper.apply_chunk(handle, scan_start, chunk) == []
    assert Driver(sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}


@pytest.mark.parametrize("applied", range(5))
@pytest.mark.parametrize("is_first_batch", [True, False])
def test_a_row_deleted_during_the_batch_is_applied_once(
    applied: int, sink: HBaseSink, store: Store, totals: Callable[[], list[int]], *, is_first_batch: bool
) -> None:
    """The deletion is newer than the attempt's version, and older than the commit."""
    if not is_first_batch:
        assert apply(sink, ROWS) == [Evidence.COMMITTED]
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    delete_rows(store, up_to_ms=scan_start["base"])
    assert totals() == [0, 0, 0]
    resumes_after(applied, sink, handle, scan_start)
    assert totals() == TOTALS


def test_a_marker_from_a_server_whose_clock_was_ahead_is_replaced(
    sink: HBaseSink, store: Store, totals: Callable[[], list[int]]
) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    for number in (1, 2, 3):
        put_marker(store, sink, number, scan_start["base"] - 1, at_ms=AHEAD_MS)
    resumes_after(4, sink, driver.prepare(ROWS), scan_start)
    assert totals() == TOTALS


def test_a_rows_first_marker_has_the_rows_timestamp(sink: HBaseSink, store: Store) -> None:
    """With a different timestamp, a deletion between the two timestamps would hide only the marker."""
    numbers = list(range(50))
    assert apply(sink, batch(id=numbers, n=[1] * 50)) == [Evidence.COMMITTED]
    for number in numbers:
        assert len({cell.timestamp_ms for cell in store.cells(number).values()}) == 1


def test_a_rows_next_marker_has_the_time_of_the_commit(sink: HBaseSink, store: Store) -> None:
    assert apply(sink, ROWS) == [Evidence.COMMITTED]
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    store.write("later", b"x")  # the cell receives the server's time
    now_ms = store.cells("later")[FAMILY, b"v"].timestamp_ms
    assert now_ms > scan_start["base"]
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    for number in (1, 2, 3):
        assert store.cells(number)[FAMILY, marker_qualifier(sink.name)].timestamp_ms >= now_ms


def test_a_marker_is_not_older_than_a_counter_with_a_future_timestamp(store: Store) -> None:
    sink = sink_of(store, Increment(f"{store.prefix}:{{id}}", {"d:v": "n"}))
    store.write(1, COUNTER.pack(5), at_ms=AHEAD_MS)
    assert apply(sink, ROWS) == [Evidence.COMMITTED]
    cells = store.cells(1)
    assert cells[FAMILY, marker_qualifier(sink.name)].timestamp_ms >= cells[FAMILY, b"v"].timestamp_ms >= AHEAD_MS


def test_a_marker_of_another_sink_with_the_same_name_blocks_the_commit(
    sink: HBaseSink, store: Store, totals: Callable[[], list[int]]
) -> None:
    other = sink_of(store, sink.mapping, name=sink.name, staging_table=f"own-{unique()}")
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1, 2], n=[1, 1]))
    winner = Driver(other)
    later = winner.begin()
    assert later["base"] > scan_start["base"]
    assert winner.commit([winner.prepare(batch(id=[1], n=[1]))], later) == [Evidence.COMMITTED]
    assert driver.commit([handle], scan_start) == [Evidence.UNKNOWN]
    [blocker] = driver.committer.blockers()
    for words in (f"row {store.row(1)!r}", f"marker d:twopc:{sink.name}", "need different names"):
        assert words in blocker
    assert totals() == [1, 0, 0]
    # The blocker's message says that this row does not contain the batch yet.
    column = FAMILY, marker_qualifier(sink.name)
    marker = delete(store.row(1), up_to_ms=2)
    at_ms = store.cells(1)[column].timestamp_ms
    marker.column_value.add(family=FAMILY).qualifier_value.add(
        qualifier=column[1], delete_type=marker.DELETE_MULTIPLE_VERSIONS, timestamp=at_ms
    )
    assert store.client.execute([Op(store.table, store.row(1), mutations=(marker,))]) == [True]
    assert Driver(sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert totals() == [2, 1, 0]
