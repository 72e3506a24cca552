"""What every sink behind the contract does, whatever it writes to."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.drivers import QUERY_ID, Driver, Query, all_rows
from tests.unit.fake_sink import Crash
from twopc import crash_points
from twopc.batch import Overrides
from twopc.errors import FencedError, RefusedStartError, RetriableError
from twopc.handle import Evidence
from twopc.settings import Settings

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    import pyarrow as pa

    from tests.contract.cases import Case
    from twopc.sink import TwoPhaseCommitSink

ROWS = [1, 2, 3, 4, 5]
OTHERS = [11, 12, 13]


# -- one transaction ---------------------------------------------------------------------------------------------------


def test_prepared_rows_are_invisible(case: Case) -> None:
    driver = Driver(case.sink)
    driver.begin()
    handle = driver.prepare(case.rows(ROWS))
    driver.committer.confirm([handle], 0)
    assert case.visible() == []


def test_committed_rows_are_visible_and_proven(case: Case) -> None:
    driver = Driver(case.sink)
    scan_start = driver.begin()
    handles = [driver.prepare(case.rows(ROWS)), driver.prepare(case.rows(OTHERS), partition=1)]
    assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * 2
    assert case.visible() == ROWS + OTHERS
    assert set(driver.committer.evidence(handles, scan_start).values()) == {Evidence.COMMITTED}


def test_a_task_without_rows_has_no_handle(case: Case) -> None:
    driver = Driver(case.sink)
    scan_start = driver.begin()
    assert driver.prepare(case.rows([])) is None
    assert driver.committer.notify_checkpoint_complete(0, [], scan_start) == {}


def test_committing_again_changes_nothing(case: Case) -> None:
    driver = Driver(case.sink)
    scan_start = driver.begin()
    handle = driver.prepare(case.rows(ROWS))
    driver.commit([handle], scan_start)
    for _ in range(2):
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert Driver(case.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert case.visible() == ROWS


def test_what_was_aborted_never_becomes_visible(case: Case) -> None:
    driver = Driver(case.sink)
    scan_start = driver.begin()
    handle = driver.prepare(case.rows(ROWS))
    driver.committer.abort([handle])
    with pytest.raises(RetriableError):
        driver.committer.confirm([handle], 0)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.ABORTED}
    assert case.visible() == []


def test_an_older_decision_changes_nothing_after_a_newer_one(case: Case) -> None:
    driver = Driver(case.sink)
    scan_start = driver.begin()
    older = driver.prepare(case.rows(ROWS))
    driver.commit([older], scan_start)
    newer = driver.prepare(case.rows(OTHERS))
    driver.commit([newer], driver.begin())
    assert driver.committer.commit([older], scan_start)[older] is not Evidence.ABORTED
    assert case.visible() == ROWS + OTHERS


def test_without_an_answer_the_outcome_is_unknown(case: Case) -> None:
    if case.silence is None:
        pytest.skip("this sink's outside world cannot be silenced")
    driver = Driver(case.sink)
    scan_start = driver.begin()
    handle = driver.prepare(case.rows(ROWS))
    driver.committer.confirm([handle], 0)
    with case.silence():
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert case.visible() == ROWS


# -- handles -----------------------------------------------------------------------------------------------------------


def test_a_handle_survives_pickling_and_the_decision_record(case: Case) -> None:
    driver = Driver(case.sink)
    driver.begin()
    handle = driver.prepare(case.rows(ROWS))
    assert handle is not None and handle.transaction
    assert pickle.loads(pickle.dumps(handle)) == handle  # noqa: S301 - our own
    assert case.sink.decode_handle(json.loads(json.dumps(case.sink.encode_handle(handle)))) == handle


def test_another_process_commits_what_a_dead_one_has_prepared(case: Case) -> None:
    if not case.is_outside:
        pytest.skip("what this sink prepares ends with its process, or its classes are known to this one only")
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_prepare_and_die, args=(case.sink, case.rows(ROWS), sender))
    child.start()
    assert receiver.poll(60)
    encoded, scan_start = receiver.recv()
    child.join()
    handle = case.sink.decode_handle(encoded)
    assert case.visible() == []
    assert Driver(case.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert case.visible() == ROWS


def _prepare_and_die(sink: TwoPhaseCommitSink[Any], rows: pa.RecordBatch, to: Connection) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    to.send((sink.encode_handle(driver.prepare(rows)), scan_start))
    os._exit(9)


# -- drivers -----------------------------------------------------------------------------------------------------------


def test_an_acquisition_may_be_repeated_and_every_driver_has_a_higher_driver_epoch(case: Case) -> None:
    first = Driver(case.sink)
    again = first.committer.acquire(first.claim)
    assert again >= first.driver_epoch
    assert Driver(case.sink).driver_epoch > again


def test_the_sweep_ends_what_nobody_decided_and_spares_the_rest(case: Case) -> None:
    driver = Driver(case.sink)
    scan_start = driver.begin()
    decided, orphan = driver.prepare(case.rows(ROWS)), driver.prepare(case.rows(OTHERS), partition=1)
    successor = Driver(case.sink)
    successor.committer.recover_and_abort([decided])
    found = successor.committer.commit([decided, orphan], scan_start)
    assert found == {decided: Evidence.COMMITTED, orphan: Evidence.ABORTED}
    assert case.visible() == ROWS


def test_an_overtaken_driver_that_wakes_sweeps_nothing_of_its_successor(case: Case) -> None:
    loser, winner = Driver(case.sink), Driver(case.sink)
    scan_start = winner.begin()
    handle = winner.prepare(case.rows(ROWS))
    loser.committer.recover_and_abort([])
    assert winner.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert case.visible() == ROWS


def test_an_overtaken_driver_that_wakes_applies_nothing_again(case: Case) -> None:
    loser = Driver(case.sink)
    scan_start = loser.begin()
    handle = loser.prepare(case.rows(ROWS))
    loser.committer.confirm([handle], 0)
    winner = Driver(case.sink)
    assert winner.committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    later = winner.prepare(case.rows(OTHERS))
    winner.commit([later], winner.begin())
    with contextlib.suppress(FencedError):  # it may also be told that it has lost
        assert loser.committer.commit([handle], scan_start)[handle] is not Evidence.ABORTED
    assert case.visible() == ROWS + OTHERS


# -- the whole protocol ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", crash_points.POINTS)
def test_every_row_is_visible_once_after_a_crash_at(point: str, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    crash_points.arm(point, case.crash)
    with contextlib.suppress(Crash):
        query.run(1)
    if crash_points.is_armed(point):
        pytest.skip(f"this sink has no point {point}")
    query.run(1, 2)
    assert case.visible() == all_rows(0, 1, 2)


def test_every_row_is_visible_once_after_a_crash_in_the_midst_of_its_first_commit(case: Case, tmp_path: Path) -> None:
    # Not after an earlier batch: the restart commits that one again, and would pass the point then.
    query = Query(case, tmp_path)
    crash_points.arm("driver.committing", case.crash)
    with contextlib.suppress(Crash):
        query.run(0)
    if crash_points.is_armed("driver.committing"):
        pytest.skip("this sink has no point driver.committing")
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


@pytest.mark.parametrize("point", ["driver.prepared", "driver.confirmed", "driver.decided", "driver.committing"])
def test_an_attempt_whose_answer_was_lost_is_finished_or_made_anew(point: str, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path)
    crash_points.arm_from(f"{point}=drop")
    try:
        query.run(0)
    except RetriableError:
        query.run(0)
    query.run(1)
    assert case.visible() == all_rows(0, 1)


# -- copies of the checkpoint ------------------------------------------------------------------------------------------


@pytest.fixture
def overtaken(case: Case) -> Case:
    """A sink whose decisions are in the checkpoint, and that knows of drivers on copies of it."""
    if not case.may_be_overtaken:
        pytest.skip("the decisions of this sink's queries are in no checkpoint")
    return case


@pytest.mark.parametrize("before", [0, 1, 2])
def test_an_older_copy_of_the_checkpoint_writes_nothing_and_fences_nobody(
    before: int, overtaken: Case, tmp_path: Path
) -> None:
    query = Query(overtaken, tmp_path)
    running = query.start()
    query.go_on(running, *range(before))
    copy = query.copied(tmp_path / "copy")
    query.go_on(running, before)
    with pytest.raises(RefusedStartError, match="shows a later batch than this checkpoint"):
        copy.run(before)
    query.go_on(running, before + 1)
    assert overtaken.visible() == all_rows(*range(before + 2))


def test_a_copy_is_left_behind_while_it_starts(overtaken: Case, tmp_path: Path) -> None:
    query = Query(overtaken, tmp_path)
    running = query.start()
    query.go_on(running, 0)
    copy = query.copied(tmp_path / "copy")

    def go_on() -> None:
        query.go_on(running, 1)

    crash_points.arm("driver.inspected", go_on)
    with pytest.raises(RefusedStartError, match="shows a later batch than this checkpoint"):
        copy.run(1)
    assert overtaken.visible() == all_rows(0, 1)


def test_of_two_copies_only_the_one_that_went_on_may_start_again(overtaken: Case, tmp_path: Path) -> None:
    """The other one had decided, and was overtaken before it could commit."""
    query = Query(overtaken, tmp_path)
    query.run(0)
    copy = query.copied(tmp_path / "copy")

    def go_on_elsewhere() -> None:
        copy.run(1)

    crash_points.arm("driver.decided", go_on_elsewhere)
    with pytest.raises(FencedError):
        query.run(1)
    assert overtaken.visible() == all_rows(0, 1)
    with pytest.raises(RefusedStartError):
        query.run(1)
    copy.run(2)
    assert overtaken.visible() == all_rows(0, 1, 2)


def test_a_query_that_ended_another_may_crash_before_its_first_decision(overtaken: Case, tmp_path: Path) -> None:
    """What the former query has decided says nothing about the new one's checkpoint."""
    Query(overtaken, tmp_path).run(0)
    new = Query(overtaken, tmp_path / "new", query_id="query-b")
    ends = Settings(overrides=Overrides(end_query_id=QUERY_ID))
    crash_points.arm("driver.prepared", overtaken.crash)
    with pytest.raises(Crash):
        new.run(0, settings=ends)
    new.run(0, 1)
    assert set(overtaken.visible()) == set(all_rows(0, 1))
