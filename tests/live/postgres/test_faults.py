"""Real faults of a server: a deadlock with another session, a publish that takes too long, a locked table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from tests.live.one_task import batch
from tests.live.postgres.support import case_of, is_waiting, run, sink_of, values
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.errors import CommitBlockedError, UnavailableError
from twopc.integration.services.server import wait_until
from twopc.settings import Settings
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.services.postgres import LocalPostgres
    from twopc.sinks.postgres.publishing import Vote

    Connection = psycopg.Connection[Any]

_TIMEOUT_S: Final = 20
_ONCE: Final = Settings(max_attempts=1)


# -- other sessions ----------------------------------------------------------------------------------------------------


class Rival:
    """Another session that updates two rows in the opposite order, so that one of the two has to give way."""

    def __init__(self, dsn: str, pool: ThreadPoolExecutor, connection: Connection) -> None:
        self._pool, self._connection = pool, connection
        self._own = psycopg.connect(dsn)
        self._own.execute("SET deadlock_timeout = '60s'")  # so the other connection notices the deadlock
        self._own.execute("UPDATE target SET n = 100 WHERE id = 2")

    def meet(self) -> Any:
        """Wait until the sink waits for the second row, and then update the first row. Return when the update succeeds."""
        assert wait_until(lambda: is_waiting(self._connection), _TIMEOUT_S)
        self._own.execute("UPDATE target SET n = 100 WHERE id = 1")
        self._own.commit()
        self._own.close()

    def start(self) -> Any:
        return self._pool.submit(self.meet)


def test_a_publish_that_ends_in_a_deadlock_is_repeated_at_once(
    database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    run(connection, "CREATE TABLE target (id bigint PRIMARY KEY, n bigint)", "INSERT INTO target VALUES (1, 1), (2, 2)")
    driver = Driver(sink_of(database, mode="upsert", key="id", timeout_ms=20_000))
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1, 2], n=[10, 20]))
    driver.committer.confirm([handle], 0)
    with ThreadPoolExecutor(1) as pool:
        met = Rival(database, pool, connection).start()
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
        met.result(_TIMEOUT_S)
    assert "deadlock detected" in caplog.text
    assert connection.execute("TABLE target ORDER BY id").fetchall() == [(1, 10), (2, 20)]


@pytest.mark.parametrize("vote", ["staged", "prepared"])
def test_a_decided_batch_is_published_although_the_server_restarts_meanwhile(
    vote: Vote, local_postgres: LocalPostgres, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = case_of(database, vote=vote, timeout_ms=20_000)
    driver = Driver(case.sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers([1, 2]))
    driver.committer.confirm([handle], 0)
    local_postgres.kill()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(driver.committer.commit, [handle], scan_start)
        assert wait_until(lambda: "a commit failed" in caplog.text, _TIMEOUT_S)
        local_postgres.start()
        assert found.result(_TIMEOUT_S) == {handle: Evidence.COMMITTED}
    assert "Connection refused" in caplog.text
    assert case.visible() == [1, 2]


def test_a_vote_that_ends_in_a_deadlock_fails_only_the_attempt(database: str, connection: Connection) -> None:
    run(connection, "CREATE TABLE target (id bigint PRIMARY KEY, n bigint)", "INSERT INTO target VALUES (1, 1), (2, 2)")
    driver = Driver(sink_of(database, mode="upsert", key="id", vote="prepared", timeout_ms=20_000))
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[1, 2], n=[10, 20]))
    with ThreadPoolExecutor(1) as pool:
        met = Rival(database, pool, connection).start()
        with pytest.raises(UnavailableError, match=r"deadlock detected.*PostgreSQL asks the client to try again"):
            driver.committer.confirm([handle], 0)
        met.result(_TIMEOUT_S)
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert connection.execute("TABLE target ORDER BY id").fetchall() == [(1, 10), (2, 20)]


@pytest.mark.parametrize("vote", ["staged", "prepared"])
def test_the_error_of_a_slow_publish_mentions_the_timeout_and_no_session_is_left(
    vote: Vote, database: str, connection: Connection, tmp_path: Path
) -> None:
    """For example, a publish into a table to which many indexes were added."""
    run(
        connection,
        "CREATE TABLE target (value bigint)",
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(30); RETURN NEW; END $$",
    )
    case = Case(sink_of(database, vote=vote, timeout_ms=1_000), numbers, lambda: values(database))
    query = Query(case, tmp_path)
    slow = "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION slow()"
    if vote == "staged":  # before the decision, the sink would refuse the table
        crash_points.arm("driver.decided", lambda: run(connection, slow))
    else:
        run(connection, slow)
    # The client and the server apply the same limit, and on a busy machine the server may be the first to notice.
    noticed = "no response within timeout_ms=1000|canceling statement due to statement timeout"
    with pytest.raises((CommitBlockedError, UnavailableError), match=noticed) as found:
        query.run(0, settings=_ONCE)
    assert "raise timeout_ms" in str(found.value) and "not reachable" not in str(found.value)
    assert wait_until(lambda: not _sessions(connection, "state <> 'idle'"), _TIMEOUT_S)
    run(connection, "DROP TRIGGER t ON target")
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


def _sessions(connection: Connection, condition: str) -> int:
    [(count,)] = connection.execute(
        f"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'twopc/orders' AND {condition}".encode()
    ).fetchall()
    return int(count)


def test_a_table_locked_by_another_session_fails_the_attempt_with_an_error_that_mentions_the_lock(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    run(connection, "CREATE TABLE target (value bigint)")
    case = Case(sink_of(database, timeout_ms=600), numbers, lambda: values(database))
    query = Query(case, tmp_path)
    query.run(0)
    crash_points.arm("driver.recovered", lambda: run(connection, "BEGIN", "LOCK TABLE target"))
    with pytest.raises(
        UnavailableError, match=r"lock timeout. Another session or .* holds a conflicting lock: see pg_stat_activity"
    ):
        query.run(1, settings=_ONCE)
    run(connection, "ROLLBACK")
    query.run(1)
    assert case.visible() == all_rows(0, 1)
