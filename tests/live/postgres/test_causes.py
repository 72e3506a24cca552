"""Each common failure names the sink, PostgreSQL's message and the remedy, and says whether data is at risk."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.live.one_task import apply
from tests.live.postgres.support import case_of, new_role, run, sink_of
from twopc.attempt import Evidence
from twopc.errors import ConfigurationError, TwoPhaseCommitError, UnavailableError
from twopc.integration.services.ports import free_ports
from twopc.integration.services.postgres import LocalPostgres
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

_DSNS: list[tuple[dict[str, str], type[TwoPhaseCommitError], str]] = [
    (
        {"password": "wrong"},
        ConfigurationError,
        "password authentication failed.*Check the user and the password in the dsn",
    ),
    ({"user": "nobody"}, ConfigurationError, "Check the user and the password in the dsn"),
    ({"dbname": "nowhere"}, ConfigurationError, 'database "nowhere" does not exist. Check the database in the dsn'),
    ({"sslmode": "require"}, ConfigurationError, "server does not support SSL"),
    ({"host": "no-such-host.invalid"}, UnavailableError, "no-such-host.invalid.*not reachable"),
    ({"options": "-c default_transaction_read_only=on"}, UnavailableError, "read-only.*pass the primary's dsn"),
]


@pytest.mark.parametrize(("changed", "error", "words"), _DSNS)
def test_the_error_for_a_dsn_that_leads_nowhere_says_what_to_check(
    changed: dict[str, str], error: type[Exception], words: str, database: str
) -> None:
    # An earlier driver may have decided a batch that this driver has not seen yet.
    kept = "This start wrote no rows. A batch that was already decided stays decided"
    with pytest.raises(error, match=rf"sink 'orders', checking the store: .*{words}.*{kept}"):
        Driver(sink_of(make_conninfo(database, **changed)))


def test_a_server_that_is_down_counts_as_temporarily_unavailable(database: str) -> None:
    [port] = free_ports(1)
    with pytest.raises(UnavailableError, match=f"port {port} failed: Connection refused. The server is not reachable"):
        Driver(sink_of(make_conninfo(database, port=port)))


def test_too_many_connections_count_as_a_temporary_failure(database: str, connection: Connection) -> None:
    case_of(database)
    with new_role(database) as dsn:
        run(connection, f"ALTER ROLE {conninfo_to_dict(dsn)['user']} CONNECTION LIMIT 0")
        with pytest.raises(UnavailableError, match=r"too many connections for role.*The driver and each task need"):
            Driver(sink_of(dsn))


def test_a_role_that_may_not_log_in_is_reported(database: str, connection: Connection) -> None:
    with new_role(database) as dsn:
        run(connection, f"ALTER ROLE {conninfo_to_dict(dsn)['user']} NOLOGIN")
        with pytest.raises(ConfigurationError, match="is not permitted to log in"):
            Driver(sink_of(dsn))


@pytest.mark.parametrize("table", ["nobody", "nowhere.target", "Target"])
def test_a_missing_table_is_reported(table: str, database: str) -> None:
    case_of(database)
    if table == "Target":  # without quotes, SQL reads it as target
        assert apply(sink_of(database, table), numbers([1]))
        table = '"Target"'
    with pytest.raises(ConfigurationError, match=f"table '{table}' does not exist.*check the name"):
        Driver(sink_of(database, table))


def test_a_table_name_that_sql_cannot_parse_is_refused(database: str) -> None:
    with pytest.raises(ConfigurationError, match=r"table 'a\.b\.c\.d\.e' does not exist.*Write the name as in SQL"):
        Driver(sink_of(database, "a.b.c.d.e"))


def test_a_dropped_internal_table_of_the_sink_is_reported(database: str, connection: Connection) -> None:
    case_of(database)
    driver = Driver(sink_of(database))
    run(connection, "DROP TABLE twopc.slice")
    driver.begin()
    with pytest.raises(
        ConfigurationError, match=r"does not exist. The target table or one of the sink's own tables was"
    ):
        driver.prepare(numbers([1]))


_FORBIDDEN = (
    "CREATE FUNCTION f() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no tables here'; END $$",
    "CREATE EVENT TRIGGER t ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION f()",
)
_NOT_A_ROW = "no tables here. The database forbids a table that the sink creates for itself, probably with an event"


def test_an_event_trigger_that_forbids_the_sinks_own_tables_is_not_reported_as_a_bad_row(
    database: str, connection: Connection
) -> None:
    case_of(database)
    run(connection, *_FORBIDDEN)
    with pytest.raises(ConfigurationError, match=_NOT_A_ROW):
        Driver(sink_of(database))
    run(connection, "DROP EVENT TRIGGER t")
    assert apply(sink_of(database), numbers([1])) == [Evidence.COMMITTED]


def test_an_event_trigger_that_forbids_a_stage_is_not_reported_as_a_bad_row(
    database: str, connection: Connection
) -> None:
    case_of(database)
    driver = Driver(sink_of(database))
    run(connection, *_FORBIDDEN)
    scan_start = driver.begin()
    with pytest.raises(ConfigurationError, match=_NOT_A_ROW):
        driver.prepare(numbers([1]))
    run(connection, "DROP EVENT TRIGGER t")
    assert driver.commit([driver.prepare(numbers([1]))], scan_start) == [Evidence.COMMITTED]


def test_an_event_trigger_that_uses_the_sqlstate_of_a_bad_row_is_reported_with_that_sqlstate(
    database: str, connection: Connection
) -> None:
    case_of(database)
    body = "BEGIN RAISE 'no tables here' USING ERRCODE = 'check_violation'; END"
    run(connection, f"CREATE FUNCTION f() RETURNS event_trigger LANGUAGE plpgsql AS $$ {body} $$", _FORBIDDEN[1])
    with pytest.raises(
        ConfigurationError, match=r"no tables here \(SQLSTATE 23514\)\. The server rejected a table .*No row has caused"
    ):
        Driver(sink_of(database))


@pytest.mark.parametrize("wanted", ["read-write", "any"])
def test_a_standby_counts_as_temporarily_unavailable_and_the_error_identifies_it(wanted: str) -> None:
    """With ``any``, or a pooler's connection from before the failover, only the sink's first statement fails."""
    with tempfile.TemporaryDirectory(prefix="twopc-postgres-test-") as directory:
        Path(directory).chmod(0o711)
        home = Path(directory, "server")
        with LocalPostgres(data_dir=home) as server:
            server.execute("CREATE TABLE target (value bigint)")
        (home / "cluster" / "standby.signal").touch(0o644)
        with (
            LocalPostgres(data_dir=home) as standby,
            pytest.raises(UnavailableError, match=r"points to a standby.*During a failover.*pass the primary's dsn"),
        ):
            Driver(sink_of(make_conninfo(standby.dsn, target_session_attrs=wanted)))
