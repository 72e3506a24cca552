"""One connection to one HBase server: a call, its answer, nothing repeated.

HBase's RPC (``hbase-protocol-shaded``, ``rpc/RPC.proto``): a preamble, a header that names the service, then frames of a
length, a length-prefixed header and a length-prefixed message. ``SIMPLE`` authentication: the user's name is believed.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
from typing import Final

from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from sinks.hbase_messages import Message, rpc

_SIMPLE: Final = 80
_PREAMBLE: Final = b"HBas" + bytes([0, _SIMPLE])
_LENGTH: Final = struct.Struct(">I")


class RemoteError(Exception):
    """A server's answer that is an error.

    Attributes:
        kind: the Java class, without its package.
    """

    def __init__(self, kind: str, text: str) -> None:
        # What follows the first line is the server's stack trace.
        super().__init__(text.partition("\n")[0] or kind)
        self.kind = kind.rpartition(".")[2]


class Channel:
    """A connection for one service. Used by one thread; after an error other than :class:`RemoteError` it is closed.

    Args:
        host: of the server.
        port: of the server.
        service: such as ``ClientService``.
        user: who this is.
        timeout_s: how long connecting, or one answer, may take, in seconds.

    Raises:
        OSError: nobody answers there.
    """

    def __init__(self, host: str, port: int, service: str, *, user: str, timeout_s: float) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")
        self._calls = 0
        header = rpc.ConnectionHeader(service_name=service)
        header.user_info.effective_user = user
        data = header.SerializeToString()
        self._socket.sendall(_PREAMBLE + _LENGTH.pack(len(data)) + data)

    def call(self, method: str, request: Message, response: type[Message]) -> Message:
        """Call a method.

        Raises:
            RemoteError: the server says no.
            OSError: there was no answer; the call may have happened.
        """
        self._calls += 1
        body = io.BytesIO()
        header = rpc.RequestHeader(call_id=self._calls, method_name=method, request_param=True)
        serialize_length_prefixed(header, body)
        serialize_length_prefixed(request, body)
        try:
            self._socket.sendall(_LENGTH.pack(body.tell()) + body.getbuffer())
            frame = io.BytesIO(self._read(*_LENGTH.unpack(self._read(_LENGTH.size))))
        except OSError:
            self.close()
            raise
        answered = parse_length_prefixed(rpc.ResponseHeader, frame)
        if answered.HasField("exception"):
            raise RemoteError(answered.exception.exception_class_name, answered.exception.stack_trace)
        if answered.call_id != self._calls:
            self.close()
            raise ConnectionError(f"call {self._calls} was answered as {answered.call_id}")
        return parse_length_prefixed(response, frame)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._reader.close()
            self._socket.close()

    def _read(self, count: int) -> bytes:
        data = self._reader.read(count)
        if len(data) < count:
            raise ConnectionError("the server has hung up")
        return data
