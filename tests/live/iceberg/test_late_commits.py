"""Late commits on the wire: a proxy holds a commit's POST back, or loses its response, and the table still has each row once.

``tests/unit/test_lake_commit.py`` contains such schedules within one process. Here the catalog itself judges what
arrives late.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.live.iceberg.proxy import CatalogProxy, Selection, commit_of, is_loss, is_start
from tests.live.iceberg.stage import LANDED, PATIENCE_S, REFUSED, Stage
from twopc import FencedError, crash_points
from twopc.attempt import Evidence
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, all_rows, close_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.live.iceberg.proxy import CatalogRequest, CatalogRule
    from tests.warehouse import RestWarehouse
    from twopc.coordinator import Coordinator

BATCH_1 = commit_of(1)


@pytest.fixture(
    params=[
        pytest.param(False, id="alone"),
        pytest.param(True, id="with foreign appends", marks=pytest.mark.whole),
    ]
)
def stage(request: pytest.FixtureRequest, rest_warehouse: RestWarehouse, tmp_path: Path) -> Iterator[Stage]:
    uri = rest_warehouse.properties["uri"]
    with ThreadPoolExecutor(2) as elsewhere, CatalogProxy(uri) as first, CatalogProxy(uri) as second:
        yield Stage(rest_warehouse, (first, second), elsewhere, tmp_path, has_others=request.param)
    close_opened()


class Late:
    """A commit of the first run that is held back while the run processes batch 1.

    Args:
        stage: the stage.
        coordinator: the first run.
        where: selects the commit.
        is_cut_off: whether the run's connection breaks, and whether its later requests are blocked until the caller
            waits for the run's end.
    """

    def __init__(
        self,
        stage: Stage,
        coordinator: Coordinator,
        where: Callable[[CatalogRequest], bool] = BATCH_1,
        *,
        is_cut_off: bool = False,
    ) -> None:
        self._stage = stage
        selected = stage.first.on(where)
        self._held = selected.strand() if is_cut_off else selected.hold()
        self._rest = stage.first.on(lambda _: bool(self._held.hits), times=math.inf).hold() if is_cut_off else None
        self._outcome = stage.proceed(coordinator, 1)
        self._held.wait(PATIENCE_S)

    def arrive(self) -> str:
        """Let the commit arrive; return the catalog's response."""
        self._held.release()
        return answer_of(self._held)

    def assert_succeeds(self) -> None:
        """The run must end its batch."""
        self._outcome.result(PATIENCE_S)

    def assert_succeeds_or_is_fenced(self) -> None:
        """The run must complete its batch, or raise the error that says that another run has completed the batch."""
        assert isinstance(self._outcome.exception(PATIENCE_S), (FencedError, type(None)))

    def assert_fenced(self) -> None:
        """The run must end with an error that says what happened."""
        if self._rest:
            self._rest.release()
        error = self._outcome.exception(PATIENCE_S)
        rows = self._stage.visible()
        assert sorted(set(rows)) == rows, "the late commit added rows a second time"
        assert isinstance(error, FencedError), repr(error)
        assert "sink 'orders': another driver has acquired the sink and fenced this driver" in str(error)


#: Runs both of the fixture's cases even in the short sample.
both = pytest.mark.parametrize("stage", [False, True], ids=["alone", "with foreign appends"], indirect=True)


def answer_of(rule: CatalogRule) -> str:
    """The catalog's response to the request that a rule has hit."""
    return rule.wait(PATIENCE_S).answer(PATIENCE_S)


cut_off = pytest.mark.parametrize(
    "is_cut_off",
    [
        pytest.param(False, id="whose driver waits"),
        pytest.param(True, id="whose driver is cut off", marks=pytest.mark.whole),
    ],
)

# -- a commit that comes too late --------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("is_cut_off", [False, True], ids=["whose driver waits", "whose driver is cut off"])
def test_a_commit_that_arrives_after_its_successors_commits_is_refused(stage: Stage, *, is_cut_off: bool) -> None:
    late = Late(stage, stage.begin(), is_cut_off=is_cut_off)
    stage.disturb()
    successor = stage.recover(1)
    assert stage.visible() == all_rows(0, 1), "the successor should have committed the batch itself"
    stage.successor.continue_with(successor, 1, 2)
    stage.disturb()
    assert late.arrive() == REFUSED
    late.assert_fenced()
    stage.check(0, 1, 2, next_batch=3)


@cut_off
def test_a_commit_that_arrives_after_a_fence_is_refused(stage: Stage, *, is_cut_off: bool) -> None:
    """The successor has not even checked whether the batch is in the table."""
    late = Late(stage, stage.begin(), is_cut_off=is_cut_off)

    def arrive() -> None:
        stage.disturb()
        assert late.arrive() == REFUSED
        late.assert_fenced()
        assert stage.visible() == all_rows(0)

    crash_points.arm("driver.fenced", arrive)
    stage.successor.run(1, 2)
    assert not crash_points.is_armed("driver.fenced")
    stage.check(0, 1, 2, next_batch=3)


