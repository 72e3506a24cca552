"""Named points at which a test may kill, stop or fail this process. Off by default; then a point is one dict look-up.

``TWOPC_FAULTS="driver.decided=kill"`` in the environment, or :func:`arm` in the process. A point may carry the count of
the passage at which it acts: ``driver.decided@3=stop``. Actions: ``kill`` (SIGKILL self), ``stop`` (SIGSTOP self),
``raise``; in-process also any callable.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Every point, in the order of the protocol's steps.
POINTS: Final = (
    "driver.inspected",  # read-only checks passed, nobody fenced yet
    "driver.taken_over",  # former driver fenced, take-over record durable
    "driver.recovered",  # last decision finished, orphans swept
    "task.began",  # a task's transaction is open
    "task.written",  # its rows are handed to the client
    "task.flushed",  # its rows and marker are durable
    "task.prepared",  # the handle exists, the driver does not have it yet
    "driver.prepared",  # the driver has every handle
    "driver.confirmed",  # every handle confirmed, nothing decided
    "driver.deciding",  # the decision is written, its transaction still open
    "driver.decided",  # the decision is durable, nothing committed
    "driver.committing",  # some transactions have been committed
    "driver.committed",  # every transaction is proven
    "driver.swept",  # orphans of this batch are ended; next, foreachBatch returns
)


class InjectedFault(RuntimeError):  # noqa: N818 - not an error of the product
    """Raised by the action ``raise``."""


_armed: dict[str, tuple[int, Callable[[], None]]] = {}


def point(name: str) -> None:
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
    if name not in POINTS:
        raise ConfigurationError(f"no fault point is called {name!r}; there are: {', '.join(POINTS)}")
    _armed[name] = (passage, action)


def disarm() -> None:
    """Switch every point off."""
    _armed.clear()


def _fail() -> None:
    raise InjectedFault("an injected fault")


_ACTIONS: Final[dict[str, Callable[[], None]]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # To this thread: sent to the process, the main thread would take it, and this one go on for some milliseconds.
    "stop": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "raise": _fail,
}


def arm_from(spec: str) -> None:
    """Arm from ``point[@passage]=action[,…]``.

    Raises:
        ConfigurationError: an unknown point or action, or a passage that is no number.
    """
    for part in filter(None, spec.split(",")):
        name, _, action = part.partition("=")
        name, _, passage = name.partition("@")
        if action not in _ACTIONS:
            raise ConfigurationError(f"fault action {action!r} in {part!r}: use one of {', '.join(_ACTIONS)}")
        if not (passage or "1").isdecimal():
            raise ConfigurationError(f"fault passage {passage!r} in {part!r}: use a number")
        arm(name, _ACTIONS[action], passage=int(passage or 1))


arm_from(os.environ.get("TWOPC_FAULTS", ""))
