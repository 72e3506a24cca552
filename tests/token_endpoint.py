"""An OAuth token endpoint on this host. Its tokens have no signature, which Kafka's own validator for tests accepts."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def unsecured_token(principal: str, life_s: float) -> tuple[str, float]:
    """A token as Kafka's ``OAuthBearerUnsecuredValidatorCallbackHandler`` accepts it, and when it expires."""
    now = time.time()
    claims = {"sub": principal, "iat": now, "exp": now + life_s}
    return f"{encoded({'alg': 'none'})}.{encoded(claims)}.", now + life_s


class TokenEndpoint:
    """Grants tokens for one client's credentials.

    Attributes:
        answer: status and body to respond with instead of a token.
        forms: the forms that it has received.
    """

    def __init__(self, client_id: str, secret: str, *, life_s: float) -> None:
        user = ":".join(urllib.parse.quote_plus(part) for part in (client_id, secret))
        expected = f"Basic {base64.b64encode(user.encode()).decode()}"
        endpoint = self
        self.answer: tuple[int, bytes] | None = None
        self.forms: list[dict[str, list[str]]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.forms.append(urllib.parse.parse_qs(form))
                if endpoint.answer is not None:
                    status, body = endpoint.answer
                elif self.headers["Authorization"] != expected:
                    status, body = 401, b'{"error": "invalid_client"}'
                else:
                    token, _ = unsecured_token(client_id, life_s)
                    status, body = 200, json.dumps({"access_token": token, "expires_in": life_s}).encode()
                self.send_response(status)
                self.send_header("Location", endpoint.url)  # matters only for a redirect
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/token"

    @property
    def requests(self) -> int:
        return len(self.forms)

    def serve(self) -> Iterator[TokenEndpoint]:
        """For a fixture: serve until the tests are over."""
        self._thread.start()
        yield self
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