def test_the_tag_alone_prevents_a_late_commit_to_a_table_without_a_main_branch(stage: Stage) -> None:
    """The commit is held back past a fence. The branch is missing again, and no parent's sequence number is compared."""
    driver = stage.begin()
    stage.drop_main()
    late = Late(stage, driver)

    def arrive() -> None:
        stage.drop_main()
        assert late.arrive() == REFUSED
        late.assert_fenced()

    crash_points.arm("driver.fenced", arrive)
    stage.successor.run(1)
    assert not crash_points.is_armed("driver.fenced")
    stage.disturb()
    stage.successor.run(2)
    stage.check(1, 2, next_batch=3)


def test_a_late_start_does_not_fence_a_run_that_started_after_it(stage: Stage) -> None:
    stage.begin()
    start = stage.second.on(is_start).strand()
    rest = stage.second.on(lambda _: bool(start.hits), times=math.inf).hold()
    succession = stage.succeed(1)
    start.wait(PATIENCE_S)
    latest = stage.direct.start()
    stage.direct.continue_with(latest, 1)
    stage.disturb()
    start.release()
    assert answer_of(start) == REFUSED
    rest.release()
    assert isinstance(succession.exception(PATIENCE_S), FencedError)
    stage.direct.continue_with(latest, 2)
    stage.check(0, 1, 2, next_batch=3)


# -- a commit that lands between a check and the step that relies on it: apache/iceberg#14425 --------------------------


@both
@cut_off
def test_a_commit_that_lands_after_its_successors_check_counts_once(stage: Stage, *, is_cut_off: bool) -> None:
    """The successor has seen a table without the batch, and its first request to change the table is on its way.

    After a foreign append, the commit is refused. Then its driver repeats it, or if that is cut off, the successor commits.
    """
    driver = stage.begin()
    late = Late(stage, driver, is_cut_off=is_cut_off)
    fence = stage.second.on(is_start).hold()
    repeated = stage.second.on(BATCH_1, times=math.inf).watch()
    succession = stage.succeed(1, 2)
    fence.wait(PATIENCE_S)
    stage.disturb()
    assert late.arrive() == (REFUSED if stage.has_others else LANDED)
    if not is_cut_off:
        late.assert_succeeds()
    has_landed = not (is_cut_off and stage.has_others)
    assert stage.visible() == all_rows(0, *[1] * has_landed)
    fence.release()
    assert answer_of(fence) == REFUSED  # ``main`` has moved since the start read it
    succession.result(PATIENCE_S)
    assert len(repeated.hits) == (not has_landed)
    if is_cut_off:
        late.assert_fenced()
    else:
        with pytest.raises(FencedError):
            stage.loser.continue_with(driver, 2)
    stage.check(0, 1, 2, next_batch=3)


@pytest.mark.whole
@pytest.mark.parametrize("round_", range(10))
def test_either_a_late_commit_or_a_simultaneous_start_may_win(
    stage: Stage, round_: int, add_summary: Callable[[str], None]
) -> None:
    """This is a real race, so each run may have a different winner."""
    del round_
    late = Late(stage, stage.begin())
    fence = stage.second.on(is_start).hold()
    succession = stage.succeed(1, 2)
    fence.wait(PATIENCE_S)
    stage.disturb()
    fence.release()
    add_summary(f"the late commit: {late.arrive()}, the start: {answer_of(fence)}")
    succession.result(PATIENCE_S)
    late.assert_succeeds_or_is_fenced()
    stage.check(0, 1, 2, next_batch=3)


def test_a_commit_released_while_the_successors_commit_is_in_flight_is_refused(stage: Stage) -> None:
    late = Late(stage, stage.begin())
    second = stage.second.on(BATCH_1).hold()
    succession = stage.succeed(1, 2)
    second.wait(PATIENCE_S)
    assert late.arrive() == REFUSED
    late.assert_fenced()
    stage.disturb()
    second.release()
    assert answer_of(second) == (REFUSED if stage.has_others else LANDED)
    succession.result(PATIENCE_S)
    stage.check(0, 1, 2, next_batch=3)


def test_a_commit_that_lands_after_the_drivers_check_and_before_the_repeated_commit_counts_once(stage: Stage) -> None:
    driver = stage.begin()
    first = stage.first.on(BATCH_1).strand()
    second = stage.first.on(BATCH_1, nth=2).hold()
    outcome = stage.proceed(driver, 1)
    second.wait(PATIENCE_S)
    stage.disturb()
    first.release()
    assert answer_of(first) == (REFUSED if stage.has_others else LANDED)
    stage.disturb()
    second.release()
    assert answer_of(second) == REFUSED
    outcome.result(PATIENCE_S)
    stage.check(0, 1, next_batch=2)


def test_a_commit_that_arrives_after_its_own_repetition_is_refused(stage: Stage) -> None:
    driver = stage.begin()
    first = stage.first.on(BATCH_1).strand()
    stage.proceed(driver, 1).result(PATIENCE_S)
    stage.disturb()
    first.release()
    assert answer_of(first) == REFUSED
    stage.loser.continue_with(driver, 2)
    stage.check(0, 1, 2, next_batch=3)


