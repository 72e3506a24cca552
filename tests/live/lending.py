"""Lends a server that all tests share to a test that harms it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from twopc.integration.services.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ServerT = TypeVar("ServerT", bound=LocalServer)


def lent(server: ServerT | None, choice: str) -> Iterator[ServerT]:
    """Lend a server to a test that kills or pauses it; afterwards the server is running again.

    Args:
        server: None if this process does not own it; the test is skipped then.
        choice: the environment variable and its value, as `NAME=value`, for the reason of the skip.
    """
    if server is None:
        pytest.skip(f"needs a server that it may kill and pause, not {choice}")
    yield server
    if server.is_running:
        server.resume()
    else:
        server.start()
