"""Helpers for the PostgreSQL sink's tests."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import make_conninfo

from twopc.sinks.postgres import PostgresSink
from twopc.sinks.postgres.publishing import Mode, Publishing
from twopc.sinks.postgres.rows import RowFormat, fit_rows
from twopc.sinks.postgres.statements import Statements
from twopc.sinks.postgres.table import read_table
from twopc.testing.contract import Case, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.sinks.postgres.target import Table
    from twopc.testing.contract.drivers import Driver


@contextlib.contextmanager
def new_database(dsn: str) -> Iterator[str]:
    """The connection string of a new, empty database, which is dropped at the end."""
    name = f"t{uuid.uuid4().hex[:12]}"
    for statement in ("CREATE DATABASE {}", "DROP DATABASE {} WITH (FORCE)"):
        with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as server:
            server.execute(sql.SQL(statement).format(sql.Identifier(name)))
        if statement.startswith("CREATE"):
            yield make_conninfo(dsn, dbname=name)


@contextlib.contextmanager
def connected_to_new_database(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a new database; each statement commits."""
    with new_database(dsn) as new, contextlib.closing(psycopg.connect(new, autocommit=True)) as connection:
        yield connection


def batch(**columns: pa.Array[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def run(connection: psycopg.Connection[Any], *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.encode())


def created(connection: psycopg.Connection[Any], *columns: str, name: str = "target") -> Table:
    """Create a table with these columns and constraints, in place of one with the same name."""
    run(connection, f"DROP TABLE IF EXISTS {name}", f"CREATE TABLE {name} ({', '.join(columns)})")
    return read_table(connection, name)


def copy(connection: psycopg.Connection[Any], table: Table, rows: pa.RecordBatch) -> RowFormat:
    """Write rows to a table through COPY."""
    fitted = fit_rows(rows.schema, table)
    place = sql.Identifier(table.schema, table.name)
    names = sql.SQL(", ").join(map(sql.Identifier, fitted.names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(place, names)
    with connection.cursor() as cursor, cursor.copy(statement) as stream:
        for piece in fitted.copy_text(rows):
            stream.write(piece)
    return fitted


def content(
    connection: psycopg.Connection[Any], *, name: str = "target", order: str = "ctid"
) -> Sequence[tuple[Any, ...]]:
    statement = sql.SQL("SELECT * FROM {} ORDER BY {}").format(sql.Identifier(name), sql.Identifier(order))
    return connection.execute(statement).fetchall()


class Staging:
    """A sink's statements on a real database: its objects exist, and so does its control record.

    Attributes:
        statements: the statements of a sink with an awkward name.
        publishing: how the rows are moved into the table.
    """

    def __init__(self, connection: psycopg.Connection[Any], publishing: Publishing) -> None:
        self.statements = Statements("The \"sink's", "orders")
        self.publishing = publishing
        self._connection = connection
        self.execute(*self.statements.create())
        self.execute(self.statements.swap_control(None, b"first"))

    def execute(self, *statements: sql.Composed) -> list[tuple[Any, ...]]:
        """Execute statements in one transaction; return the rows of the last one."""
        with self._connection.transaction():
            for statement in statements:
                cursor = self._connection.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def stage(self, rows: pa.RecordBatch, txn: str = "") -> str:
        """Stage rows as one slice, in one transaction; return its name."""
        txn = txn or uuid.uuid4().hex
        fitted = fit_rows(rows.schema, self.publishing.table, key=self.publishing.key)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for statement in self.statements.create_stage(txn, self.publishing):
                cursor.execute(statement)
            with cursor.copy(self.statements.copy(txn, fitted.names)) as stream:
                for piece in fitted.copy_text(rows):
                    stream.write(piece)
            cursor.execute(self.statements.insert_slice(txn, rows=rows.num_rows))
        return txn

    def publish(self, *txns: str) -> None:
        """Publish slices in one transaction, except those that are already marked."""
        with self._connection.transaction():
            self._connection.execute(self.statements.load_control(locked=True))
            marked = self._connection.execute(self.statements.insert_markers(txns, version=7, state="committed"))
            if new := [txn for (txn,) in marked]:
                self._connection.execute(self.statements.publish(new, self.publishing))


def publishing_of(table: Table, rows: pa.RecordBatch, mode: Mode = "append", **arguments: Any) -> Publishing:
    """Return how these rows are moved into a table."""
    key = arguments.get("key", ())
    return Publishing(table, mode, fit_rows(rows.schema, table, key=key).names, **arguments)


def sink_of(dsn: str, table: str = "target", **arguments: Any) -> PostgresSink:
    """A sink named `orders`, with short timeouts."""
    return PostgresSink(**{"name": "orders", "dsn": dsn, "table": table, "timeout_ms": 5_000, **arguments})


def case_of(dsn: str, columns: str = "value bigint NOT NULL", **arguments: Any) -> Case:
    """A case of the contract suite, whose table `target` has these columns; its rows contain only `value`."""
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        run(connection, f"CREATE TABLE target ({columns})")
    return Case(sink_of(dsn, **arguments), numbers, lambda: values(dsn))


def values(dsn: str, column: str = "value") -> list[Any]:
    """The rows that a reader of `target` sees now, sorted."""
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        statement = sql.SQL("SELECT {0} FROM target ORDER BY {0}").format(sql.Identifier(column))
        return [value for (value,) in connection.execute(statement)]


def left_behind(dsn: str, schema: str = "twopc") -> dict[str, int]:
    """The numbers of stages, slices and markers."""
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        stages = "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'stage%%'"
        found = {"stages": _count(connection.execute(stages, [schema]))}
        for name in ("slice", "marker"):
            statement = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, name))
            found[name] = _count(connection.execute(statement))
        return found


def committer_of(driver: Driver) -> Any:
    """A driver's committer, with its hooks and its connection."""
    return driver.committer


@contextlib.contextmanager
def new_role(dsn: str) -> Iterator[str]:
    """The connection string of a new role without any rights; the role and what it owns are dropped at the end."""
    name, password = f"r{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
    role = sql.Identifier(name)
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))
        try:
            yield make_conninfo(dsn, user=name, password=password)
        finally:
            # If the test itself failed, its task died without closing its connection.
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [name]
            )
            for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
                connection.execute(sql.SQL(statement).format(role))


def is_waiting(connection: psycopg.Connection[Any]) -> bool:
    """Whether a session of the sink waits for a lock."""
    statement = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'twopc%'"
    )
    return _count(connection.execute(statement)) > 0


def _count(cursor: psycopg.Cursor[Any]) -> int:
    [(count,)] = cursor.fetchall()
    return int(count)
