"""An HTTP proxy in front of one local server. A subclass decides what happens to each request."""

from __future__ import annotations

import http.client
import threading
from abc import abstractmethod
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from twopc.integration.services.ports import HOST
from twopc.integration.services.server import Startable

_TIMEOUT_S = 60
#: The headers that a proxy must not pass on.
_OF_A_CONNECTION = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive", "expect"})


@dataclass(frozen=True)
class HttpAnswer:
    """A server's response. ``length`` is the header Content-Length, which the response to HEAD has although it has no content."""

    status: int
    headers: tuple[tuple[str, str], ...]
    content: bytes
    length: str = "0"


class HttpProxy(Startable):
    """Listens in place of a server on this machine.

    Args:
        port: the server's.
    """

    def __init__(self, port: int) -> None:
        self.server_port = port

    @abstractmethod
    def serve(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        """Serve one request, in the thread of its connection."""

    def start(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                proxy.serve(self, self.rfile.read(int(self.headers.get("Content-Length", "0"))))

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._http = ThreadingHTTPServer((HOST, 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._http.server_address[1]}"

    def passed_on(self, request: BaseHTTPRequestHandler, content: bytes) -> HttpAnswer:
        """Send a request to the server, on a new connection, and return its response."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_A_CONNECTION}
        connection = http.client.HTTPConnection(HOST, self.server_port, timeout=_TIMEOUT_S)
        try:
            connection.request(request.command, request.path, content or None, headers)
            answer = connection.getresponse()
            kept = tuple((name, value) for name, value in answer.getheaders() if name.lower() not in _OF_A_CONNECTION)
            return HttpAnswer(answer.status, kept, answer.read(), answer.getheader("Content-Length", "0"))
        finally:
            connection.close()


def send(answer: HttpAnswer, request: BaseHTTPRequestHandler) -> None:
    """Answer a request."""
    is_head = request.command == "HEAD"
    request.send_response_only(answer.status)
    for name, value in answer.headers:
        request.send_header(name, value)
    request.send_header("Content-Length", answer.length if is_head else str(len(answer.content)))
    request.end_headers()
    if not is_head:
        request.wfile.write(answer.content)