# -- a response that is lost --------------------------------------------------------------------------------------------

UNCLEAR = [
    pytest.param(Selection.lose_response, id="broken connection"),
    pytest.param(Selection.time_out, id="504", marks=pytest.mark.whole),
]


@pytest.mark.parametrize("inject", UNCLEAR)
def test_a_commit_whose_response_is_lost_is_found_and_not_repeated(
    stage: Stage, inject: Callable[[Selection], CatalogRule], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driver = stage.begin()
    unclear = inject(stage.first.on(BATCH_1))
    sent = stage.first.on(BATCH_1, times=math.inf).watch()
    outcome = stage.proceed(driver, 1)
    assert answer_of(unclear) == LANDED
    stage.disturb()
    unclear.release()
    outcome.result(PATIENCE_S)
    assert stage.visible() == all_rows(0, 1)
    assert len(sent.hits) == 1
    assert [record for record in caplog.records if "another driver" in record.getMessage()] == []
    stage.loser.continue_with(driver, 2)
    stage.check(0, 1, 2, next_batch=3)


@pytest.mark.parametrize("inject", UNCLEAR)
def test_a_successor_finds_a_commit_whose_response_is_still_missing(
    stage: Stage, inject: Callable[[Selection], CatalogRule]
) -> None:
    driver = stage.begin()
    unclear = inject(stage.first.on(BATCH_1))
    outcome = stage.proceed(driver, 1)
    assert answer_of(unclear) == LANDED
    sent = stage.second.on(BATCH_1, times=math.inf).watch()
    stage.disturb()
    stage.successor.run(1, 2)
    assert sent.hits == []
    unclear.release()
    assert isinstance(outcome.exception(PATIENCE_S), FencedError)
    stage.check(0, 1, 2, next_batch=3)


@pytest.mark.whole
def test_a_driver_that_gives_up_waiting_for_a_response_finds_its_commit(stage: Stage) -> None:
    """The client's own time limit ends the request. The response comes later, and no one receives it."""
    sink = dataclasses.replace(stage.sink_of(stage.first.endpoint), timeout_ms=2_000)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers([1, 2]))
    unclear = stage.first.on(commit_of(0)).hold_response()
    sent = stage.first.on(commit_of(0), times=math.inf).watch()
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    unclear.release()
    assert answer_of(unclear) == LANDED
    assert len(sent.hits) == 1
    assert stage.visible() == [1, 2]


# -- a loss record that arrives late -----------------------------------------------------------------------------------


@cut_off
def test_a_late_loss_record_does_not_abort_a_batch_that_the_successor_committed(
    stage: Stage, *, is_cut_off: bool
) -> None:
    """A driver cannot see the decided files, and declares them lost. Its successor sees them."""
    driver, away = stage.begin(), Away(stage)
    late = Late(stage, driver, is_loss, is_cut_off=is_cut_off)
    away.put_back()
    stage.disturb()
    successor = stage.recover(1)
    assert stage.visible() == all_rows(0, 1)
    stage.successor.continue_with(successor, 1)
    assert late.arrive() == REFUSED
    late.assert_fenced()
    stage.successor.continue_with(successor, 2)
    stage.check(0, 1, 2, next_batch=3)


def test_a_late_loss_record_does_not_abort_the_repair_of_the_batch(stage: Stage) -> None:
    """The driver declares the files lost again, and then rewrites their rows. The old files come back, too."""
    driver, away = stage.begin(), Away(stage)
    held = stage.first.on(is_loss).strand()
    stage.proceed(driver, 1).result(PATIENCE_S)
    assert stage.visible() == all_rows(0, 1)
    stage.disturb()
    away.put_back()
    held.release()
    assert answer_of(held) == REFUSED
    stage.loser.continue_with(driver, 2)
    stage.check(0, 1, 2, next_batch=3)


class Away:
    """The files of batch 1, which disappear once the batch is decided."""

    def __init__(self, stage: Stage) -> None:
        self._paths: list[Path] = []
        self._stage = stage
        crash_points.arm("driver.decided", self._take)

    def put_back(self) -> None:
        """Restore the files."""
        for path in self._paths:
            path.with_suffix(".away").rename(path)

    def _take(self) -> None:
        self._paths = self._stage.files_of(1)
        for path in self._paths:
            path.rename(path.with_suffix(".away"))


def test_neither_an_abort_nor_a_sweep_sends_a_commit(stage: Stage) -> None:
    """An abort sends the catalog no change, so no abort can arrive late there."""
    sink = stage.sink_of(stage.first.endpoint)
    driver = Driver(sink)
    driver.begin()
    aborted, _ = driver.prepare(numbers([1])), driver.prepare(numbers([2]))
    assert len(stage.files_of(0)) == 2
    sent = stage.first.on(lambda request: request.method != "GET", times=math.inf).watch()
    driver.committer.abort([aborted])
    driver.committer.recover_and_abort([])
    assert stage.files_of(0) == []
    assert sent.hits == []
