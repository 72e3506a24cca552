"""The promises of the guide's sink beyond the contract: fencing, votes, blockers, and atomic commits."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract import cases
from twopc.attempt import Attempt, Claim, Evidence, Owner, TaskAttempt
from twopc.errors import ConfigurationError, FencedError, RefusedStartError, RetriableError
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.testing import crash_points
from twopc.testing.contract.drivers import QUERY_ID, Driver, Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from twopc.testing.contract import Case

ROWS = [1, 2, 3]
DEATH_TIMEOUT_S = 60
ENDING = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))


@pytest.fixture
def guide(request: pytest.FixtureRequest) -> Case:
    return cases.guide(request)


def _execute(case: Case, statement: str) -> list[Any]:
    path: str = case.sink.path  # type: ignore[attr-defined]
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        return db.execute(statement).fetchall()


# -- drivers -----------------------------------------------------------------------------------------------------------


def test_a_fenced_driver_cannot_publish_its_decision(guide: Case) -> None:
    loser = Driver(guide.sink)
    scan_start = loser.begin()
    handle = loser.prepare(guide.rows(ROWS))
    loser.committer.confirm([handle], 0)
    winner = Driver(guide.sink)
    with pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    assert guide.visible() == []
    winner.committer.initialize_state([], {})  # as from a copied checkpoint, which does not contain that decision
    winner.commit([winner.prepare(guide.rows(ROWS))], winner.begin())
    assert guide.visible() == ROWS


def test_a_fenced_driver_cannot_begin_or_confirm(guide: Case) -> None:
    loser = Driver(guide.sink)
    handle = loser.prepare(guide.rows(ROWS))
    Driver(guide.sink)
    with pytest.raises(FencedError):
        loser.begin()
    with pytest.raises(FencedError):
        loser.committer.confirm([handle], 0)


def test_a_driver_whose_inspection_is_out_of_date_does_not_fence_the_newer_driver(guide: Case) -> None:
    late = guide.sink.create_committer()
    seen = late.inspect()
    winner = Driver(guide.sink)
    late.inspect()
    with pytest.raises(FencedError):
        late.acquire(Claim(QUERY_ID, "late", "registers"), seen)
    winner.begin()


def test_the_next_driver_finds_out_which_query_drove_the_sink(guide: Case) -> None:
    first = guide.sink.create_committer()
    nobody = first.inspect()
    assert nobody == Owner(None, 0)
    assert first.binding() == {"id": ""}
    first.acquire(Claim(QUERY_ID, "run", "registers"), nobody)
    second = guide.sink.create_committer()
    assert second.inspect() == Owner(QUERY_ID, 1)
    assert second.binding() == first.binding() != {"id": ""}


@pytest.mark.parametrize("table", ["payments", "twopc_control", "twopc_transactions", "twopc_staged"])
def test_a_database_without_a_table_is_refused_before_any_driver_is_fenced(table: str, guide: Case) -> None:
    _execute(guide, f"DROP TABLE {table}")
    with pytest.raises(ConfigurationError, match=rf"no such table: {table}.*create_tables"):
        guide.sink.create_committer().inspect()


@pytest.mark.parametrize("settings", [None, ENDING], ids=["no override", "override still in the code"])
def test_a_store_restored_to_a_state_before_a_takeover_is_refused(
    guide: Case, tmp_path: Path, settings: Settings | None
) -> None:
    """The restored record names the ended query. Obeying "name in use" would hide that batches are lost."""
    Query(guide, tmp_path / "ended").run(0)
    _copy(guide.sink.path, tmp_path / "backup")  # type: ignore[attr-defined]
    query = Query(guide, tmp_path / "query", query_id="query-b")
    query.run(0, 1, 2, settings=ENDING)
    _copy(tmp_path / "backup", guide.sink.path)  # type: ignore[attr-defined]
    with pytest.raises(
        RefusedStartError,
        match=r"older store: .*up to batch 2.* are missing from the store of sink 'payments'.*EndQuery\('query-a'\)",
    ):
        query.run(2, settings=settings)
    assert guide.visible() == all_rows(0)


def _copy(one: str | Path, other: str | Path) -> None:
    with contextlib.closing(sqlite3.connect(one)) as db, contextlib.closing(sqlite3.connect(other)) as copy:
        db.backup(copy)


# -- tasks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["write", "vote"])
def test_a_swept_task_can_neither_write_nor_vote(step: str, guide: Case) -> None:
    driver = Driver(guide.sink)
    task = TaskAttempt(QUERY_ID, 0, Attempt(driver.driver_epoch, 1), 0, driver.driver_epoch, -1)
    writer = guide.sink.create_writer(task)
    writer.write_rows(guide.rows(ROWS))
    driver.committer.recover_and_abort([])
    with pytest.raises(RetriableError, match="swept"):
        writer.write_rows(guide.rows(ROWS)) if step == "write" else writer.snapshot_state(0)
    writer.close()
    assert _execute(guide, "SELECT count(*) FROM twopc_staged") == [(0,)]


@pytest.mark.parametrize(
    "harm", ["DELETE FROM twopc_staged WHERE cents = 2", "UPDATE twopc_transactions SET state = 'aborted'"]
)
def test_a_damaged_transaction_is_not_confirmed(harm: str, guide: Case) -> None:
    driver = Driver(guide.sink)
    handle = driver.prepare(guide.rows(ROWS))
    _execute(guide, harm)
    with pytest.raises(RetriableError, match="no longer complete"):
        driver.committer.confirm([handle], 0)


# -- commits -----------------------------------------------------------------------------------------------------------


def test_a_blocker_is_reported_and_the_commit_succeeds_once_it_is_gone(guide: Case) -> None:
    driver = Driver(guide.sink)
    scan_start = driver.begin()
    handles = [driver.prepare(guide.rows([number])) for number in ROWS]
    _execute(guide, "CREATE UNIQUE INDEX once ON payments (cents)")
    _execute(guide, "INSERT INTO payments VALUES ('somebody else', 2)")
    assert driver.commit(handles, scan_start) == [Evidence.UNKNOWN] * 3
    [blocker] = driver.committer.blockers()
    assert "UNIQUE constraint failed: payments.cents" in blocker
    assert guide.visible() == [2]
    _execute(guide, "DELETE FROM payments")
    assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * 3
    assert (guide.visible(), driver.committer.blockers()) == (ROWS, [])


def test_a_process_killed_during_a_commit_has_committed_nothing(guide: Case) -> None:
    driver = Driver(guide.sink)
    scan_start = driver.begin()
    handles = [driver.prepare(guide.rows([number])) for number in ROWS]
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=_acquire_and_die, args=(guide.sink, handles, scan_start))
    child.start()
    child.join(DEATH_TIMEOUT_S)
    assert child.exitcode == -signal.SIGKILL
    assert guide.visible() == []
    found = Driver(guide.sink).committer.initialize_state(handles, scan_start)
    assert set(found.values()) == {Evidence.COMMITTED}
    assert guide.visible() == ROWS


def _acquire_and_die(sink: Any, handles: list[Any], scan_start: Mapping[str, Any]) -> None:
    crash_points.arm_from("driver.committing@2=kill")
    Driver(sink).committer.commit(handles, scan_start)


def test_a_transactions_state_is_forgotten_with_its_decision_and_the_transaction_is_not_committed_again(
    guide: Case,
) -> None:
    driver = Driver(guide.sink)
    older_start = driver.begin()
    older = driver.prepare(guide.rows(ROWS))
    driver.commit([older], older_start)
    newer_start = driver.begin()
    newer = driver.prepare(guide.rows([9]))
    driver.commit([newer], newer_start)
    driver.committer.forget(newer_start)
    assert _execute(guide, "SELECT state FROM twopc_transactions") == [("committed",)]
    found = driver.committer.commit([older, newer], newer_start)
    assert found == {older: Evidence.UNKNOWN, newer: Evidence.COMMITTED}
    assert guide.visible() == [*ROWS, 9]


def test_forget_keeps_the_rows_of_transactions_that_have_not_been_swept_yet(guide: Case) -> None:
    driver = Driver(guide.sink)
    driver.prepare(guide.rows(ROWS))
    driver.committer.forget(driver.begin())
    driver.committer.recover_and_abort([])
    assert _execute(guide, "SELECT count(*) FROM twopc_staged") == [(0,)]


def test_a_step_holds_the_write_lock_until_it_ends(guide: Case) -> None:
    step = guide.sink.step  # type: ignore[attr-defined]
    with step(), pytest.raises(RetriableError, match="locked"), step():
        pass
