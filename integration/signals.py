"""Let a command clean up and exit after any signal."""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

#: Signals that arrive within this time of each other have the same cause. A shell may send SIGHUP twice.
_SAME_S: Final = 5.0


@contextlib.contextmanager
def ended_by_signals(*own: type[Exception]) -> Iterator[None]:
    """On SIGTERM, and when the terminal closes, raise an exception, as Ctrl-C does, so that all cleanup code runs.

    Python may call a signal handler inside a C extension. confluent-kafka's extension replaces the handler's exception, so
    Ctrl-C becomes a TypeError or a SystemError. So after a signal, an unknown exception is treated as the signal's exception. A
    signal that the process ignores, as after ``nohup``, stays ignored.

    Args:
        own: the types of the command's own errors. No C extension raises these errors, so they always reach the caller. The
            protocol's errors also reach the caller, and so does an OSError that the signal does not explain.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python calls signal handlers in the main thread only
        return
    received: dict[int, float] = {}
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: found for number in numbers if (found := signal.getsignal(number)) not in {signal.SIG_IGN, None}}
    for number, found in before.items():
        signal.signal(number, _raising(found, received))
    try:
        yield
    except Exception as error:
        # Such an error may say what could not be cleaned up.
        is_own = isinstance(error, (TwoPhaseCommitError, OSError, *own))
        if not received or (is_own and not _is_of_the_signal(error, received)):
            raise
        first = next(iter(received))
        if first == signal.SIGINT:
            raise KeyboardInterrupt from error
        raise SystemExit(128 + first) from error
    finally:
        for number, found in before.items():
            signal.signal(number, found)


def _is_of_the_signal(error: Exception, received: Collection[int]) -> bool:
    """Whether the error has the same cause as the signal: a closed terminal, or the end of a connected process."""
    is_of_a_closed_terminal = signal.SIGHUP in received and isinstance(error, OSError) and error.errno == errno.EIO
    return is_of_a_closed_terminal or isinstance(error, ConnectionError)


def _raising(former: Any, received: dict[int, float]) -> Callable[[int, FrameType | None], None]:
    """Return a handler. ``received`` maps each signal to the time when it last raised an exception."""

    def handle(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number != signal.SIGINT and any(now - at < _SAME_S for one, at in received.items() if one != signal.SIGINT):
            return  # the cleanup is running
        received[number] = now
        if callable(former):
            former(number, frame)
        sys.exit(128 + number)

    return handle
