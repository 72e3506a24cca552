"""The lock on the control record is the barrier: no driver draws conclusions while a previous driver's backend may commit."""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.live.postgres.support import case_of, committer_of, is_waiting, left_behind, run, sink_of, values
from twopc import crash_points
from twopc.attempt import Attempt, Evidence, TaskAttempt
from twopc.errors import FencedError, RefusedStartError, RetriableError, UnavailableError
from twopc.integration.services.server import wait_until
from twopc.testing.contract import Crash, numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.services.postgres import LocalPostgres
    from twopc.sinks.postgres import PostgresSink

_TIMEOUT_S = 20


class Stopped:
    """A driver that died in its publish transaction, and whose backend the kernel has stopped there."""

    def __init__(self, server: LocalPostgres, sink: PostgresSink, *, asked: bool) -> None:
        """`asked`: whether COMMIT has reached the backend's socket, so that it commits once it runs again."""
        self.driver = Driver(replace(sink, timeout_ms=60_000))
        self.scan_start = self.driver.begin()
        self.handles = [
            self.driver.prepare(numbers([1, 2])),
            self.driver.prepare(numbers([3]), partition=1),
        ]
        self.driver.committer.confirm(self.handles, 0)
        connection = committer_of(self.driver)._database.connection
        self.backend = connection.info.backend_pid

        def die() -> None:
            server.pause_backend(self.backend)
            if asked:
                connection.pgconn.send_query(b"COMMIT")
            raise Crash

        crash_points.arm("driver.committing", die)
        with pytest.raises(Crash):
            self.driver.committer.commit(self.handles, self.scan_start)


@pytest.fixture
def sink(database: str) -> PostgresSink:
    case_of(database)
    return sink_of(database, timeout_ms=1_000)


def test_no_outcome_is_concluded_while_a_stopped_backend_may_still_commit(
    local_postgres: LocalPostgres, database: str, sink: PostgresSink
) -> None:
    stopped = Stopped(local_postgres, sink, asked=True)
    with pytest.raises(UnavailableError, match=r"lock timeout.*pg_locks"):
        Driver(sink)
    with contextlib.closing(sink.create_committer()) as other:
        assert set(other.prove(stopped.handles, stopped.scan_start).values()) == {Evidence.UNKNOWN}
    assert values(database) == []
    local_postgres.resume_backend(stopped.backend)
    found = Driver(sink).committer.initialize_state(stopped.handles, stopped.scan_start)
    assert set(found.values()) == {Evidence.COMMITTED}
    assert values(database) == [1, 2, 3]


def test_a_driver_that_waits_for_the_lock_finds_the_rows_that_the_previous_driver_committed(
    local_postgres: LocalPostgres, database: str, sink: PostgresSink, connection: psycopg.Connection[Any]
) -> None:
    stopped = Stopped(local_postgres, sink, asked=True)

    def start() -> dict[Any, Evidence]:
        driver = Driver(replace(sink, timeout_ms=60_000))
        return dict(driver.committer.initialize_state(stopped.handles, stopped.scan_start))

    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(start)
        assert wait_until(lambda: is_waiting(connection), _TIMEOUT_S)
        local_postgres.resume_backend(stopped.backend)
        assert set(started.result(_TIMEOUT_S).values()) == {Evidence.COMMITTED}
    assert values(database) == [1, 2, 3]


def test_a_search_for_evidence_waits_for_a_commit_that_is_still_running(
    local_postgres: LocalPostgres, sink: PostgresSink, connection: psycopg.Connection[Any]
) -> None:
    """If the driver did not wait, a commit whose response is only late would stop the query."""
    stopped = Stopped(local_postgres, sink, asked=True)
    with (
        ThreadPoolExecutor(1) as pool,
        contextlib.closing(replace(sink, timeout_ms=60_000).create_committer()) as other,
    ):
        asked = pool.submit(other.prove, stopped.handles, stopped.scan_start)
        is_held = wait_until(lambda: is_waiting(connection), _TIMEOUT_S / 4)
        local_postgres.resume_backend(stopped.backend)
        assert set(asked.result(_TIMEOUT_S).values()) == {Evidence.COMMITTED}
        assert is_held


def test_the_next_driver_publishes_the_rows_that_a_dead_backend_left_uncommitted(
    local_postgres: LocalPostgres, database: str, sink: PostgresSink
) -> None:
    stopped = Stopped(local_postgres, sink, asked=False)
    local_postgres.resume_backend(stopped.backend)  # the backend finds that its client is gone
    driver = Driver(replace(sink, timeout_ms=10_000))
    found = driver.committer.initialize_state(stopped.handles, stopped.scan_start)
    assert set(found.values()) == {Evidence.COMMITTED}
    assert values(database) == [1, 2, 3]


def test_a_killed_backend_has_committed_nothing_although_it_was_asked_to(
    local_postgres: LocalPostgres, database: str, sink: PostgresSink
) -> None:
    stopped = Stopped(local_postgres, sink, asked=True)
    with contextlib.closing(psycopg.connect(database, autocommit=True)) as witness:
        os.kill(stopped.backend, signal.SIGKILL)  # the server ends every other backend, too, and recovers
        assert wait_until(lambda: _is_broken(witness), _TIMEOUT_S)
    assert wait_until(local_postgres._is_ready, _TIMEOUT_S)
    found = Driver(sink).committer.initialize_state(stopped.handles, stopped.scan_start)
    assert set(found.values()) == {Evidence.COMMITTED}
    assert values(database) == [1, 2, 3]


