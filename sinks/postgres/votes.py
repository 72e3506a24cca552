"""Handle the votes of ``vote="prepared"``: the publish of a batch, prepared as a transaction of the server before the decision.

A prepared transaction outlives its session and a crash of the server, keeps its locks, and can no longer be rejected by the
table. The transaction contains the markers of its slices. So its commit is proven like that of any other publish, and it
excludes any other publish of the same slices.

Nobody prepares the same name twice. So a transaction that the server does not list any more is either committed, and then its
markers are visible, or permanently rolled back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from twopc.attempt import Attempt
    from twopc.control import Control
    from twopc.sinks.postgres.database import Database

    Connection = psycopg.Connection[Any]

_PREFIX: Final = "twopc-{sink}-{id}-"


def vote_name(connection: Connection, sink: str, record: Control, attempt: Attempt) -> str:
    """Return the name of an attempt's vote, with at most 199 bytes, as the server demands.

    The name is unique on the server: a copy of the database has the same control record, but its own oid.
    """
    database = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
    if database is None:
        raise AssertionError("a session is always in a database")
    return f"{_prefix(sink, record)}{database[0]}-{record.driver_epoch}-{attempt.driver_epoch}.{attempt.counter}"


def find_votes(connection: Connection, sink: str, record: Control) -> list[str]:
    """Find the names of the sink's prepared transactions, of this driver and of previous ones."""
    statement = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
    return [name for (name,) in connection.execute(statement, [_prefix(sink, record)])]


def finish_votes(database: Database, names: Collection[str], how: Literal["COMMIT", "ROLLBACK"]) -> Iterator[str]:
    """Commit prepared transactions, or roll them back. Yield each name when its transaction is done. Skip unlisted names.

    Raises:
        psycopg.Error: the server rejected one of them, or did not answer. The outcome is unknown. If it only rejected one, all
            the others are done.
    """
    if not names:
        return
    statement = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid = ANY(%s) ORDER BY gid"
    with database.transaction() as connection:
        listed = [name for (name,) in connection.execute(statement, [list(names)])]
    rejected: psycopg.Error | None = None
    for name in listed:
        try:
            with contextlib.suppress(psycopg.errors.UndefinedObject):  # another driver has just done it
                database.execute_alone(sql.SQL(how) + sql.SQL(" PREPARED {}").format(sql.Literal(name)))
        except psycopg.ProgrammingError as error:  # for example, it belongs to another role
            rejected = error
        else:
            yield name
    if rejected is not None:
        raise rejected


def _prefix(sink: str, record: Control) -> str:
    return _PREFIX.format(sink=sink, id=record.id)
