"""Connect to one database, and run one transaction at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from twopc.sinks.postgres.errors import NotPreparedError, ReadOnlyError, TookTooLongError, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sinks.postgres.options import Address

    Connection = psycopg.Connection[Any]

#: The settings for one transaction. These settings limit how long a statement waits for a lock, and make COMMIT return
#: only when the transaction is on disk. The sink's timeout replaces the role's timeout, which would end a slow publish
#: again after every restart. A driver's transaction holds the owner's lock, so if the driver's host dies, the server
#: must not keep that lock for hours. With ``array_nulls=off``, the server would read a null in an array as the text
#: ``NULL``. With ``quote_all_identifiers=on``, the server would print a default as ``"nextval"(…)``, but the sink recognizes
#: only ``nextval(…)``.
_SETTINGS: Final = """
SELECT pg_catalog.set_config('lock_timeout', %(lock)s, true), pg_catalog.set_config('statement_timeout', %(all)s, true),
  pg_catalog.set_config('synchronous_commit', CASE
    WHEN pg_catalog.current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
    ELSE pg_catalog.current_setting('synchronous_commit')
  END, true),
  pg_catalog.set_config('array_nulls', 'on', true),
  pg_catalog.set_config('quote_all_identifiers', 'off', true),
  CASE WHEN %(is_short)s THEN pg_catalog.set_config('idle_in_transaction_session_timeout', %(all)s, true) END,
  CASE WHEN %(is_short)s AND pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
    THEN pg_catalog.set_config('transaction_timeout', '0', true) END
"""


class Database:
    """Opens a connection when needed, and discards it after an error. Only one thread at a time may use this object.

    Args:
        address: the database's address.
        name: the sink name, which the server shows as the application name.
        timeout_ms: how long the connection attempt, or one transaction, may take.
    """

    def __init__(self, address: Address, name: str, *, timeout_ms: int) -> None:
        self._address = address
        self._name = name
        self._timeout_ms = timeout_ms
        self._connection: Connection | None = None
        self._is_late = False

    @contextlib.contextmanager
    def transaction(self, *, prepared_as: str = "") -> Iterator[Connection]:
        """Run the body in a transaction and commit it, all within the timeout.

        Args:
            prepared_as: if set, prepare the transaction under this name instead of committing it. Any session can commit
                the prepared transaction later.

        Raises:
            psycopg.Error: the server rejected a statement, or did not respond in time. After an error in the COMMIT,
            the outcome is unknown.
        """
        try:
            with self.watched():
                yield self.begin(is_short=True)
                if prepared_as:
                    self._prepare(prepared_as)
                else:
                    self.commit()
        except BaseException:
            self.close()  # also rolls back
            raise

    def begin(self, *, is_short: bool = False) -> Connection:
        """Begin a READ COMMITTED transaction whose COMMIT is durable. :meth:`close` rolls the transaction back.

        Args:
            is_short: whether the server also ends the transaction after the timeout, even between two statements.

        Raises:
            psycopg.Error: see :meth:`transaction`.
        """
        if self._connection is not None:
            # A pool, a firewall or a server restart may have closed the idle connection.
            with contextlib.suppress(psycopg.OperationalError):
                return self._begun(self._connection, is_short=is_short)
            self.close()
            self._require_time()
        self._connection = self._address.connect(self._name, timeout_ms=self._timeout_ms)
        self._connection.autocommit = True  # this class begins and ends transactions itself
        return self._begun(self._connection, is_short=is_short)

    @property
    def connection(self) -> Connection:
        """The connection with the transaction that :meth:`begin` started.

        Raises:
            psycopg.OperationalError: the connection and its transaction were lost.
        """
        if self._connection is None:
            raise psycopg.OperationalError("the connection was lost")
        return self._connection

    def commit(self) -> None:
        """Commit the transaction. When the call returns, the commit is durable.

        Raises:
            psycopg.Error: see :meth:`transaction`.
        """
        self._end(sql.SQL("COMMIT"), "COMMIT")

    def execute_alone(self, statement: sql.Composed) -> None:
        """Execute a statement outside a transaction, on the last transaction's connection.

        Raises:
            psycopg.Error: see :meth:`transaction`.
        """
        try:
            with self.watched():
                self.connection.execute(statement)
        except psycopg.OperationalError:
            self.close()
            raise

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Break the connection if the body takes longer than the timeout.

        Without this limit, a wait for a silent server would never end.

        Raises:
            TookTooLongError: the body took longer than the timeout.
        """
        self._is_late = False
        timer = threading.Timer(self._timeout_ms / 1000, self._break)
        timer.daemon = True
        timer.start()
        try:
            yield
        except psycopg.OperationalError as error:
            if self._is_late:
                raise TookTooLongError(f"no response within timeout_ms={self._timeout_ms}") from error
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _begun(self, connection: Connection, *, is_short: bool) -> Connection:
        self._require_time()
        try:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        except psycopg.errors.FeatureNotSupported as error:
            raise ReadOnlyError(text_of(error)) from error
        # The server's lock error says more than a broken connection, so the lock timeout is shorter.
        limits = {"lock": f"{max(1, self._timeout_ms // 2)}ms", "all": f"{self._timeout_ms}ms", "is_short": is_short}
        connection.execute(_SETTINGS, limits)
        return connection

    def _prepare(self, name: str) -> None:
        try:
            self._end(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(name)), "PREPARE TRANSACTION")
        except psycopg.errors.FeatureNotSupported as error:
            raise NotPreparedError(text_of(error)) from error

    def _end(self, statement: sql.SQL | sql.Composed, expected: str) -> None:
        done = self.connection.execute(statement).statusmessage
        if done != expected:  # the server returns ROLLBACK if a statement in the transaction has failed
            raise psycopg.InternalError(f"the server responded to {expected} with {done}")

    def _require_time(self) -> None:
        # A connection attempt cannot be interrupted. It has its own timeout, which may be longer.
        if self._is_late:
            raise psycopg.OperationalError("connecting took too long")

    def _break(self) -> None:
        self._is_late = True
        connection = self._connection
        if connection is None:
            return
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)  # shut down a duplicate, because libpq owns the descriptor
