"""Named points at which a test may kill, stop, delay or fail this process. Off by default; then a point is one look-up.

``TWOPC_FAULTS="driver.decided=kill"`` in the environment, or :func:`arm` in the process. A point may carry the count of
the passage at which it acts: ``driver.decided@3=stop``. Actions: ``kill`` (SIGKILL self), ``stop`` (SIGSTOP self),
``raise`` (an error that nobody foresaw), ``drop`` (the answer that the step waited for is lost: an error that may be
retried), ``delay:MS``; in-process also any callable.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Every point that each run with rows passes, in the order of the protocol's steps.
POINTS: Final = (
    "driver.inspected",  # read-only checks passed, nobody fenced yet
    "driver.fenced",  # former driver fenced, no record of it yet
    "driver.acquired",  # former driver fenced, take-over record durable
    "driver.recovered",  # last decision finished, orphans swept
    "task.began",  # a task's transaction is open
    "task.written",  # its rows are handed to the client
    "task.flushed",  # its rows and marker are durable
    "task.prepared",  # the handle exists, the driver does not have it yet
    "task.handed_over",  # the handle is leaving: from here on the task ends nothing
    "driver.prepared",  # the driver has every handle
    "driver.confirmed",  # every handle confirmed, nothing decided
    "driver.deciding",  # the decision is written, its transaction still open
    "driver.decided",  # the decision is durable, nothing committed
    "driver.committing",  # some transactions have been committed
    "driver.committed",  # every transaction is proven
    "driver.swept",  # orphans of this batch are ended; next, foreachBatch returns
)
#: Those that only some runs pass.
OCCASIONAL: Final = (
    "task.staged",  # the task's rows are kept (``staging=True``), its report has not left
    "driver.bound",  # the checkpoint is bound to its sinks for the first time, nothing is decided
    "driver.sweeping",  # orphans are found, none is ended
    "driver.barred",  # a barrier is written behind the markers that are looked for, not read up to
    "driver.truncating",  # a truncation of the decision log is recorded, nothing is deleted
)


class InjectedFault(RuntimeError):  # noqa: N818 - not an error of the product
    """Raised by the action ``raise``."""


class InjectedLoss(RetriableError):  # noqa: N818 - the same
    """Raised by the action ``drop``."""


_armed: dict[str, tuple[int, Callable[[], None]]] = {}


def crash_point(name: str) -> None:
    """Pass a fault point."""
    if not _armed:
        return
    entry = _armed.get(name)
    if entry is None:
        return
    remaining, action = entry
    if remaining > 1:
        _armed[name] = (remaining - 1, action)
        return
    del _armed[name]
    action()


def is_armed(name: str) -> bool:
    """Whether something will happen at a point: for steps that have no middle unless a test asks for one."""
    return name in _armed


def arm(name: str, action: Callable[[], None], *, passage: int = 1) -> None:
    """Make ``action`` happen, once, at the given passage of a point.

    Raises:
        ConfigurationError: there is no such point.
    """
    if name not in (*POINTS, *OCCASIONAL):
        raise ConfigurationError(f"no fault point is called {name!r}; there are: {', '.join((*POINTS, *OCCASIONAL))}")
    _armed[name] = (passage, action)


def disarm() -> None:
    """Switch every point off."""
    _armed.clear()


def _fail() -> None:
    raise InjectedFault("an injected fault")


def _drop() -> None:
    raise InjectedLoss("an injected loss of an answer")


_ACTIONS: Final[dict[str, Callable[[], None]]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # To this thread: sent to the process, the main thread would take it, and this one go on for some milliseconds.
    "stop": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "raise": _fail,
    "drop": _drop,
}
_DELAY: Final = re.compile(r"delay:(\d+)")


def _action_of(text: str) -> Callable[[], None] | None:
    delay = _DELAY.fullmatch(text)
    if delay is None:
        return _ACTIONS.get(text)
    seconds = int(delay[1]) / 1000
    return lambda: time.sleep(seconds)


def arm_from(spec: str) -> None:
    """Arm from ``point[@passage]=action[,…]``.

    Raises:
        ConfigurationError: an unknown point or action, or a passage that is no number.
    """
    for part in filter(None, spec.split(",")):
        name, _, action = part.partition("=")
        name, _, passage = name.partition("@")
        act = _action_of(action)
        if act is None:
            raise ConfigurationError(f"fault action {action!r} in {part!r}: use one of {', '.join(_ACTIONS)}, delay:MS")
        if not (passage or "1").isdecimal():
            raise ConfigurationError(f"fault passage {passage!r} in {part!r}: use a number")
        arm(name, act, passage=int(passage or 1))


arm_from(os.environ.get("TWOPC_FAULTS", ""))
