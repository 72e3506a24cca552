"""Named points at which a test can kill, stop or delay this process, or make it fail.

An unarmed point costs one dictionary lookup.

Only a call to :func:`arm` arms a point. In a production process, no setting or environment variable can arm a point.
:mod:`twopc.testing.crash_points` defines the actions and arms points from text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

#: The points that every run with rows passes, in the order of the protocol's steps.
POINTS: Final = (
    "driver.inspected",  # the read-only checks have passed; no driver is fenced yet
    "driver.fenced",  # the previous driver is fenced; this driver has no record yet
    "driver.acquired",  # the previous driver is fenced; this driver's acquired record is durable
    "driver.recovered",  # the last decision is finished; orphans are swept
    "task.began",  # a task's transaction is open
    "task.written",  # its rows are handed to the client
    "task.prepared",  # its rows and marker are durable; the driver has not received the handle yet
    "task.handed_over",  # the handle is being sent; after this point the task does not end its transaction
    "driver.prepared",  # the driver has received every handle
    "driver.confirmed",  # every handle is confirmed; nothing is decided
    "driver.deciding",  # the decision is written; with Kafka, its transaction is open; otherwise, it is not read back yet
    "driver.decided",  # the decision is durable; nothing is committed
    "driver.committing",  # some transactions have been committed
    "driver.committed",  # every commit is proven
    "driver.swept",  # this batch's orphans are aborted; foreachBatch returns next
)
#: Points that only some runs pass.
OCCASIONAL: Final = (
    "task.staged",  # the task's rows are staged (``staging=True``); its report has not been sent
    "driver.bound",  # the checkpoint is bound to its sinks for the first time; nothing is decided
    "driver.sweeping",  # orphans are identified; none is aborted yet
    "driver.barred",  # a barrier is written after the expected markers; no search has reached the barrier yet
    "driver.truncating",  # a truncation of the decision log is recorded; nothing is deleted
)

_armed: dict[str, tuple[int, Callable[[], None]]] = {}


def crash_point(name: str) -> None:
    """If a test has armed this crash point, run its action."""
    entry = _armed.pop(name, None)
    if entry is None:
        return
    remaining, action = entry
    if remaining > 1:
        _armed[name] = (remaining - 1, action)
    else:
        action()


def is_armed(name: str) -> bool:
    """Whether a test has armed the point. Some steps are split in two only while their point is armed."""
    return name in _armed


def arm(name: str, action: Callable[[], None], *, passage: int = 1) -> None:
    """Run ``action`` once, on the given passage through a point. Passages are counted from now.

    Raises:
        ConfigurationError: the point is unknown.
    """
    if name not in (*POINTS, *OCCASIONAL):
        raise ConfigurationError(f"unknown crash point {name!r}. Use one of {', '.join((*POINTS, *OCCASIONAL))}")
    _armed[name] = (passage, action)


def disarm() -> None:
    """Disarm every point."""
    _armed.clear()
