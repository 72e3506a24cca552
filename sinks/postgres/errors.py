"""Translate PostgreSQL errors by SQLSTATE (appendix A of the PostgreSQL manual)."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

import psycopg

from twopc.errors import BadRecordError, ConfigurationError, FatalError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.errors import TwoPhaseCommitError

FAILURES: Final = (psycopg.Error,)
#: Prefixes of SQLSTATEs. The longest matching prefix counts.
_MEANINGS: Final[dict[str, tuple[type[TwoPhaseCommitError], str]]] = {
    "": (FatalError, "PostgreSQL rejected the statement"),
    "0A": (
        ConfigurationError,
        "The server does not support this statement for this table: change what the error names, or write to another table",
    ),
    "08": (UnavailableError, "The server is not reachable, or the connection was lost"),
    "21000": (
        BadRecordError,
        (
            "If the message is about ON CONFLICT, a trigger has given two rows of the batch the same key. "
            "Otherwise, a query in a trigger or function has returned several rows. Correct the trigger, or change the rows"
        ),
    ),
    "22": (BadRecordError, "A row does not fit the table"),
    "2200H": (
        ConfigurationError,
        (
            "One of the table's sequences is used up: raise its maximum with ALTER SEQUENCE. If the sequence fills a smallint or "
            "integer column, first change both the sequence's type and the column's type to bigint"
        ),
    ),
    "23": (BadRecordError, "A row violates one of the table's constraints"),
    # During a failover, a server that was the primary, or soon will be, is read-only.
    "25006": (
        UnavailableError,
        (
            "The dsn points to a standby, or the database is read-only. During a failover, this error ends when a primary "
            "accepts writes. If it does not end, pass the primary's dsn"
        ),
    ),
    "25P03": (
        UnavailableError,
        "Raise idle_in_transaction_session_timeout for this role, because a task's transaction is idle while it waits for rows",
    ),
    "25P04": (
        UnavailableError,
        "Raise transaction_timeout for this role, because a task's transaction lasts until the task ends",
    ),
    "28": (ConfigurationError, "Check the user and the password in the dsn, and the server's pg_hba.conf"),
    "3D": (ConfigurationError, "Check the database in the dsn"),
    "39P03": (
        ConfigurationError,
        (
            "The database forbids a table that the sink creates for itself, probably with an event trigger (see "
            "pg_event_trigger): exempt the sink's role or the sink's own schema from the event trigger"
        ),
    ),
    "40": (UnavailableError, "PostgreSQL asks the client to try again"),
    "42501": (ConfigurationError, "Grant the sink's role the privileges that docs/postgres.md lists"),
    "42703": (FatalError, "Restore the column's original name, and restart the query"),
    "42804": (
        FatalError,
        (
            "Undo the change. Or make the same change to each of these stages (ALTER TABLE … USING …). Do not change other "
            "stages, because they may belong to another query. Then restart the query"
        ),
    ),
    "42S22": (
        FatalError,
        (
            "Nothing can restore a dropped column, and a new column of that name may store something else. Copy the stages to "
            "other tables, abandon the batch with the override that this message names, and insert the copied rows yourself"
        ),
    ),
    "42P10": (FatalError, "Create the index again, and restart the query"),
    "42S11": (FatalError, "Drop this index or its constraint, and restart the query"),
    "42P01": (
        ConfigurationError,
        "The target table or one of the sink's own tables was dropped or renamed: restore the table",
    ),
    "53": (UnavailableError, "The server is out of disk space or memory"),
    "53100": (
        UnavailableError,
        "A disk on the server is full: free space, and start the server if it has shut down",
    ),
    "53200": (
        UnavailableError,
        (
            "The server is out of memory, or it has no free slot for a prepared transaction (with vote='prepared'). If the "
            "server has no free slot, raise max_prepared_transactions. If it is out of shared memory, raise "
            "max_locks_per_transaction"
        ),
    ),
    "53300": (
        UnavailableError,
        "The driver and each task need a connection: raise max_connections, or run fewer tasks at the same time",
    ),
    "53400": (
        UnavailableError,
        "The server has reached the limit that its message names: raise that setting, for example temp_file_limit",
    ),
    "54": (BadRecordError, "A row is too large for the table or for one of its indexes"),
    "54001": (
        FatalError,
        "A trigger or function calls itself too often, or a value is nested too deeply: correct it, or raise max_stack_depth",
    ),
    "55P03": (
        UnavailableError,
        (
            "Another session or a prepared transaction holds a conflicting lock: see pg_stat_activity, pg_locks and "
            "pg_prepared_xacts"
        ),
    ),
    "57": (UnavailableError, "The server terminated the statement or the connection, or is starting or stopping"),
    "P0001": (BadRecordError, "One of the table's triggers or functions rejected a row"),
    "57014": (UnavailableError, "If no operator canceled the statement, raise timeout_ms"),
    "HY000": (
        ConfigurationError,
        (
            "The server rejected a table that the sink creates for itself. No row has caused this error: remove the cause that "
            "the message names. If an event trigger has raised the error (see pg_event_trigger), exempt the sink's role or the "
            "sink's own schema from it"
        ),
    ),
    "HY010": (
        UnavailableError,
        (
            "Another session is ending this prepared transaction. If this takes long, find the session in pg_stat_activity. If "
            "its wait_event is SyncRep, start the synchronous standby, or change synchronous_standby_names"
        ),
    ),
    "HYC00": (
        ConfigurationError,
        "With vote='prepared', no trigger may use NOTIFY, a temporary table or another server: drop or disable the trigger",
    ),
    "HYT00": (
        UnavailableError,
        (
            "If other sessions can still use the server, raise timeout_ms: this step needs more time, for example to "
            "publish a large batch in one transaction. Otherwise, check the server and the network"
        ),
    ),
}
#: If a connection attempt fails, the client reports no SQLSTATE, but only a message in the language of the server's
#: lc_messages.
_REFUSALS: Final = {
    "authentication failed|no password supplied|pg_hba.conf|permitted to log in|role .* does not exist": "28",
    "permission denied for database|certificate|server does not support SSL": "28",
    "database .* does not exist": "3D",
    "too many|connection slots": "53300",
    "the database system is": "57P03",
    "session is read-only|server is in hot standby": "25006",
}

_OF_AN_ATTEMPT: Final = "No part of this attempt is decided or visible"
_OF_A_START: Final = (
    "This start wrote no rows. A batch that was already decided stays decided, and the next start completes it"
)


#: The SQLSTATE of a RAISE that does not set one.
_RAISED: Final = "P0001"
#: The class of lost connections. It also applies if the client reports no SQLSTATE because the server is not reachable.
_UNREACHABLE: Final = "08"
#: Prefixes of SQLSTATEs whose cause may disappear by itself.
_PASSING: Final = (_UNREACHABLE, "25006", "40", "53300", "57P", "HY010")


class TookTooLongError(psycopg.OperationalError):
    """A step took longer than the sink's timeout. Nothing shows whether the server was busy or silent."""

    sqlstate = "HYT00"  # ODBC's code for an expired timeout, because PostgreSQL has none


