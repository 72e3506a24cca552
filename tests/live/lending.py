"""How a server that all tests of a run share is given to one that harms it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from integration.services.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ServerT = TypeVar("ServerT", bound=LocalServer)


def lent(server: ServerT | None, choice: str) -> Iterator[ServerT]:
    """Give a server to a test that kills or pauses it; it runs again for the tests that follow.

    Args:
        server: None where this process does not own it: the test is skipped.
        choice: what was chosen instead, as `NAME=value` of the environment variable.
    """
    if server is None:
        pytest.skip(f"needs a server it may kill and pause: {choice}, not 'local'")
    yield server
    if server.is_running:
        server.resume()
    else:
        server.start()
