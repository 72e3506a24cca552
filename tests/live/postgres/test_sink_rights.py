"""Exactly the rights that the sink's role needs: all of them suffice, and none may be missing."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.live.one_task import apply, batch
from tests.live.postgres.support import case_of, new_role, run, sink_of
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.errors import CommitBlockedError, ConfigurationError
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Connection = psycopg.Connection[Any]

#: The statements that a database administrator executes for a sink, each with words from the error that occurs without
#: the statement.
_RIGHTS = {
    "GRANT CONNECT ON DATABASE {database} TO {role}": "permission denied for database",
    "CREATE SCHEMA twopc AUTHORIZATION {role}": "permission denied for database",
    "GRANT USAGE ON SCHEMA app TO {role}": "permission denied for schema app",
    "GRANT INSERT ON app.target TO {role}": "GRANT INSERT ON app.target TO",
    "GRANT SELECT ON app.target TO {role}": "GRANT SELECT ON app.target TO|permission denied for table target",
}
#: What lets a second role share the first role's schema.
_SHARING = "GRANT SELECT, INSERT, UPDATE, DELETE ON twopc.control, twopc.slice, twopc.marker TO {role}"
_FOR_UPSERT = {"GRANT UPDATE ON app.target TO {role}": "GRANT UPDATE ON app.target TO"}
_ROWS = batch(id=pa.array([1], pa.int64()), note=["a"])


@pytest.fixture
def role(database: str, connection: Connection) -> Iterator[str]:
    """The connection string of a role without rights, in a database that grants no one any rights."""
    run(
        connection,
        f"REVOKE ALL ON DATABASE {conninfo_to_dict(database)['dbname']} FROM PUBLIC",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "CREATE SCHEMA app",
        "CREATE TABLE app.target (id bigint PRIMARY KEY, note text, number int GENERATED ALWAYS AS IDENTITY)",
        "CREATE TABLE app.log (id bigint, note text)",
    )
    with new_role(database) as dsn:
        yield dsn


def granted(connection: Connection, dsn: str, *statements: str) -> None:
    found = conninfo_to_dict(dsn)
    run(connection, *(statement.format(database=found["dbname"], role=found["user"]) for statement in statements))


def stages_of(connection: Connection) -> list[str]:
    find = "SELECT tablename FROM pg_tables WHERE schemaname = 'twopc' AND starts_with(tablename, 'stage_')"
    return [f"twopc.{name}" for (name,) in connection.execute(find).fetchall()]


def appending(dsn: str) -> Any:
    return sink_of(dsn, "app.log")


def upserting(dsn: str) -> Any:
    return sink_of(dsn, "app.target", mode="upsert", key="id")


def test_the_documented_rights_are_enough_for_upserts(role: str, connection: Connection) -> None:
    granted(connection, role, *_RIGHTS, *_FOR_UPSERT)
    assert apply(upserting(role), _ROWS) == [Evidence.COMMITTED]
    assert apply(upserting(role), _ROWS) == [Evidence.COMMITTED]


def test_an_append_needs_no_update_right(role: str, connection: Connection) -> None:
    granted(connection, role, *(statement.replace("target", "log") for statement in _RIGHTS))
    assert apply(appending(role), _ROWS) == [Evidence.COMMITTED]
    assert apply(appending(role), _ROWS) == [Evidence.COMMITTED]
    assert connection.execute("TABLE app.log").fetchall() == [(1, "a")] * 2


@pytest.mark.parametrize("missing", [*_RIGHTS, *_FOR_UPSERT])
def test_each_right_is_needed_and_reported_when_it_is_missing(missing: str, role: str, connection: Connection) -> None:
    granted(connection, role, *(right for right in (*_RIGHTS, *_FOR_UPSERT) if right != missing))
    with pytest.raises(ConfigurationError, match=(_RIGHTS | _FOR_UPSERT)[missing]):
        apply(upserting(role), _ROWS)


def test_a_serial_column_needs_a_right_on_its_sequence_too(role: str, connection: Connection) -> None:
    run(connection, "ALTER TABLE app.log ADD number serial")
    granted(connection, role, *(statement.replace("target", "log") for statement in _RIGHTS))
    with pytest.raises(ConfigurationError, match="permission denied for sequence log_number_seq"):
        apply(appending(role), _ROWS)
    granted(connection, role, "GRANT USAGE ON SEQUENCE app.log_number_seq TO {role}")
    assert apply(appending(role), _ROWS) == [Evidence.COMMITTED]


def test_a_right_revoked_after_the_decision_blocks_the_batch_until_it_is_granted_again(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = case_of(database)
    with new_role(database) as role:
        case.sink = sink_of(role)
        granted(
            connection, role, "GRANT INSERT, SELECT ON target TO {role}", "CREATE SCHEMA twopc AUTHORIZATION {role}"
        )
        query = Query(case, tmp_path)
        crash_points.arm("driver.decided", lambda: granted(connection, role, "REVOKE INSERT ON target FROM {role}"))
        for _ in range(2):
            with pytest.raises(CommitBlockedError, match="permission denied for table target"):
                query.run(0)
        granted(connection, role, "GRANT INSERT ON target TO {role}")
        query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


def test_two_roles_share_a_schema_if_the_second_may_use_the_firsts_tables(role: str, connection: Connection) -> None:
    granted(connection, role, *(statement.replace("target", "log") for statement in _RIGHTS))
    assert apply(appending(role), _ROWS) == [Evidence.COMMITTED]
    with new_role(role_of(connection, role)) as other:
        rights = [
            right.replace("target", "log").replace(
                "CREATE SCHEMA twopc AUTHORIZATION", "GRANT USAGE, CREATE ON SCHEMA twopc TO"
            )
            for right in _RIGHTS
        ]
        granted(connection, other, *rights)
        sink = sink_of(other, "app.log", name="others")
        with pytest.raises(ConfigurationError, match="permission denied for table control"):
            apply(sink, _ROWS)
        granted(connection, other, _SHARING)
        assert apply(sink, _ROWS) == [Evidence.COMMITTED]
        assert apply(sink, _ROWS) == [Evidence.COMMITTED]


def test_a_role_that_shares_a_schema_cannot_read_or_change_the_stages_of_another(
    role: str, connection: Connection
) -> None:
    granted(connection, role, *(statement.replace("target", "log") for statement in _RIGHTS))
    driver = Driver(appending(role))
    driver.begin()
    driver.prepare(_ROWS)
    [stage] = stages_of(connection)
    with new_role(role_of(connection, role)) as other:
        granted(connection, other, "GRANT CONNECT ON DATABASE {database} TO {role}")
        granted(connection, other, "GRANT USAGE, CREATE ON SCHEMA twopc TO {role}", _SHARING)
        with psycopg.connect(other, autocommit=True) as session:
            for statement in (f"TABLE {stage}", f"DELETE FROM {stage}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    session.execute(statement)


def test_a_new_role_publishes_the_stages_of_the_role_that_it_replaces(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = case_of(database)
    with new_role(database) as first, new_role(database) as second:
        granted(
            connection, first, "GRANT INSERT, SELECT ON target TO {role}", "CREATE SCHEMA twopc AUTHORIZATION {role}"
        )
        granted(connection, second, "GRANT INSERT, SELECT ON target TO {role}")
        case.sink = sink_of(first)
        query = Query(case, tmp_path)
        assert query.run_until("driver.decided", 0)
        granted(connection, second, "GRANT USAGE, CREATE ON SCHEMA twopc TO {role}", _SHARING)
        left = stages_of(connection)
        assert left
        granted(connection, second, *(f"GRANT SELECT ON {stage} TO {{role}}" for stage in left))
        case.sink = sink_of(second)
        query.run(0, 1)
        assert case.visible() == all_rows(0, 1)


def role_of(connection: Connection, dsn: str) -> str:
    """The superuser's connection string for the role's database."""
    return make_conninfo(connection.info.dsn, password=connection.info.password, dbname=conninfo_to_dict(dsn)["dbname"])


def test_the_password_is_never_shown(role: str, connection: Connection, caplog: pytest.LogCaptureFixture) -> None:
    granted(connection, role, *_RIGHTS, *_FOR_UPSERT)
    password = str(conninfo_to_dict(role)["password"])
    sink = upserting(role)
    with caplog.at_level(logging.DEBUG):
        apply(sink, _ROWS)
        shown = [repr(sink), str(sink), repr(sink.create_committer())]
        for statement in (
            "REVOKE SELECT ON app.target FROM {role}",
            "REVOKE CONNECT ON DATABASE {database} FROM {role}",
        ):
            granted(connection, role, statement)
            with pytest.raises(ConfigurationError) as refused:
                apply(sink, _ROWS)
            shown += traceback.format_exception(refused.value)
    assert password not in "".join([*shown, caplog.text])
