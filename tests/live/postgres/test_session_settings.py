"""The settings of a role or a database change no value that the sink stores."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.live.one_task import apply, batch
from tests.live.postgres.support import new_role, run, sink_of
from twopc.attempt import Evidence
from twopc.sinks.postgres.options import Address

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    Connection = psycopg.Connection[Any]

_AT = dt.datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=dt.timezone.utc)
_ROWS = batch(
    tags=pa.array([["a", None, "NULL", "null"], None, [None]], pa.list_(pa.string())),
    at=pa.array([_AT] * 3, pa.timestamp("us", "UTC")),
    day=pa.array([_AT.date()] * 3, pa.date32()),
    took=pa.array([dt.timedelta(days=-1, hours=-2)] * 3, pa.duration("us")),
    data=pa.array([b"\0\\x"] * 3, pa.binary()),
    ratio=pa.array([0.1] * 3, pa.float64()),
)
_STORED = [
    (["a", None, "NULL", "null"], _AT, _AT.date(), dt.timedelta(days=-1, hours=-2), b"\0\\x", 0.1),
    (None, _AT, _AT.date(), dt.timedelta(days=-1, hours=-2), b"\0\\x", 0.1),
    ([None], _AT, _AT.date(), dt.timedelta(days=-1, hours=-2), b"\0\\x", 0.1),
]
#: Settings that change how the server reads or writes a value's text.
_SETTINGS = {
    "array_nulls": "off",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/New_York",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
}


@pytest.fixture
def role(database: str, connection: Connection) -> Iterator[str]:
    """The connection string of a role that may write to `target`."""
    run(
        connection,
        "CREATE TABLE target (tags text[], at timestamptz, day date, took interval, data bytea, ratio double precision)",
    )
    with new_role(database) as dsn:
        user = conninfo_to_dict(dsn)["user"]
        run(connection, f"GRANT ALL ON target TO {user}", f"CREATE SCHEMA twopc AUTHORIZATION {user}")
        yield dsn


@pytest.mark.parametrize("vote", ["staged", "prepared"])
@pytest.mark.parametrize("of", ["ROLE", "DATABASE"])
def test_the_settings_of_a_role_or_a_database_change_no_stored_value(
    of: str, vote: str, role: str, connection: Connection
) -> None:
    name = conninfo_to_dict(role)["user" if of == "ROLE" else "dbname"]
    run(connection, *(f"ALTER {of} {name} SET {setting} = {value!r}" for setting, value in _SETTINGS.items()))
    assert apply(sink_of(role, vote=vote), _ROWS) == [Evidence.COMMITTED]
    assert connection.execute("TABLE target ORDER BY ctid").fetchall() == _STORED


@pytest.mark.parametrize("column", ["n bigserial PRIMARY KEY", "n uuid DEFAULT gen_random_uuid() UNIQUE"])
def test_a_key_that_the_table_generates_is_recognized_although_the_server_quotes_all_names(
    column: str, database: str, connection: Connection
) -> None:
    run(connection, f"CREATE TABLE target (v bigint, {column})")
    quoted = make_conninfo(database, options="-c quote_all_identifiers=on")
    assert apply(sink_of(quoted), batch(v=pa.array([1, 2]))) == [Evidence.COMMITTED]
    assert connection.execute("SELECT v FROM target ORDER BY v").fetchall() == [(1,), (2,)]


def test_no_statement_is_prepared_in_a_session_because_a_pooler_may_use_another_session_next(database: str) -> None:
    with contextlib.closing(Address(database).connect("orders", timeout_ms=5_000)) as connection:
        for _ in range(10):
            connection.execute("SELECT %s::int", [1])
        assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
