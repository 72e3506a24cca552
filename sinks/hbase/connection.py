"""Fix the connections in ``hbase-driver``, so that each call either gets its own response or fails.

The library handles the handshake, headers and responses, and calls masters and ``hbase:meta``. This module fixes the
bugs in the library's ``Connection`` (1.1.1, ``hbasedriver/Connection.py``).
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.proto import serialize_length_prefixed

from twopc.sinks.hbase.errors import RemoteError
from twopc.sinks.hbase.messages import Connection, MasterConnection, MetaRsConnection, RemoteException

if TYPE_CHECKING:
    from twopc.sinks.hbase.messages import Message

_LENGTH: Final = struct.Struct(">IB")


class _Sound(Connection):
    """A mixin that fixes one of the library's classes. In the list of base classes, put the mixin before that class.

    Only one thread may use a connection. The connection opens on first use. ``timeout_s`` limits the wait for the
    connection, and for each part of a response.
    """

    def __init__(self, host: str, port: int, *, user: str, timeout_s: float) -> None:
        super().__init__()  # type: ignore[call-arg, no-untyped-call] # the library's class itself passes the service name
        self.host, self.port, self._timeout_s = host, port, timeout_s
        # The library sends this attribute in the handshake, but sets it from `connect`'s argument only afterward.
        self.user = user
        self._calls = 0

    def send_request(self, req: Message, method_name: str, need_response: bool = True) -> Any:  # noqa: FBT001, FBT002
        """Call a method.

        Raises:
            RemoteError: the server rejected the call.
            ConnectionError: no response came. The server may have executed the call.
        """
        del need_response  # the server always responds, and the next call would mistake an unread response for its own
        try:
            return self._call(req, method_name)
        except RemoteException as error:
            raise RemoteError(error.msg, error.stack_trace) from None
        except BaseException as error:
            # A late response must not reach the next call.
            self.close()
            if not isinstance(error, Exception):
                raise
            # The library reports a lost connection as a bare Exception, whose context is the socket's error.
            reason = error.__context__ if type(error) is Exception else error
            raise ConnectionError(f"{self.host}:{self.port}: {str(reason or '') or error}") from error

    def close(self) -> None:
        """Close the connection. The next call opens a new connection. The library does not have this method."""
        if self.conn is not None:
            with contextlib.suppress(OSError):
                self.conn.close()
        self.conn = None

    def _call(self, req: Message, method: str) -> Any:
        connection = self._connected()
        # This code replaces the library's `send_request`, which encodes a message's length as UTF-8. From 128 bytes on,
        # that length is wrong. Over 128 kB, it is negative in half of all cases, and the server rejects it. The library
        # also uses `send`, which may send only part of a message, and it draws call ids from only 999 numbers.
        self._calls += 1
        header = self._get_call_header_bytes(method, self._calls)
        body = io.BytesIO()
        serialize_length_prefixed(req, body)
        connection.sendall(_LENGTH.pack(1 + len(header) + body.tell(), len(header)) + header + body.getbuffer())
        return self._receive_rpc(self._calls, req, method)

    def _connected(self) -> Any:
        if self.conn is None:
            self.connect(self.host, self.port, self._timeout_s, self.user)  # type: ignore[no-untyped-call]
            made: Any = self.conn
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.conn


class RegionServer(_Sound, MetaRsConnection):
    """A connection to a region server. ``locate_region`` works only if the server serves ``hbase:meta``."""


class Master(_Sound, MasterConnection):
    """A connection to a master, with the library's table methods."""
