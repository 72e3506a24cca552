"""Timeouts of the server, the role and the sink: the error names each, and none ends a decided publish permanently."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.live.postgres.support import case_of, committer_of, new_role, run, sink_of, values
from twopc import crash_points
from twopc.attempt import Attempt, TaskAttempt
from twopc.errors import UnavailableError
from twopc.integration.services.server import wait_until
from twopc.sinks.postgres.database import Database
from twopc.sinks.postgres.options import Address
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.integration.services.postgres import LocalPostgres
    from twopc.sinks.postgres import PostgresSink
    from twopc.sinks.postgres.writer import PostgresWriter

    Connection = psycopg.Connection[Any]

_TIMEOUT_S = 20


@pytest.fixture
def impatient(database: str, connection: Connection) -> Iterator[str]:
    """The connection string of a role whose sessions have short timeouts."""
    case_of(database)
    with new_role(database) as dsn:
        role = _user(dsn)
        run(
            connection,
            f"GRANT ALL ON target TO {role}",
            f"CREATE SCHEMA twopc AUTHORIZATION {role}",
            *(
                f"ALTER ROLE {role} SET {name} = {value!r}"
                for name, value in {
                    "statement_timeout": "7s",
                    "lock_timeout": "7s",
                    "idle_in_transaction_session_timeout": "9s",
                    "transaction_timeout": "10s",
                    "synchronous_commit": "off",
                }.items()
                if name != "transaction_timeout" or _has_transaction_timeout(connection)
            ),
        )
        yield dsn


def _has_transaction_timeout(connection: Connection) -> bool:
    """PostgreSQL has supported this timeout since version 17."""
    return connection.execute("SELECT current_setting('transaction_timeout', true)").fetchone() != (None,)


def _user(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["user"])


def writer_of(sink: PostgresSink, driver: Driver) -> PostgresWriter:
    writer = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, driver.driver_epoch, -1))
    writer.write_rows(numbers([1]))
    return writer


def test_the_sinks_own_timeout_applies_to_a_publish_and_the_commit_is_durable(impatient: str) -> None:
    """A publish that the role's timeouts end would be ended again at every restart."""
    driver = Driver(sink_of(impatient, timeout_ms=30_000))
    found = {}

    def look() -> None:
        connection = committer_of(driver)._database.connection
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            found[name] = connection.execute(f"SHOW {name}").fetchone()[0]
        setting = connection.execute("SELECT current_setting('transaction_timeout', true)").fetchone()[0]
        found["transaction_timeout"] = setting or "0"
        found["synchronous_commit"] = connection.execute("SHOW synchronous_commit").fetchone()[0]

    crash_points.arm("driver.committing", look)
    scan_start = driver.begin()
    driver.commit([driver.prepare(numbers([1]))], scan_start)
    assert found == {
        "statement_timeout": "30s",
        "lock_timeout": "15s",
        "idle_in_transaction_session_timeout": "30s",
        "transaction_timeout": "0",
        "synchronous_commit": "on",
    }


def test_the_error_of_a_task_that_waits_too_long_for_rows_mentions_the_setting(
    impatient: str, database: str, connection: Connection
) -> None:
    sink = sink_of(impatient)
    driver = Driver(sink)
    run(connection, f"ALTER ROLE {_user(impatient)} SET idle_in_transaction_session_timeout = '10ms'")
    writer = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, driver.driver_epoch, -1))

    def write() -> None:
        writer.write_rows(numbers([1]))  # on a slow machine, even this may exceed the timeout
        assert wait_until(lambda: not _writes(connection), _TIMEOUT_S)
        writer.write_rows(numbers([2]))

    with pytest.raises(UnavailableError, match="Raise idle_in_transaction_session_timeout for this role"):
        write()
    writer.close()
    assert values(database) == []


def _writes(connection: Connection) -> bool:
    [(count,)] = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'twopc/orders' AND state LIKE 'idle in%'"
    )
    return bool(count)


def test_a_connection_to_a_silent_server_is_abandoned_after_the_timeout(
    local_postgres: LocalPostgres, database: str
) -> None:
    case_of(database)
    timeout_ms = 500
    sink = sink_of(database, timeout_ms=timeout_ms)
    driver = Driver(sink_of(database, timeout_ms=timeout_ms))
    scan_start = driver.begin()
    handle = driver.prepare(numbers([1]))
    writer = writer_of(sink, driver)
    local_postgres.pause()
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=f"preparing .* no response within timeout_ms={timeout_ms}"):
        writer.snapshot_state(0)
    with pytest.raises(UnavailableError, match=f"beginning an attempt: no response within timeout_ms={timeout_ms}"):
        driver.begin()
    assert time.monotonic() - began < _TIMEOUT_S / 4
    local_postgres.resume()
    writer.close()
    driver.commit([handle], scan_start)
    assert values(database) == [1]


def test_a_connection_that_opened_too_late_is_not_used(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing watched the connection while it was being opened.

    Without this check, the sink would never give up on a server that then falls silent.
    """
    connect = Address.connect
    late = Database(Address(database), "orders", timeout_ms=50)

    def slow(*arguments: Any, **named: Any) -> Connection:
        assert wait_until(lambda: late._is_late, _TIMEOUT_S)
        return connect(*arguments, **named)

    monkeypatch.setattr(Address, "connect", slow)
    with pytest.raises(psycopg.OperationalError, match="no response within timeout_ms=50"), late.transaction():
        pytest.fail("it began a transaction")


def test_a_commit_that_the_server_turned_into_a_rollback_raises_an_error(database: str) -> None:
    own = Database(Address(database), "orders", timeout_ms=5_000)

    def fail() -> None:
        with own.transaction() as connection, contextlib.suppress(psycopg.Error):
            connection.execute("SELECT 1 / 0")

    with pytest.raises(psycopg.InternalError, match="responded to COMMIT with ROLLBACK"):
        fail()


def test_a_task_votes_only_on_the_connection_that_it_wrote_on(database: str) -> None:
    case_of(database)
    sink = sink_of(database)
    writer = writer_of(sink, Driver(sink))
    writer._database.close()
    with pytest.raises(UnavailableError, match="the connection was lost"):
        writer.snapshot_state(0)
    writer.close()