def test_a_driver_whose_host_is_gone_holds_the_lock_no_longer_than_its_timeout(sink: PostgresSink) -> None:
    """No packet tells the server, so the connection stays open."""
    dead = committer_of(Driver(sink))
    held = dead.step()
    dead.load(held.__enter__())
    dead._database._connection, kept = None, dead._database._connection
    found = Driver(replace(sink, timeout_ms=20_000))
    assert found.commit([found.prepare(numbers([1]))], found.begin()) == [Evidence.COMMITTED]
    with contextlib.closing(kept), pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        kept.execute("SELECT 1")


def _is_broken(connection: psycopg.Connection[Any]) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


# -- two drivers -------------------------------------------------------------------------------------------------------


def test_only_the_newer_of_two_copies_of_a_checkpoint_continues(database: str, tmp_path: Path) -> None:
    case = case_of(database)
    query = Query(case, tmp_path / "one")
    query.run(0)
    older = query.copied(tmp_path / "other")
    running = query.start()
    query.continue_with(running, 1)
    with pytest.raises(RefusedStartError):
        older.run(1)
    query.continue_with(running, 2)
    assert case.visible() == all_rows(0, 1, 2)


def test_late_rows_of_a_fenced_task_are_swept_and_never_visible(database: str, sink: PostgresSink) -> None:
    previous = Driver(sink)
    previous.begin()
    late = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, previous.driver_epoch, -1))
    late.write_rows(numbers([1, 2, 3]))
    driver = Driver(sink)
    driver.committer.initialize_state([], {})
    handle = late.snapshot_state(0)  # after the sweep
    with pytest.raises(FencedError):
        previous.committer.confirm([handle], 0)
    assert left_behind(database)["slice"] == 1
    driver.committer.recover_and_abort([])
    assert left_behind(database) == {"stages": 0, "slice": 0, "marker": 1}
    with pytest.raises(RetriableError, match="no longer complete"):
        driver.committer.confirm([handle], 0)
    assert values(database) == []


def test_a_task_of_a_fenced_driver_does_not_begin(database: str, sink: PostgresSink) -> None:
    previous = Driver(sink)
    Driver(sink)
    with pytest.raises(RetriableError, match="a newer driver has replaced this task's driver"):
        previous.prepare(numbers([1]))
    assert left_behind(database)["stages"] == 0


def test_a_rolled_back_slice_is_not_confirmed(sink: PostgresSink) -> None:
    """The slice's stage may still exist, because another session reads it."""
    driver = Driver(sink)
    driver.begin()
    handle = driver.prepare(numbers([1]))
    committer = committer_of(driver)
    with committer.driving() as step:
        committer.roll_back(step, handle.transaction, 1)
    with pytest.raises(RetriableError, match="no longer complete"):
        driver.committer.confirm([handle], 0)


def test_a_slice_whose_stage_still_exists_is_not_published_again(
    database: str, sink: PostgresSink, connection: psycopg.Connection[Any]
) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers([1]))
    [(name,)] = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'stage%'").fetchall()
    run(connection, "BEGIN", f"LOCK TABLE twopc.{name} IN ACCESS SHARE MODE")
    for _ in range(2):
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert left_behind(database)["stages"] == 1
    assert values(database) == [1]
    run(connection, "ROLLBACK")


# -- losses ------------------------------------------------------------------------------------------------------------


def test_a_stage_that_lost_rows_after_the_decision_counts_as_lost_and_is_written_again(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    case = case_of(database)

    def lose() -> None:
        [(one,), (other,)] = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'stage%'")
        connection.execute(f"TRUNCATE twopc.{one}".encode())
        connection.execute(f"DROP TABLE twopc.{other}".encode())

    crash_points.arm("driver.decided", lose)
    Query(case, tmp_path).run(0, 1)
    assert case.visible() == all_rows(0, 1)


def test_a_decision_whose_markers_are_forgotten_is_not_mistaken_for_a_loss(database: str, sink: PostgresSink) -> None:
    driver = Driver(sink)
    older = driver.begin()
    handle = driver.prepare(numbers([1]))
    driver.commit([handle], older)
    newer = driver.begin()
    driver.commit([driver.prepare(numbers([2]))], newer)
    driver.committer.forget(newer)
    assert left_behind(database)["marker"] == 1
    assert driver.committer.commit([handle], older) == {handle: Evidence.UNKNOWN}
    assert values(database) == [1, 2]


def test_markers_are_kept_until_a_newer_decision_records_that_they_may_be_forgotten(
    database: str, sink: PostgresSink
) -> None:
    driver = Driver(sink)
    older = driver.begin()
    handle = driver.prepare(numbers([1]))
    driver.commit([handle], older)
    driver.committer.forget(driver.begin())  # as after a batch without rows
    assert driver.committer.commit([handle], older) == {handle: Evidence.COMMITTED}
    assert values(database) == [1]


def test_a_sink_needs_a_unique_name(database: str) -> None:
    """Two sinks may share a schema and a table: each sees only its own slices."""
    case_of(database)
    one, other = Driver(sink_of(database)), Driver(sink_of(database, name="others"))
    one.begin()
    handle = one.prepare(numbers([1]))
    other.committer.recover_and_abort([])
    assert one.commit([handle], {"base": 1}) == [Evidence.COMMITTED]
    assert values(database) == [1]
