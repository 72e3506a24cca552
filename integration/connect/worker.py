"""Recognize the process in which Spark Connect calls the user's function.

Each time a query starts, Spark starts a separate process for it on the server's host. PySpark's
``foreach_batch_worker.py`` calls the function in the process's main thread and waits until the function returns.
PySpark's worker does not pass the query, and a user could set every value that the worker passes. Therefore, this
module recognizes the call by PySpark's frame on the stack.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import DataFrame

#: PySpark's file, and the function in it that calls the user's function.
_FILE: Final = "foreach_batch_worker.py"
_FUNCTION: Final = "process"


class CalledBatch(NamedTuple):
    """The arguments that Spark passed to the user's function.

    Attributes:
        frame: the batch.
        batch_id: the batch number.
    """

    frame: DataFrame
    batch_id: int


_forked_in_a_call = False


def is_child_of_call() -> bool:
    """Whether this process is a child that the user's function, or a child of the function, has forked.

    Such a child inherits the stack with PySpark's frame, so :func:`called_batch` does not recognize the child.
    """
    return _forked_in_a_call


def _remember_fork() -> None:
    global _forked_in_a_call  # noqa: PLW0603 - belongs to the process
    _forked_in_a_call = _forked_in_a_call or called_batch() is not None


# Spark may fork this process before it makes a call, so a comparison of process ids would not be enough.
os.register_at_fork(after_in_child=_remember_fork)


def is_worker() -> bool:
    """Whether Spark Connect has started this process to call a ``foreachBatch`` function."""
    name = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "") or ""
    return f"{name.rpartition('.')[2]}.py" == _FILE


def called_batch() -> CalledBatch | None:
    """Return the batch that Spark is waiting for in this thread. Return None if Spark did not make the call in this thread."""
    if threading.current_thread() is not threading.main_thread():
        return None
    # Do not begin with this function's own frame, because its f_locals would refer to the frame itself. Then only the
    # garbage collector would release the batch, and PySpark would send its release request during the garbage collection. If the
    # collection runs in a thread that gRPC is starting, the request hangs (grpc/grpc#36927).
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to get the caller's frame
    while frame is not None:
        code = frame.f_code
        if code.co_name == _FUNCTION and code.co_filename.endswith(_FILE):
            known = frame.f_locals
            if {"batch_df", "batch_id"} <= known.keys():
                return CalledBatch(known["batch_df"], int(known["batch_id"]))
        frame = frame.f_back
    return None