class ReadOnlyError(psycopg.OperationalError):
    """The server is a standby. PostgreSQL then rejects BEGIN READ WRITE with the SQLSTATE of an unsupported feature."""

    sqlstate = "25006"


class NotPreparedError(psycopg.NotSupportedError):
    """The transaction has done something that PostgreSQL does not allow in a prepared transaction."""

    sqlstate = "HYC00"  # ODBC's code, because PostgreSQL uses 0A000 for everything that it does not support


class BusyVoteError(psycopg.OperationalError):
    """Another session is already ending the prepared transaction: usually the driver's own session, after a lost connection."""

    sqlstate = "HY010"  # ODBC's code for a call before another one has ended. PostgreSQL's code also has other meanings


class CreationForbiddenError(psycopg.ProgrammingError):
    """Code on the server has rejected one of the sink's own tables with RAISE."""

    sqlstate = "39P03"


class CreationFailedError(psycopg.ProgrammingError):
    """The server rejected one of the sink's own tables with an SQLSTATE that otherwise means a rejected row."""

    sqlstate = "HY000"  # ODBC's code for any other error, because PostgreSQL has none


class TableGoneError(psycopg.ProgrammingError):
    """The table no longer exists, or another table has its name."""

    sqlstate = "42P01"


class ColumnAlteredError(psycopg.ProgrammingError):
    """A column's type has changed since the rows were staged, so a cast might change their values."""

    sqlstate = "42804"


