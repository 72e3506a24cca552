"""Connections to one database, and one transaction at a time on them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sinks.postgres.options import Address

    Connection = psycopg.Connection[Any]

#: For one transaction: how long a statement waits for a lock, and that COMMIT returns when it is on the disk, not before.
_SETTINGS: Final = """
SELECT set_config('lock_timeout', %s, true), set_config('synchronous_commit', CASE
  WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit')
END, true)
"""


class Database:
    """A connection that is opened when it is needed and thrown away after an error. Used by one thread at a time.

    Args:
        address: where it is.
        name: of the sink, for the server's own views.
        timeout_ms: how long connecting, or one transaction, may take.
    """

    def __init__(self, address: Address, name: str, *, timeout_ms: int) -> None:
        self._address = address
        self._name = name
        self._timeout_ms = timeout_ms
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def transaction(self, *, lock_timeout_s: float | None = None) -> Iterator[Connection]:
        """A transaction that commits if the body ends, all within the timeout.

        Args:
            lock_timeout_s: see :meth:`begin`.

        Raises:
            psycopg.Error: the server rejected a statement, or did not answer in time. The outcome of the COMMIT is unknown.
        """
        try:
            with self.watched():
                connection = self.begin(lock_timeout_s=lock_timeout_s)
                yield connection
                connection.execute("COMMIT")
        except BaseException:
            self.close()  # which rolls back
            raise

    def begin(self, *, lock_timeout_s: float | None = None) -> Connection:
        """Begin a READ COMMITTED transaction whose COMMIT is durable. :meth:`close` rolls it back.

        Args:
            lock_timeout_s: how long a statement may wait for a lock. By default, half of the timeout, so that the server's
                own error comes first.

        Raises:
            psycopg.Error: see :meth:`transaction`.
        """
        connection = self.connect()
        lock_timeout_s = self._timeout_ms / 2000 if lock_timeout_s is None else lock_timeout_s
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        connection.execute(_SETTINGS, [f"{max(1, round(lock_timeout_s * 1000))}ms"])
        return connection

    def connect(self) -> Connection:
        """The connection, which is opened if there is none."""
        if self._connection is None or self._connection.closed:
            self._connection = self._address.connect(self._name, timeout_ms=self._timeout_ms)
            self._connection.autocommit = True  # this class begins and ends transactions itself
        return self._connection

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Break the connection if the body takes longer than the timeout: nothing else ends the wait for a silent server."""
        timer = threading.Timer(self._timeout_ms / 1000, self._break)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _break(self) -> None:
        connection = self._connection
        if connection is None:
            return  # it is still connecting, which has its own timeout
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)  # of a duplicate, because libpq owns the descriptor itself
