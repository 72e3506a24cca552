"""Kills a process at each step of an act, which is a call that changes the file system. Each run is a separate process."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MANY = 10_000


def kill_at_each_step(calls: tuple[str, ...], act: Callable[[str], object]) -> Iterator[int]:
    """Act once without a kill, as ``whole``; then once for each step, as ``at-<step>``, in a child killed at the step.

    Args:
        calls: the ``os`` functions whose calls are the steps.
        act: receives the name.

    Yields:
        each step, once its child has been killed.
    """
    left = _MANY

    def counted(really: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return really(*arguments, **named)

        return call

    for name in calls:
        setattr(os, name, counted(getattr(os, name)))
    act("whole")
    for step in range(1, _MANY - left + 1):
        child = os.fork()
        if child == 0:
            left = step
            act(f"at-{step}")
            os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        left = _MANY
        yield step
