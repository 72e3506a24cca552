"""The webhook, against a real HTTP server on this machine that responds, refuses, or is silent."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from tenacity.wait import wait_none

from twopc.errors import ConfigurationError
from twopc.integration.alerts import Alert, Webhook
from twopc.integration.alerts import channels as channels_module
from twopc.integration.alerts.channels import deliver

if TYPE_CHECKING:
    from collections.abc import Iterator

ALERT = Alert(rule="broken", status="firing", query="orders", at_ms=2, since_ms=1, text="why", runbook="docs/x.md#y")


class Endpoint:
    """Answers with these statuses, one after another, then with 204."""

    location = ""
    gets = 0

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            endpoint.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            endpoint.headers.append(dict(self.headers))
            self.send_response(endpoint.answers.pop(0) if endpoint.answers else 204)
            if endpoint.location:
                self.send_header("Location", endpoint.location)
            self.end_headers()

        def do_GET(self) -> None:
            endpoint.gets += 1
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/secret"
        finally:
            server.shutdown()
            thread.join()


def _webhook(url: str, **changed: Any) -> Webhook:
    return Webhook(url, **{"timeout_s": 30.0, "backoff": wait_none(), **changed})


def test_an_alert_is_posted_as_json_with_the_headers() -> None:
    endpoint = Endpoint()
    with serving(endpoint) as url:
        _webhook(url, headers={"Authorization": "Bearer x"})(ALERT)
    assert endpoint.bodies == [
        {
            "format": "twopc-alert/1",
            "rule": "broken",
            "status": "firing",
            "query": "orders",
            "at_ms": 2,
            "since_ms": 1,
            "text": "why",
            "runbook": "docs/x.md#y",
        }
    ]
    assert endpoint.headers[0]["Content-Type"] == "application/json"
    assert endpoint.headers[0]["Authorization"] == "Bearer x"


def test_a_request_to_a_failing_server_is_repeated() -> None:
    endpoint = Endpoint(500, 429)
    with serving(endpoint) as url:
        _webhook(url)(ALERT)
    assert len(endpoint.bodies) == 3


def test_an_alert_is_dropped_after_its_attempts_and_the_secret_path_is_not_shown() -> None:
    endpoint = Endpoint(500, 502, 503, 500)
    with serving(endpoint) as url, pytest.raises(OSError, match=r"^webhook 127\.0\.0\.1 responded with 503") as found:
        _webhook(url)(ALERT)
    assert len(endpoint.bodies) == 3
    assert "secret" not in str(found.value)


def test_a_refusal_is_not_retried() -> None:
    endpoint = Endpoint(404)
    with serving(endpoint) as url, pytest.raises(OSError, match="responded with 404"):
        _webhook(url)(ALERT)
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_counts_as_a_refusal(status: int) -> None:
    """A redirect may lead anywhere, and urllib follows it with a GET without the alert."""
    elsewhere, endpoint = Endpoint(), Endpoint(status)
    with serving(elsewhere) as other:
        endpoint.location = other
        with serving(endpoint) as url, pytest.raises(OSError, match=f"responded with {status}"):
            _webhook(url, headers={"Authorization": "Bearer x"})(ALERT)
    assert (len(endpoint.bodies), elsewhere.gets) == (1, 0)


def test_a_server_that_accepts_the_request_and_does_not_respond_is_abandoned_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts the connection, and no server responds
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(OSError, match=r"^webhook 127\.0\.0\.1: .*timed out"):
            _webhook(url, timeout_s=0.1)(ALERT)


def test_a_server_that_does_not_speak_http_and_a_missing_server_raise_the_same_kind_of_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            for _ in range(2):
                connection, _address = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"not http\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match=r"^webhook 127\.0\.0\.1: "):
            _webhook(f"http://127.0.0.1:{port}/", attempts=2)(ALERT)
        thread.join()
    with pytest.raises(OSError, match=r"^webhook 127\.0\.0\.1: .*refused"):
        _webhook(f"http://127.0.0.1:{port}/")(ALERT)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/T0/canary # team",
        "https://hooks.example/T0/canary\n",
        " https://hooks.example/T0/canary",
        "https://hooks.example/T0/canaryé",
        "https://ann:canary@hooks.example/",
        "https://canary@hooks.example/",
        "https://hooks.example:canary/",
        "https://[canary/",
        "ftp://hooks.example/canary",
        "https:///canary",
    ],
)
def test_a_url_that_the_client_cannot_use_is_refused_and_not_shown(url: str) -> None:
    """The client quotes such a URL in its error, and the log would show it with each alert."""
    with pytest.raises(ConfigurationError, match=r"^webhook\.url must be") as refused:
        Webhook(url)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("Authorization", "Bearer canary\n", r"header\.Authorization: the value contains a line break.*text\.strip"),
        ("Authorization", "Bearer can\rary", r"header\.Authorization: the value contains a line break"),
        ("Authorization", " canary", r"header\.Authorization: the value begins or ends with a blank"),
        ("Authorization", "canary…", r"header\.Authorization: the value contains a character outside Latin-1"),
        ("Authorization", 5, r"header\.Authorization: the value is not a string"),
        ("Authorization: Bearer canary", "=", r"header\.<name>: the name of a header"),
        ("Author\nization", "canary", r"header\.<name>: the name of a header"),
        ("", "canary", r"header\.<name>: the name of a header"),
    ],
)
def test_a_header_that_the_client_cannot_send_is_refused_and_not_shown(name: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as refused:
        Webhook("https://hooks.example/x", headers={name: value})
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("error", [http.client.InvalidURL("/canary"), ValueError("Invalid header value b'canary'")])
def test_the_clients_own_words_about_a_request_are_not_logged(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(channels_module._OPENER, "open", refuse)
    deliver(_webhook("https://hooks.example/x"), ALERT)
    assert f"not delivered: webhook hooks.example: {type(error).__name__} (" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("url", "headers", "warns"),
    [
        ("http://hooks.example/x", {"Authorization": "Bearer canary"}, True),
        ("http://10.0.0.1/x", {"Authorization": "Bearer canary"}, True),
        ("http://hooks.example/x", {}, False),
        ("https://hooks.example/x", {"Authorization": "Bearer canary"}, False),
        ("http://localhost:1/x", {"Authorization": "Bearer canary"}, False),
        ("http://[::1]:1/x", {"Authorization": "Bearer canary"}, False),
    ],
)
def test_headers_that_leave_the_host_without_encryption_cause_a_warning(
    url: str, headers: dict[str, str], *, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    Webhook(url, headers=headers)
    assert ("others on the network can read the headers" in caplog.text) is warns
    assert "canary" not in caplog.text


def test_an_alert_that_cannot_be_delivered_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "twopc.alerts")
    with serving(Endpoint(404)) as url:
        deliver(_webhook(url), ALERT)
    (record,) = caplog.records
    assert "not delivered: webhook 127.0.0.1 responded with 404" in record.getMessage()
    assert "firing broken, query orders: why" in record.getMessage()
