"""Hold a process at the moment of a kill.

A process that reaches the moment writes a file. The loop watches for this file, and kills. Only under Spark Connect can a process
survive the kill. The surviving process continues when the loop releases it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

#: Longer than any kill takes. After this time, the held process raises an error, and the query fails.
_HELD_S: Final = 600
_POLL_S: Final = 0.02


def stand_still(reached: str) -> None:
    """Report that the moment has come, and wait for SIGKILL or for :func:`release`.

    Raises:
        RuntimeError: neither SIGKILL nor the release came within 600 s.
    """
    Path(reached).touch()
    deadline = time.monotonic() + _HELD_S
    while not _released(reached).exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"this process was not killed within {_HELD_S} s of {reached}")
        time.sleep(_POLL_S)


def release(reached: str) -> None:
    """Let every process that is held at this moment continue."""
    _released(reached).touch()


def end_of(reached: str) -> Path:
    """Return the file that contains the name of the error of the function's last call, or says ``no error``."""
    return Path(f"{reached}.end")


def _released(reached: str) -> Path:
    return Path(f"{reached}.released")
