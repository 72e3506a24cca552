"""Define the actions of crash points for tests, and arm crash points from text or from the environment.

The text has the form ``point[@passage]=action[,…]``, for example ``driver.decided@3=kill``. Passages are counted from
the time when the point is armed.

========== =============================================================================
action     effect at the point
========== =============================================================================
kill       SIGKILL to this process
stop       SIGSTOP to this process, until it receives SIGCONT
raise      :class:`InjectedFault`, an error that the toolkit does not expect
die        :class:`InjectedFault`, but the driver cleans nothing up (:func:`vanish`), as after a kill
drop       :class:`InjectedLoss`, a retriable error, as if a response were lost
delay:MS   a pause of this many milliseconds
========== =============================================================================

The toolkit itself never reads the environment. A process under test calls :func:`arm_from_environment`. Spark's Python
workers call it if ``spark.python.daemon.module`` is ``twopc.testing.spark_daemon``.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from twopc.coordinator import Coordinator
from twopc.crash_points import OCCASIONAL, POINTS, arm, disarm, is_armed
from twopc.errors import ConfigurationError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DAEMON_MODULE",
    "OCCASIONAL",
    "POINTS",
    "VARIABLE",
    "InjectedFault",
    "InjectedLoss",
    "arm",
    "arm_from",
    "arm_from_environment",
    "disarm",
    "is_armed",
    "vanish",
]

#: The environment variable that :func:`arm_from_environment` reads.
VARIABLE: Final = "TWOPC_CRASH_POINTS"
#: With this value of ``spark.python.daemon.module``, Spark's Python workers arm themselves from :data:`VARIABLE`.
DAEMON_MODULE: Final = "twopc.testing.spark_daemon"


class InjectedFault(RuntimeError):  # noqa: N818 - not one of the product's own errors
    """Raised by the action ``raise``."""


class InjectedLoss(RetriableError):  # noqa: N818 - not one of the product's own errors
    """Raised by the action ``drop``."""


def vanish() -> None:
    """Keep the driver that is running in this thread from ending any transaction, as if its process had been killed.

    The driver may run inside another driver's batch. Only the inner driver vanishes.
    """
    frame = inspect.currentframe()
    while frame is not None:
        running = frame.f_locals.get("self")
        if isinstance(running, Coordinator):
            participants: Any = running.participants
            participants.abort = participants.sweep = lambda *_: None
            return
        frame = frame.f_back


def _die() -> None:
    vanish()
    _fail()


def _fail() -> None:
    raise InjectedFault("an injected fault")


def _drop() -> None:
    raise InjectedLoss("injected loss of a response")


_ACTIONS: Final[dict[str, Callable[[], None]]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # Signal this thread. A signal to the process would reach the main thread, and this thread would keep running for
    # milliseconds.
    "stop": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "raise": _fail,
    "die": _die,
    "drop": _drop,
}
_DELAY: Final = re.compile(r"delay:(\d+)")


def _action_of(text: str) -> Callable[[], None] | None:
    delay = _DELAY.fullmatch(text)
    if delay is None:
        return _ACTIONS.get(text)
    seconds = int(delay[1]) / 1000
    return lambda: time.sleep(seconds)


def arm_from(text: str) -> None:
    """Arm the points in ``text``, which has the form ``point[@passage]=action[,…]``.

    Points that are already armed stay armed.

    Raises:
        ConfigurationError: a point or an action is unknown, or a passage is not a number.
    """
    for part in filter(None, text.split(",")):
        name, _, action = part.partition("=")
        name, _, passage = name.partition("@")
        act = _action_of(action)
        if act is None:
            raise ConfigurationError(
                f"unknown crash point action {action!r} in {part!r}. Use one of {', '.join(_ACTIONS)}, delay:MS"
            )
        if not (passage or "1").isdecimal():
            raise ConfigurationError(f"in {part!r}, {passage!r} is not the number of times to pass the crash point")
        arm(name, act, passage=int(passage or 1))


def arm_from_environment() -> None:
    """Arm this process's points from the environment variable ``TWOPC_CRASH_POINTS``, if it is set.

    Raises:
        ConfigurationError: see :func:`arm_from`.
    """
    arm_from(os.environ.get(VARIABLE, ""))
