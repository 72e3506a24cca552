"""Hold a process at the moment when it is to be killed.

A process that reaches the moment writes a file. The loop watches for this file, and then kills the process. A process
can survive the kill only under Spark Connect. The surviving process continues when the loop releases it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

#: No kill takes this long. After this time, the held process raises an error, and the query fails.
_HELD_S: Final = 600
_POLL_S: Final = 0.02


def stand_still(reached: str) -> None:
    """Report that the process has reached the moment of the kill, and wait for SIGKILL or for :func:`release`.

    Raises:
        RuntimeError: the process was neither killed nor released within 600 s.
    """
    Path(reached).touch()
    deadline = time.monotonic() + _HELD_S
    while not _released(reached).exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"this process was not killed within {_HELD_S} s after it created {reached}")
        time.sleep(_POLL_S)


def release(reached: str) -> None:
    """Let every process that is held at this moment continue."""
    _released(reached).touch()


def end_of(reached: str) -> Path:
    """Return the file with the result of the function's last call: the name of the call's error, or ``no error``."""
    return Path(f"{reached}.end")


def _released(reached: str) -> Path:
    return Path(f"{reached}.released")
