"""Forward librdkafka's log, and keep the last lines to explain errors."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

#: Receives the librdkafka log lines. Without this logger, a discarded producer that outlives its broker would write to stderr
#: forever.
client_logger = logging.getLogger("twopc.librdkafka")

_KEPT: Final = 3


class ClientLog:
    """Receives one client's log lines. confluent-kafka uses this object as its logger."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=_KEPT)

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a line."""
        client_logger.log(level, message, *args)
        line = message % args if args else message
        if level >= logging.WARNING and line not in self._last:
            self._last.append(line)

    def said(self) -> str:
        """Return the last warnings and errors as a suffix for an error message.

        The suffix is empty if the client has logged no warning or error.
        """
        return f". The client's log: {' | '.join(self._last)}" if self._last else ""
