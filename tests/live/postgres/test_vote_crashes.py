"""`vote="prepared"`: a vote survives crashes, lost responses and other drivers, and is never committed without its decision."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.live.postgres.proxy import LossyProxy
from tests.live.postgres.support import case_of, committer_of, left_behind, new_role, run, sink_of, values
from tests.live.postgres.votes import confirmed, no_vote_is_left, prepared_of, votes
from tests.live.spark_support import wait_until
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.errors import (
    CommitBlockedError,
    FencedError,
    RefusedStartError,
)
from twopc.sinks.postgres.database import Database
from twopc.testing.contract import Crash, numbers
from twopc.testing.contract.case import die
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.services.postgres import LocalPostgres

    Connection = psycopg.Connection[Any]

__all__ = ["no_vote_is_left"]


@pytest.mark.parametrize("point", ["driver.confirmed", "driver.deciding", "driver.decided", "driver.committing"])
def test_a_killed_server_keeps_the_vote(
    point: str, local_postgres: LocalPostgres, database: str, tmp_path: Path
) -> None:
    case = prepared_of(database)
    struck: list[str] = []

    def kill() -> None:
        local_postgres.kill()
        local_postgres.start()
        struck.append(point)

    query = Query(case, tmp_path)
    query.run(0)
    crash_points.arm(point, kill)
    query.run(1)
    query.run(2)
    assert struck == [point]
    assert case.visible() == all_rows(0, 1, 2)


def test_a_vote_without_a_decision_is_rolled_back_by_the_next_start(database: str, tmp_path: Path) -> None:
    """The vote's rows have the same keys, so the first batch would wait for the vote forever."""
    case = prepared_of(database)
    confirmed(case.sink, *all_rows(0))
    Query(case, tmp_path).run(0)
    assert case.visible() == all_rows(0)


