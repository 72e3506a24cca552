"""Cancel a Spark job that takes too long, and translate the error when a job fails."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from typing import TYPE_CHECKING, Final

from twopc import errors
from twopc.errors import ConfigurationError, FatalError, RetriableError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext

_CANCEL_AGAIN_S: Final = 0.5
#: A worker sends the driver only the name of an error's class.
_OURS: Final = re.compile(r"twopc\.errors\.(?P<name>\w+): (?P<message>.*)")

#: These errors have one of four causes. An executor died or was lost. Shuffle files, a task's result or a part of a broadcast
#: table were lost. A Python worker died. The source's brokers did not respond. For a result, see ``TaskEndReason.scala``. For a
#: broadcast table, see ``TorrentBroadcast.scala``.
_OF_CLUSTER: Final = re.compile(
    r"ExecutorLostFailure|FetchFailed|Python worker exited unexpectedly"
    r"|TaskResultLost|Failed to (get|store) broadcast_\d"
    r"|org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network)Exception"
)
#: Spark's errors for a result stage that it cannot run again (``DAGScheduler``). Either Spark's own comparison of rows
#: found a difference (``spark.sql.shuffle.orderIndependentChecksum``), or Spark knows that the plan is not
#: deterministic. The second error is about a shuffle that another job wrote again while a task of this job was reading
#: it.
_MIXED: Final = re.compile(
    r"A shuffle map stage with indeterminate output was failed and retried\. However, Spark cannot rollback"
    r"|Task with indeterminate results from old attempt succeeded"
)
_CRASHED: Final = "Python worker exited unexpectedly"
_WORKER_MEMORY: Final = "spark.executor.pyspark.memory"
#: The sign of an error in a user's function. A retry would raise the same error again.
_TRACEBACK: Final = "Traceback (most recent call last)"


@contextlib.contextmanager
def cancelled_after(
    timeout_ms: float | None,
    tag: str,
    *,
    add: Callable[[str], object],
    remove: Callable[[str], object],
    cancel: Callable[[str], object],
) -> Iterator[Callable[[], bool]]:
    """Tag what the body starts, and cancel it after ``timeout_ms``. None means no limit.

    Args:
        timeout_ms: the limit.
        tag: the tag. It is not a job group, because the job group is the query's run id, which query.stop() uses to cancel jobs.
        add: adds the tag to what this thread starts.
        remove: removes the tag from what this thread starts.
        cancel: cancels everything that has the tag and is running.

    Yields:
        a function that tells whether the time is up.
    """
    expired, done = threading.Event(), threading.Event()

    def expire(timeout_s: float) -> None:
        is_done = done.wait(timeout_s)
        while not is_done:
            expired.set()
            # Repeat the call, because it has no effect before the plan's first job or between jobs.
            with contextlib.suppress(Exception):  # the next call may succeed
                cancel(tag)
            is_done = done.wait(_CANCEL_AGAIN_S)

    add(tag)
    try:
        if timeout_ms is not None:
            threading.Thread(target=expire, args=(timeout_ms / 1000,), daemon=True).start()
        yield expired.is_set
    finally:
        done.set()
        remove(tag)


def named_error(name: str, message: str) -> Exception:
    """Build an error from the name of its class (:func:`twopc.errors.public_class`); a FatalError if the name is unknown."""
    return getattr(errors, name, FatalError)(message)


def translated(error: Exception, setting: Callable[[str], str | None]) -> Exception:
    """If Spark aborted a job because of a task's error, return the task's error, with ``error`` as its cause.

    Return any other error unchanged, unless a worker crashed under a memory limit. ``setting`` looks up a setting of the session.
    """
    found = _found(error)
    if found is error and is_of_cluster(error) and _CRASHED in str(error):
        found = _crashed(error, setting)
    if found is not error:  # an error that is its own cause would wait for the garbage collector
        found.__cause__ = error
    return found


def _found(error: Exception) -> Exception:
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        found = named_error(ours["name"], ours["message"])
        return found if isinstance(found, (RetriableError, FatalError)) else error
    if _MIXED.search(text):
        return FatalError(
            "Spark wrote a shuffle of the batch again with different rows (an executor died, for example). Spark then "
            "aborted the job, because some of the job's tasks had already read the old rows. No part of this attempt is "
            "decided or visible. Restart the query, which will then recompute the whole batch. A retry without a "
            "restart would use old rows that Spark has kept"
        )
    if "ModuleNotFoundError" in text or "PYTHON_VERSION_MISMATCH" in text:
        return ConfigurationError(
            "the Python workers cannot import this toolkit, or have another version of it, so nothing was written. Set "
            "PYSPARK_PYTHON (spark.pyspark.python) to the Python of an environment that contains the driver's version, such as "
            f"{sys.executable} here, and ship that environment to all executors. Spark's error: {_last_error_line(text)}"
        )
    return error


def _crashed(error: Exception, setting: Callable[[str], str | None]) -> Exception:
    """Return an error that names the setting that limits the workers' memory; ``error`` itself if the setting is not set."""
    limit = None
    with contextlib.suppress(Exception):  # the session may be the cause of the failure
        limit = setting(_WORKER_MEMORY)
    if limit is None:
        return error
    return UnavailableError(
        f"a Python worker crashed, and {_WORKER_MEMORY}={limit} limits its memory. No part of this attempt is decided or "
        "visible, and no data is at risk. This limit may be the cause. Spark divides the limit by spark.executor.cores, "
        "and applies it to a worker's address space, which is much larger than the memory that the worker uses. Look for "
        "'failed to create broker thread', MemoryError or 'Cannot allocate memory' in the executor's log. If the log "
        "contains one of these texts, remove the setting, or raise it to 1 GiB for each core in spark.executor.cores. Then "
        "restart the Spark application"
    )


def interruptible_pause(context: SparkContext, pause_ms: int) -> None:
    """Wait in the query's JVM thread, which ``query.stop()`` interrupts. Spark treats the resulting error as a stop."""
    context._jvm.java.lang.Thread.sleep(pause_ms)  # type: ignore[union-attr]  # noqa: SLF001 - no public API for this


def is_of_cluster(error: Exception) -> bool:
    """Whether a job failed because of Spark's processes or the network, and not because of the job's own code."""
    text = str(error)
    return _OF_CLUSTER.search(text) is not None and _TRACEBACK not in text


def _last_error_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "Error" in line]
    return lines[-1] if lines else text[:500]
