"""Handle votes with ``vote="prepared"``.

A vote is a transaction that publishes a batch, and that the server prepares before the decision. A prepared transaction
survives the end of its session and a server crash, and it keeps its locks. The table can no longer reject it. The transaction
contains its slices' markers. As with ``vote="staged"``, these markers prove the commit and prevent a second publish of the same
slices.

No two transactions are prepared under the same name. So a transaction that the server no longer lists is either committed, with
visible markers, or permanently rolled back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg
from psycopg import sql

from twopc.errors import RetriableError
from twopc.sinks.postgres.errors import BusyVoteError, text_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from twopc.attempt import Attempt
    from twopc.control import Control
    from twopc.sinks.postgres.database import Database
    from twopc.sinks.postgres.handle import PostgresHandle

    Connection = psycopg.Connection[Any]

_PREFIX: Final = "twopc-{sink}-{id}-"


def vote_name(connection: Connection, sink: str, record: Control, attempt: Attempt) -> str:
    """Return the name of an attempt's vote. The server allows names of up to 199 bytes.

    The name is unique on the server, because it contains the database's oid. A copy of the database has the same control
    record, but a different oid. The name ends with the attempt's version, which :func:`version_of_vote` reads.
    """
    find = "SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"
    database = connection.execute(find).fetchone()
    if database is None:
        raise AssertionError("a session is always in a database")
    name = f"{_prefix(sink, record)}{database[0]}-{record.driver_epoch}-{attempt.driver_epoch}.{attempt.counter}"
    return f"{name}-{record.version}"


def version_of_vote(name: str) -> int:
    """Return the version at the end of a vote's name; 0 if the name contains no version."""
    version = name.rpartition("-")[2]
    return int(version) if version.isdecimal() else 0


def votes_of(handles: Iterable[PostgresHandle]) -> list[str]:
    """Return the names of the votes that publish these slices."""
    return sorted({handle.vote for handle in handles if handle.vote})


def find_votes(connection: Connection, sink: str, record: Control) -> list[str]:
    """Find the names of prepared transactions from this driver and from the sink's previous drivers."""
    statement = (
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() "
        "AND pg_catalog.starts_with(gid, %s)"
    )
    return [name for (name,) in connection.execute(statement, [_prefix(sink, record)])]


def require_votes(connection: Connection, names: Collection[str], *, sink: str) -> None:
    """Check that the server still has these votes.

    Raises:
        RetriableError: a vote was rolled back.
    """
    if gone := sorted(set(names) - set(open_votes(connection, names))):
        raise RetriableError(
            f"sink {sink!r}: the prepared transaction {', '.join(gone)} was rolled back before its batch was decided. "
            "Nothing was decided, and a new attempt will rewrite the batch"
        )


def finish_votes(database: Database, names: Collection[str], how: Literal["COMMIT", "ROLLBACK"]) -> Iterator[str]:
    """Commit prepared transactions, or roll them back. Yield each name after its transaction has ended. Skip unknown names.

    Raises:
        BusyVoteError: another session is ending one of the transactions.
        psycopg.Error: either the server rejected a statement (the other transactions have ended), or the server did not
            respond (the outcome is unknown).
    """
    if not names:
        return
    with database.transaction() as connection:
        listed = open_votes(connection, names)
    rejected: psycopg.Error | None = None
    for name in listed:
        try:
            with contextlib.suppress(psycopg.errors.UndefinedObject):  # another driver has just ended this transaction
                database.execute_alone(sql.SQL(how) + sql.SQL(" PREPARED {}").format(sql.Literal(name)))
        except psycopg.errors.ObjectNotInPrerequisiteState as error:
            raise BusyVoteError(text_of(error)) from error
        except psycopg.ProgrammingError as error:  # for example, the transaction belongs to another role
            rejected = error
        else:
            yield name
    if rejected is not None:
        raise rejected


def open_votes(connection: Connection, names: Collection[str]) -> list[str]:
    """Return those of these votes that are open, sorted."""
    statement = (
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() AND gid = ANY(%s) "
        "ORDER BY gid"
    )
    return [name for (name,) in connection.execute(statement, [list(names)])]


def _prefix(sink: str, record: Control) -> str:
    return _PREFIX.format(sink=sink, id=record.id)
