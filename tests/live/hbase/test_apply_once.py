"""Every row is applied once: any driver may apply it, any number of times, after an interruption at any point."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.cases import hbase_appends, hbase_counters
from tests.live.hbase.support import FAMILY, Sleeper, lose_answers, sink_of
from tests.live.one_task import batch
from twopc import crash_points
from twopc.attempt import Attempt, Claim, Evidence, TaskAttempt
from twopc.coordinator import Coordinator
from twopc.errors import FencedError, RefusedStartError, RetriableError
from twopc.files import LocalFiles
from twopc.records import TaskReport
from twopc.sinks.hbase.apply import marker_qualifier
from twopc.sinks.hbase.connection import Master, RegionServer
from twopc.sinks.hbase.mappings import Append, Increment, Put
from twopc.sinks.hbase.row_ops import Op, delete
from twopc.testing.contract.drivers import Driver, Query, all_rows, attempt_of, batch_of, is_wanted, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.live.hbase.support import Store
    from twopc.engine import Work
    from twopc.sinks.hbase import HBaseSink
    from twopc.sinks.hbase.staging import HBaseHandle
    from twopc.testing.contract import Case

ROWS = batch(id=[1, 2, 3, 1, 2, 1, 1], n=[1, 1, 1, 1, 1, 1, 1])
TOTALS = [4, 2, 1]


@pytest.fixture(autouse=True)
def _disarm_crash_points() -> Iterator[None]:
    crash_points.disarm()
    yield
    crash_points.disarm()


@pytest.fixture
def sink(store: Store) -> HBaseSink:
    """Two rows per chunk, so that :data:`ROWS` take four chunks."""
    return sink_of(store, Increment(f"{store.prefix}:{{id}}", {"d:v": "n"}), chunk_rows=2)


@pytest.fixture
def totals(store: Store) -> Any:
    return lambda: [store.total(number) for number in (1, 2, 3)]


@pytest.fixture
def sleeper(sink: HBaseSink) -> Iterator[Sleeper]:
    with contextlib.closing(Sleeper(sink)) as made:
        yield made


# -- progress ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("applied", range(5))
def test_a_commit_that_died_after_any_chunk_resumes_after_that_chunk(
    applied: int, sink: HBaseSink, sleeper: Sleeper, totals: Any, *, recorded: bool
) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    sleeper.begin(handle, scan_start)
    for chunk in range(applied):
        assert sleeper.apply_chunk(handle, scan_start, chunk) == []
        if recorded:
            sleeper.fence.record(handle.uuid, scan_start["base"], chunk + 1)
    assert Driver(sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert totals() == TOTALS


def test_rows_are_applied_once_even_if_any_response_is_lost(
    sink: HBaseSink, totals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(monkeypatch, RegionServer, Master)
    for _ in range(2):
        driver = Driver(sink)
        scan_start = driver.begin()
        handles = [driver.prepare(ROWS, partition=partition) for partition in (0, 1)]
        assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * 2
    assert totals() == [4 * total for total in TOTALS]


def test_rows_are_appended_in_task_order_and_then_in_row_order(store: Store) -> None:
    sink = sink_of(store, Append(f"{store.prefix}:{{id}}", {"d:v": "v"}), chunk_rows=2)
    driver = Driver(sink)
    scan_start = driver.begin()
    first = driver.prepare(batch(id=[1, 1, 2, 1], v=["a", "b", "x", "c"]))
    second = driver.prepare(batch(id=[1, 2], v=["d", "y"]), partition=1)
    driver.commit([first, second], scan_start)
    assert (store.value(1), store.value(2)) == (b"abcd", b"xy")


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def puts(store: Store) -> HBaseSink:
    return sink_of(store, Put(f"{store.prefix}:{{id}}", {"d:v": "v", "d:w": "w"}), chunk_rows=2)


def test_the_last_row_of_a_key_wins_no_matter_how_often_each_chunk_is_applied(puts: HBaseSink, store: Store) -> None:
    driver = Driver(puts)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1, 2, 1, 3, 1], v=["a", "x", "b", "y", "c"], w=["", "", "", "", ""]))
    with contextlib.closing(Sleeper(puts)) as sleeper:
        for done in (0, 1, 2):
            assert sleeper.apply_chunk(handle, scan_start, done) == []
        for done in (2, 1, 0, 1):  # delayed calls
            assert sleeper.apply_chunk(handle, scan_start, done) == []
    assert [store.value(number) for number in (1, 2, 3)] == [b"c", b"x", b"y"]
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert [store.value(number) for number in (1, 2, 3)] == [b"c", b"x", b"y"]


def test_the_later_of_two_tasks_wins_a_key_even_if_it_is_applied_first(puts: HBaseSink, store: Store) -> None:
    driver = Driver(puts)
    scan_start = driver.begin()
    earlier = driver.prepare(batch(id=[1], v=["earlier"], w=["1"]), partition=0)
    later = driver.prepare(batch(id=[1], v=["later"], w=["2"]), partition=1)
    driver.commit([later], scan_start)
    driver.commit([earlier], scan_start)
    assert (store.value(1), store.value(1, b"w")) == (b"later", b"2")


def test_an_older_version_never_overwrites_a_newer_one(puts: HBaseSink, store: Store) -> None:
    driver = Driver(puts)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1, 2], v=["old", "old"], w=["", ""]))
    driver.commit([handle], scan_start)
    newer = driver.prepare(batch(id=[1], v=["new"], w=[""]))
    driver.commit([newer], driver.begin())
    with contextlib.closing(Sleeper(puts)) as sleeper:
        sleeper.apply_chunk(handle, scan_start, 0)
    assert (store.value(1), store.value(2)) == (b"new", b"old")


def test_the_timestamp_of_a_batchs_cells_is_its_version_and_increases_with_each_batch(
    puts: HBaseSink, store: Store
) -> None:
    driver = Driver(puts)
    bases = []
    for value in ("a", "b"):
        scan_start = driver.begin()
        handle = driver.prepare(batch(id=[1], v=[value], w=[value]), partition=3)
        driver.commit([handle], scan_start)
        assert {cell.timestamp_ms for cell in store.cells(1).values()} == {scan_start["base"] + 3}
        bases.append(scan_start["base"])
    assert bases[1] > bases[0] + 3


def test_a_foreign_cell_with_a_later_timestamp_stays(puts: HBaseSink, store: Store) -> None:
    store.write(1, b"from the future", at_ms=4_000_000_000_000)
    driver = Driver(puts)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1], v=["a"], w=[""]))
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert store.value(1) == b"from the future"


def test_a_later_foreign_value_hides_its_own_cell_and_no_other_cell_of_the_row(puts: HBaseSink, store: Store) -> None:
    """The row is in two chunks, so the sink must tell which of them was written last."""
    driver = Driver(puts)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1, 2, 1], v=["a", "x", "b"], w=["c", "y", "d"]))
    store.write(1, b"foreign", at_ms=scan_start["base"] + 10_000)
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert (store.value(1), store.value(1, b"w")) == (b"foreign", b"d")


def test_the_first_cell_of_a_row_may_be_empty(puts: HBaseSink, store: Store) -> None:
    driver = Driver(puts)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1, 2, 1], v=["a", "x", ""], w=["c", "y", "d"]))
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert (store.value(1), store.value(1, b"w")) == (b"", b"d")


def test_versions_increase_even_if_the_clock_is_behind(sink: HBaseSink) -> None:
    committer = Driver(sink).committer
    ahead = 4_000_000_000_000
    committer.initialize_state([], {"base": ahead})
    versions = [committer.begin_attempt()["base"] for _ in range(3)]
    assert versions == [ahead + 1, ahead + 2, ahead + 3]
    assert Driver(sink).begin()["base"] == ahead + 4


# -- fences ------------------------------------------------------------------------------------------------------------


def test_a_later_decision_replaces_a_rows_marker_and_earlier_decisions_are_still_not_applied_again(
    sink: HBaseSink, sleeper: Sleeper, store: Store, totals: Any
) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    older = driver.prepare(ROWS)
    driver.commit([older], scan_start)
    size = len(store.value(1, marker_qualifier(sink.name)) or b"")
    for _ in range(3):
        later = driver.begin()
        driver.commit([driver.prepare(ROWS)], later)
    assert len(store.value(1, marker_qualifier(sink.name)) or b"") == size
    # As if the sleeper had read its chunks before they were removed: it applies the same rows, from another slice,
    # under the older version.
    same = driver.prepare(ROWS)
    for done in range(4):
        assert sleeper.apply_chunk(same, scan_start, done) == []
    assert totals() == [4 * total for total in TOTALS]


def test_a_fenced_driver_fails_at_every_step(sink: HBaseSink) -> None:
    loser = Driver(sink)
    scan_start = loser.begin()
    handle = loser.prepare(ROWS)
    winner = Driver(sink)
    winner.committer.initialize_state([handle], scan_start)
    winner.commit([winner.prepare(ROWS)], winner.begin())
    for step in (
        lambda: loser.committer.acquire(loser.claim, loser.seen),
        loser.begin,
        lambda: loser.committer.commit([handle], scan_start),
    ):
        with pytest.raises(FencedError):
            step()


def test_a_repeated_acquisition_does_not_fence_a_newer_driver(sink: HBaseSink) -> None:
    loser, winner = sink.create_committer(), sink.create_committer()
    first, second = Claim("query-a", "run-1", "registers"), Claim("query-a", "run-2", "registers")
    seen = loser.inspect()
    driver_epoch = loser.acquire(first, seen)
    assert loser.acquire(first, seen) == driver_epoch
    assert winner.acquire(second, winner.inspect()) == driver_epoch + 1
    with pytest.raises(FencedError):
        loser.acquire(first, seen)
    loser.close()
    winner.close()


# -- losses ------------------------------------------------------------------------------------------------------------


def _lose(store: Store, sink: HBaseSink, handle: HBaseHandle) -> None:
    row = handle.row(sink.name)
    assert store.client.execute([Op(sink.staging_table, row, mutations=(delete(row, up_to_ms=1),))]) == [True]


def test_a_lost_slice_is_proven_lost_and_can_never_be_applied(
    sink: HBaseSink, sleeper: Sleeper, store: Store, totals: Any
) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    _lose(store, sink, handle)
    with pytest.raises(RetriableError, match="missing or was changed"):
        driver.committer.confirm([handle], 0)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.ABORTED}
    sleeper.begin(handle, scan_start)
    assert handle.uuid in sleeper.fence.read().tombstones
    assert totals() == [0, 0, 0]


def test_a_lost_slice_that_may_be_partly_applied_is_never_proven_lost(
    sink: HBaseSink, sleeper: Sleeper, store: Store
) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    sleeper.begin(handle, scan_start)
    _lose(store, sink, handle)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    assert "partly applied" in driver.committer.blockers()[0]


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_slices_of_a_decision_are_written_again(
    lost: int, store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = hbase_counters(request)

    def lose() -> None:
        rows = store.slices(case.sink.name)
        assert len(rows) == 2
        store.client.execute([Op("twopc", row, mutations=(delete(row, up_to_ms=1),)) for row in rows[:lost]])

    crash_points.arm("driver.decided", lose)
    query = Query(case, tmp_path)
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


class Swapped:
    """Two tasks that add to the same rows; in a replay, the tasks have swapped their rows."""

    def __init__(self, sink: HBaseSink) -> None:
        self._sink = sink
        self._tasks = [batch(id=[1, 2], n=[1, 1]), batch(id=[1, 2], n=[10, 10])]

    def prepare(self, work: Work) -> list[TaskReport]:
        name, reports = self._sink.name, []
        for number, rows in enumerate(self._tasks):
            handles = {}
            if is_wanted(work, name, number):
                handle = run_task(self._sink, attempt_of(work, name, number), rows)
                handles = {name: self._sink.encode_handle(handle)}
            checksum = int(rows.column("n")[0].as_py())
            reports.append(TaskReport(partition=number, rows=rows.num_rows, checksum=checksum, handles=handles))
        self._tasks.sort(key=lambda rows: -rows.column("n")[0].as_py())
        return reports

    def evaluate(self) -> None:
        """Do nothing, because there is no state to write."""


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_slice_is_written_again_even_if_the_replay_has_its_rows_in_another_task(
    lost: int, store: Store, sink: HBaseSink, totals: Any, tmp_path: Path
) -> None:
    """A row records its content by task.

    If the repaired rows had the number of a task whose slice is already applied, the rows would be left out.
    """

    def lose() -> None:
        rows = store.slices(sink.name)
        assert len(rows) == 2
        store.client.execute([Op("twopc", rows[lost], mutations=(delete(rows[lost], up_to_ms=1),))])

    crash_points.arm("driver.decided", lose)
    with contextlib.closing(Coordinator([sink], LocalFiles(tmp_path))) as coordinator:
        coordinator.process(batch_of(0), Swapped(sink))
    assert totals() == [11, 11, 0]


def test_an_emptied_table_is_not_mistaken_for_a_new_one(
    store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = hbase_counters(request)
    query = Query(case, tmp_path)
    query.run(0)
    rows = [f"{case.sink.name}/{name}".encode() for name in ("control", "fence")]
    store.client.execute([Op("twopc", row, mutations=(delete(row, up_to_ms=2**62),)) for row in rows])
    with pytest.raises(RefusedStartError, match="Point the sink back"):
        query.run(1)


# -- orphans -----------------------------------------------------------------------------------------------------------


def test_a_proven_batch_leaves_no_slice(store: Store, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case = hbase_counters(request)
    Query(case, tmp_path).run(0, 1)
    assert store.slices(case.sink.name) == []


def test_a_swept_task_can_no_longer_write(sink: HBaseSink, store: Store) -> None:
    driver = Driver(sink)
    driver.begin()
    orphan = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, driver.driver_epoch, -1))
    orphan.write_rows(ROWS)
    driver.committer.recover_and_abort([])
    assert store.slices(sink.name) == []
    with pytest.raises(RetriableError, match="was swept"):
        orphan.write_rows(ROWS)
    assert store.slices(sink.name) == []
    orphan.close()


def test_a_failed_task_removes_its_slice(sink: HBaseSink, store: Store) -> None:
    driver = Driver(sink)
    driver.begin()
    writer = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, driver.driver_epoch, -1))
    writer.write_rows(ROWS)
    assert len(store.slices(sink.name)) == 1
    writer.close()
    assert store.slices(sink.name) == []


# -- two crashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case_of", [hbase_counters, hbase_appends])
@pytest.mark.parametrize("first", ["driver.decided", "driver.committing", "driver.committed"])
def test_a_crash_during_recovery_does_no_harm(
    first: str, case_of: Callable[..., Case], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = case_of(request)
    query = Query(case, tmp_path)
    query.run(0)
    crashed = [query.run_until(point, 1) for point in (first, "driver.committing")]
    # Appends are applied one after the other. Counters are applied at once, so the first crash leaves none to apply.
    is_left = first == "driver.decided" or (first == "driver.committing" and case_of is hbase_appends)
    assert crashed == [True, is_left]
    query.finish(1, 2)
    assert case.visible() == all_rows(0, 1, 2)


def test_the_marker_is_the_only_cell_that_the_sink_adds_to_a_row(sink: HBaseSink, store: Store) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    driver.commit([driver.prepare(ROWS)], scan_start)
    assert set(store.cells(1)) == {(FAMILY, b"v"), (FAMILY, marker_qualifier(sink.name))}
