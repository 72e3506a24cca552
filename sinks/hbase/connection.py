"""Repair the connections of ``hbase-driver``, so that a call gets its own answer or counts as unanswered.

The library provides handshake, headers, answers and the calls to masters and ``hbase:meta``. This module fixes the faults of its
``Connection`` (1.1.1, ``hbasedriver/Connection.py``).
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
    """A mixin with the repairs, to be listed before one of the library's classes. Used by one thread. Connects on first use.

    ``timeout_s`` is the limit for connecting, and for each piece of an answer.
    """

    def __init__(self, host: str, port: int, *, user: str, timeout_s: float) -> None:
        super().__init__()  # type: ignore[call-arg, no-untyped-call] # the class behind this one names its service
        self.host, self.port, self._timeout_s = host, port, timeout_s
        # The library sends this attribute in the handshake, and sets it from `connect`'s argument only afterwards.
        self.user = user
        self._calls = 0

    def send_request(self, req: Message, method_name: str, need_response: bool = True) -> Any:  # noqa: FBT001, FBT002
        """Call a method.

        Raises:
            RemoteError: the server rejected the call.
            ConnectionError: there was no answer; the call may have happened.
        """
        del need_response  # an answer always comes; if it stayed unread, the next call would take it for its own
        try:
            return self._call(req, method_name)
        except RemoteException as error:
            raise RemoteError(error.msg, error.stack_trace) from None
        except BaseException as error:
            # A late answer must not reach the next call.
            self.close()
            if not isinstance(error, Exception):
                raise
            # The library reports a lost connection as a bare Exception, with the socket's error as its context.
            reason = error.__context__ if type(error) is Exception else error
            raise ConnectionError(f"{self.host}:{self.port}: {str(reason or '') or error}") from error

    def close(self) -> None:
        """Close the connection; the next call opens another. The library lacks this method."""
        if self.conn is not None:
            with contextlib.suppress(OSError):
                self.conn.close()
        self.conn = None

    def _call(self, req: Message, method: str) -> Any:
        connection = self._connected()
        # This replaces the library's `send_request`, which encodes a message's length as UTF-8. From 128 bytes on, the length
        # is wrong, and over 128 kB it is negative in half of all cases, which the server rejects. The library also uses
        # `send`, which may send only a part, and draws call ids from 999 numbers.
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
    """A region server; ``locate_region`` works on the one that serves ``hbase:meta``."""


class Master(_Sound, MasterConnection):
    """A master, with the library's table methods."""