def test_the_next_start_commits_a_decided_vote_even_without_its_stages(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = prepared_of(database)
    query = Query(case, tmp_path)
    crash_points.arm("driver.decided", die)
    with pytest.raises(Crash):
        query.run(0)
    run(connection, "DELETE FROM twopc.slice")
    crash_points.arm("driver.recovered", die)
    with pytest.raises(Crash):
        query.run(0)
    assert case.visible() == all_rows(0)


def test_completing_an_older_decision_rolls_back_no_vote_of_a_newer_one(database: str, connection: Connection) -> None:
    sink = prepared_of(database).sink
    first, older, older_start = confirmed(sink, 1)
    first.committer.commit([older], older_start)
    _, newer, newer_start = confirmed(sink, 2)
    run(connection, "DELETE FROM twopc.slice")
    committer = Driver(sink).committer
    committer.initialize_state([older], older_start, [newer], is_own=False)
    found = committer.initialize_state([newer], newer_start, [older], is_own=False)
    assert found == {newer: Evidence.COMMITTED}


@pytest.mark.parametrize("more", [[], ["DELETE FROM twopc.slice"]], ids=["staged", "lost"])
def test_a_batch_whose_decided_vote_was_rolled_back_is_published_from_its_stages_or_repaired(
    more: list[str], database: str, connection: Connection, tmp_path: Path
) -> None:
    case = prepared_of(database)

    def lose() -> None:
        run(connection, *(f"ROLLBACK PREPARED '{name}'" for name in votes(connection)), *more)

    crash_points.arm("driver.decided", lose)
    Query(case, tmp_path).run(0, 1)
    assert case.visible() == all_rows(0, 1)


def test_a_vote_that_a_lost_session_is_still_committing_is_awaited(
    local_postgres: LocalPostgres, database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has lost its connection, but the session on the server has not ended yet.

    In this test, the session first waits for a synchronous standby, and is then paused.
    """
    driver, handle, scan_start = confirmed(prepared_of(database).sink, 1)
    run(connection, "CREATE TABLE probe (n int)")
    execute_alone, failures = Database.execute_alone, list[psycopg.Error]()
    lost, other = (psycopg.connect(database, autocommit=True) for _ in range(2))

    def waits(session: Connection) -> bool:
        find = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = %s"
        return connection.execute(find, [session.info.backend_pid]).fetchone() is not None

    def probe() -> None:
        while not failures:
            run(other, "INSERT INTO probe VALUES (1)")

    def restore() -> None:
        run(connection, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")

    def begin_to_commit(statement: Any) -> None:
        run(connection, "ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()")
        pool.submit(probe)
        wait_until(lambda: waits(other), "the server waits for the standby")
        pool.submit(lost.execute, statement)
        wait_until(lambda: waits(lost), "the session waits for the standby")
        local_postgres.pause_backend(lost.info.backend_pid)
        restore()

    def execute(self: Database, statement: Any) -> None:
        if not failures:
            begin_to_commit(statement)
        try:
            execute_alone(self, statement)
        except psycopg.Error as error:
            failures.append(error)
            if len(failures) > 1:
                local_postgres.resume_backend(lost.info.backend_pid)
            raise

    monkeypatch.setattr(Database, "execute_alone", execute)
    with lost, other, ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        stack.callback(local_postgres.resume_backend, lost.info.backend_pid)
        stack.callback(restore)
        found = driver.committer.commit([handle], scan_start)
    assert found == {handle: Evidence.COMMITTED}, driver.committer.blockers()
    assert len(failures) > 1
    assert "is busy" in str(failures[0])
    assert (values(database), votes(connection)) == ([1], [])


@pytest.mark.parametrize("statement", ["PREPARE TRANSACTION", "COMMIT PREPARED", "ROLLBACK PREPARED"])
def test_rows_are_visible_once_although_the_response_to_a_vote_is_lost(
    statement: str, database: str, tmp_path: Path
) -> None:
    case = prepared_of(database)
    with LossyProxy(database) as proxy:
        case.sink = sink_of(proxy.dsn, vote="prepared")
        query = Query(case, tmp_path)
        if statement.startswith("ROLLBACK"):
            confirmed(case.sink, 99)
        proxy.lose_answer_to(statement)
        query.run(0)
        assert proxy.lost == 1
        query.run(1)
    assert case.visible() == all_rows(0, 1)


@pytest.mark.parametrize(("before", "after"), [("prepared", "staged"), ("staged", "prepared")])
def test_a_restart_may_change_the_kind_of_vote(before: Any, after: Any, database: str, tmp_path: Path) -> None:
    case = case_of(database)
    for number, point in enumerate(("driver.decided", "driver.confirmed")):
        case.sink = sink_of(database, vote=before)
        crash_points.arm(point, die)
        with pytest.raises(Crash):
            Query(case, tmp_path).run(number)
        case.sink = sink_of(database, vote=after)
        Query(case, tmp_path).run(number)
    assert case.visible() == all_rows(0, 1)


def test_a_role_that_may_not_end_a_vote_reports_it_until_the_previous_role_returns(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = prepared_of(database)
    query = Query(case, tmp_path)
    crash_points.arm("driver.decided", die)
    with pytest.raises(Crash):
        query.run(0)
    with new_role(database) as dsn:
        role = conninfo_to_dict(dsn)["user"]
        run(connection, f"GRANT ALL ON SCHEMA twopc TO {role}", f"GRANT ALL ON ALL TABLES IN SCHEMA twopc TO {role}")
        run(connection, f"GRANT ALL ON target TO {role}")
        previous, case.sink = case.sink, sink_of(dsn, vote="prepared")
        with pytest.raises(CommitBlockedError, match="permission denied to finish prepared transaction"):
            query.run(0)
        case.sink = previous
        query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


# -- other drivers -----------------------------------------------------------------------------------------------------


def test_a_fenced_driver_commits_no_vote_even_before_the_vote_is_swept(database: str) -> None:
    """On a copy of the checkpoint, it may have decided."""
    case = prepared_of(database)
    loser, handle, scan_start = confirmed(case.sink, 1)
    winner = Driver(case.sink)
    with pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    winner.committer.recover_and_abort([])
    assert case.visible() == []


def test_a_start_from_an_older_copy_sees_a_decision_whose_driver_died_after_committing_the_vote(
    database: str, tmp_path: Path
) -> None:
    case = prepared_of(database)
    query = Query(case, tmp_path / "one")
    running = query.start()
    query.continue_with(running, 0)
    older = query.copied(tmp_path / "other")
    crash_points.arm("driver.committing", die)
    with pytest.raises(Crash):
        query.continue_with(running, 1)
    with pytest.raises(RefusedStartError, match="older copy"):
        older.run(1)
    query.run(1, 2)
    assert case.visible() == all_rows(0, 1, 2)


def test_a_fenced_drivers_late_vote_is_rolled_back_by_the_next_sweep(database: str, connection: Connection) -> None:
    case = prepared_of(database)
    loser = Driver(case.sink)
    loser.begin()
    handle = loser.prepare(numbers([1]))
    winner = Driver(case.sink)
    committer_of(loser)._vote(handle.vote, [handle])
    assert votes(connection) == [handle.vote]
    winner.committer.recover_and_abort([])
    assert (votes(connection), left_behind(database)["slice"]) == ([], 0)


def test_a_fenced_driver_rolls_back_no_vote_of_its_successor(database: str) -> None:
    case = prepared_of(database)
    loser = Driver(case.sink)
    winner, handle, scan_start = confirmed(case.sink, 1)
    loser.committer.recover_and_abort([])
    assert winner.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}


def test_a_fenced_driver_rolls_back_its_own_vote(database: str, connection: Connection) -> None:
    """The successor may have swept already. If the vote stayed, the successor's next batch would wait for its locks."""
    case = prepared_of(database)
    loser, handle, _ = confirmed(case.sink, 1)
    Driver(case.sink)
    loser.committer.abort([handle])
    assert votes(connection) == []


def test_a_vote_of_a_dead_driver_holds_back_no_decided_batch(database: str) -> None:
    """The vote holds the lock of a key that the decided batch also needs."""
    case = prepared_of(database, "value bigint PRIMARY KEY", mode="upsert", key="value")
    previous = Driver(sink_of(database, mode="upsert", key="value"))
    scan_start = previous.begin()
    decided = previous.prepare(numbers([1]))
    confirmed_too = Driver(case.sink)
    confirmed_too.begin()
    confirmed_too.committer.confirm([confirmed_too.prepare(numbers([1]))], 0)
    driver = Driver(sink_of(database, mode="upsert", key="value", timeout_ms=2_000))
    assert driver.committer.initialize_state([decided], scan_start) == {decided: Evidence.COMMITTED}
    assert case.visible() == [1]


def test_a_sink_sweeps_no_vote_of_another_sink(database: str) -> None:
    case = prepared_of(database)
    one, handle, scan_start = confirmed(case.sink, 1)
    other = Driver(sink_of(database, name="orders-2", vote="prepared"))
    other.committer.recover_and_abort([])
    assert one.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}


def test_no_vote_is_prepared_for_a_slice_aborted_in_the_meantime(database: str, connection: Connection) -> None:
    driver = Driver(prepared_of(database).sink)
    driver.begin()
    handle = driver.prepare(numbers([1]))
    committer = committer_of(driver)
    with committer.driving() as step:
        committer.roll_back(step, handle.transaction, 1)
    with pytest.raises(Exception, match=r"a slice of the batch is missing\. Nothing was decided"):
        committer._vote(handle.vote, [handle])
    assert (votes(connection), values(database)) == ([], [])


def test_the_name_of_a_vote_fits_the_servers_limit(database: str) -> None:
    case = prepared_of(database)
    long = sink_of(database, name="n" * 100, vote="prepared")
    driver = Driver(long)
    assert driver.commit([driver.prepare(pa.record_batch({"value": pa.array([1], pa.int64())}))], driver.begin()) == [
        Evidence.COMMITTED
    ]
    assert case.visible() == [1]
