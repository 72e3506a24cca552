"""Stand still at the moment of a kill.

When a moment is reached, a file is written. The loop watches that file and kills. A process that survives the kill, which is
possible only under Spark Connect, continues when the loop releases it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

#: This is longer than any kill takes. After this time, the moment fails, and the query with it.
_HELD_S: Final = 600
_POLL_S: Final = 0.02


def stand_still(reached: str) -> None:
    """Report that the moment has come, and wait for SIGKILL or for :func:`release`.

    Raises:
        RuntimeError: neither has come.
    """
    Path(reached).touch()
    deadline = time.monotonic() + _HELD_S
    while not _released(reached).exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"this process was not killed within {_HELD_S} s of {reached}")
        time.sleep(_POLL_S)


def release(reached: str) -> None:
    """Let every process continue that stands still at this moment."""
    _released(reached).touch()


def end_of(reached: str) -> Path:
    """The file with the name of the error of the function's last call, or ``no error``."""
    return Path(f"{reached}.end")


def _released(reached: str) -> Path:
    return Path(f"{reached}.released")