class ColumnRenamedError(psycopg.ProgrammingError):
    """A column was renamed since the rows were staged. Another column may have its old name."""

    sqlstate = "42703"


class ColumnDroppedError(psycopg.ProgrammingError):
    """A column was dropped since the rows were staged. A new column with its name may store something else."""

    sqlstate = "42S22"  # ODBC's code for a missing column, because PostgreSQL uses 42703 for a renamed column, too


class KeyIndexGoneError(psycopg.ProgrammingError):
    """The table no longer has a unique index on the key with which the batch was decided."""

    sqlstate = "42P10"


class RivalIndexError(psycopg.ProgrammingError):
    """The table has got another unique index on the key, and an upsert would use it, too."""

    sqlstate = "42S11"  # ODBC's code for an index that already exists, because PostgreSQL has none


class RowsLeftOutError(psycopg.DataError):
    """The table accepted fewer rows than the sink sent."""

    sqlstate = "P0001"


@contextlib.contextmanager
def creating_tables() -> Iterator[None]:
    """Run the statements that create the sink's own tables. These statements write no row, so no row can cause an error.

    Raises:
        CreationForbiddenError: code on the server has rejected a statement with RAISE. Only an event trigger runs code here.
        CreationFailedError: a statement failed with another SQLSTATE that otherwise means a rejected row.
    """
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate == _RAISED:
            raise CreationForbiddenError(text_of(error)) from error
        if _meaning(error)[0] is BadRecordError:
            raise CreationFailedError(f"{text_of(error)} (SQLSTATE {error.sqlstate})") from error
        raise


def explained(error: Exception, what: str, *, is_start: bool = False) -> TwoPhaseCommitError:
    """Build the error for a failure before the decision. The message begins with ``what``.

    Args:
        error: the failure.
        what: the sink and the step.
        is_start: whether a start has failed. If so, an earlier driver may have decided a batch that is not complete yet.
    """
    kind, advice = _meaning(error)
    return kind(f"{what}: {text_of(error)}. {advice}. {_OF_A_START if is_start else _OF_AN_ATTEMPT}")


def reason(error: Exception) -> str:
    """Explain why a decided batch is not published, and what to do."""
    return f"{text_of(error)}. {_meaning(error)[1]}"


def is_passing(error: Exception) -> bool:
    """Return whether the cause may disappear by itself.

    Such a cause is a deadlock, a lost connection, a vote that another session is ending, or a server restart or failover.
    """
    return (state_of(error) or _UNREACHABLE).startswith(_PASSING)


def state_of(error: Exception) -> str | None:
    """Return an error's SQLSTATE. If the server refused the connection, only the message may reveal the state."""
    state: str | None = getattr(error, "sqlstate", None)
    return state or next((state for words, state in _REFUSALS.items() if re.search(words, text_of(error))), None)


def _meaning(error: Exception) -> tuple[type[TwoPhaseCommitError], str]:
    state = state_of(error) or _UNREACHABLE
    return _MEANINGS[max((code for code in _MEANINGS if state.startswith(code)), key=len)]


def text_of(error: Exception) -> str:
    """Return the message's first line without a period. The message's other lines quote the statement."""
    diagnosed = getattr(getattr(error, "diag", None), "message_primary", None)
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    lines = (diagnosed or str(error) or type(error).__name__).strip().splitlines()
    details = [f"({' '.join(detail.rstrip('.').splitlines())})"] if detail else []
    return " ".join([lines[0], *details]).rstrip(".")
