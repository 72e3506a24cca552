"""Lend a shared server to a test that harms it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from twopc.integration.services.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ServerT = TypeVar("ServerT", bound=LocalServer)


def lent(server: ServerT | None, choice: str) -> Iterator[ServerT]:
    """Lend a server to a test that kills or pauses it, and restore the server afterward.

    Args:
        server: the server; None if this process does not own it, in which case the test is skipped.
        choice: the environment variable and its value, as `NAME=value`, for the reason of the skip.
    """
    if server is None:
        pytest.skip(f"this test needs a server that it may kill and pause, not {choice}")
    yield server
    if server.is_running:
        server.resume()
    else:
        server.start()
