"""Replace secrets with canaries, and search for them in everything that a run leaves behind."""

from __future__ import annotations

import base64
import io
import logging
import urllib.parse
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.security_support import CANARY_PASSWORD, CANARY_USER, KEY_PASSWORD
from tests.token_endpoint import unsecured_token

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = unsecured_token(CANARY_USER, 6 * 3_600)  # valid for longer than `make whole` runs
#: The secrets, and the middle part of the token, which is secret in a signed token.
CANARIES = (CANARY_PASSWORD, KEY_PASSWORD, TOKEN[0].split(".")[1][:40])


def oauth_cb(_config: str | None) -> tuple[str, float]:
    return TOKEN


def forms(canary: str) -> Iterator[str]:
    """The forms in which the canary may appear: plain, URL-encoded, hexadecimal, or base64 at each of three alignments."""
    yield from (canary, urllib.parse.quote_plus(canary), canary.encode().hex())
    for place in range(3):
        text = base64.b64encode(b"\0" * place + canary.encode()).decode()
        yield text[(0, 2, 3)[place] + 2 : -4]


def leaks(text: str | bytes) -> list[str]:
    shown = text if isinstance(text, str) else text.decode(errors="replace")
    return [
        f"{shown[max(0, at - 300) : at + 60]!r}"
        for canary in CANARIES
        for form in forms(canary)
        if (at := shown.find(form)) >= 0
    ]


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that is logged in this process, with tracebacks."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in [None, *logging.root.manager.loggerDict]}
    for name in levels:
        logging.getLogger(name).setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield text
    root.removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


WAYS: dict[str, dict[str, Any]] = {
    mechanism: {
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.username": CANARY_USER,
        "kafka.sasl.password": CANARY_PASSWORD,
    }
    for mechanism in ("PLAIN", "SCRAM-SHA-256")
}
WAYS["OAUTHBEARER"] = {"kafka.sasl.mechanism": "OAUTHBEARER", "kafka.oauth_cb": oauth_cb}
