"""A TCP proxy in front of PostgreSQL that loses one response: for example, the server commits, but the client never learns it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

_HOST: Final = "127.0.0.1"
#: The COMMIT statement, as libpq sends it.
_COMMIT: Final = b"Q\0\0\0\x0bCOMMIT\0"


class LossyProxy:
    """Forwards connections. See the module.

    Attributes:
        dsn: leads through the proxy.
        lost: how many responses were lost.
        on_loss: called when a response is lost, before the client's connection breaks.
    """

    def __init__(self, dsn: str) -> None:
        found: dict[str, Any] = conninfo_to_dict(dsn)
        self._server = (str(found["host"]), int(found["port"]))
        self._listener = socket.create_server((_HOST, 0))
        self._sockets = [self._listener]
        self._wanted: bytes | None = None
        self._ending = _COMMIT
        self.dsn = make_conninfo(dsn, host=_HOST, port=self._listener.getsockname()[1], gssencmode="disable")
        self.lost = 0
        self.on_loss: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in self._sockets:
            _close(opened)

    def lose_commit_of(self, statement: str) -> None:
        """Lose the response to the next COMMIT of a transaction in which a statement with this text was sent."""
        self._ending, self._wanted = _COMMIT, statement.encode()

    def lose_answer_to(self, statement: str) -> None:
        """Lose the response to the next statement with this text."""
        self._ending = self._wanted = statement.encode()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                try:
                    server = socket.create_connection(self._server)
                except ConnectionRefusedError:  # the server is down, and the closed connection tells the client
                    _close(client)
                    continue
                self._sockets.append(server)
                _Link(self, client, server).start()


class _Link:
    def __init__(self, proxy: LossyProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._sent = b""
        self._is_lost = False

    def start(self) -> None:
        for forward in (self._requests, self._answers):
            threading.Thread(target=forward, daemon=True).start()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(65_536):
                self._sent = data if b"BEGIN" in data else self._sent + data
                if (
                    self._proxy._ending in data
                    and self._proxy._wanted is not None
                    and self._proxy._wanted in self._sent
                ):
                    self._proxy._wanted, self._is_lost = None, True
                self._server.sendall(data)
        _close(self._server)

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65_536):
                if self._is_lost:
                    self._proxy.lost += 1
                    self._proxy.on_loss()
                    break
                self._client.sendall(data)
        _close(self._client)


def _close(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
    opened.close()
