"""Let a command clean up and exit after any signal."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """On SIGTERM, and when the terminal closes, raise an exception, as Ctrl-C does, so that all cleanup code runs."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda received, _: sys.exit(128 + received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
