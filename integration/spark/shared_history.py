"""Keep one history of an application's jobs, which all runs of all queries in this process share.

Spark forgets its oldest jobs and stages. So if each run kept its own history, a run that starts late in a long session would
be refused.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError

from twopc.errors import UnavailableError
from twopc.integration.spark.job_history import JobHistory
from twopc.integration.spark.status_store import StatusStore

if TYPE_CHECKING:
    from pyspark import SparkContext

_TICK_S: Final = 1.0

_kept: tuple[SparkContext, JobHistory] | None = None
_keeping: Final = threading.Lock()


def history_of(context: SparkContext) -> JobHistory:
    """Return the application's history. The first call starts to record moments."""
    global _kept  # noqa: PLW0603 - a process has one SparkContext at a time
    with _keeping:
        if _kept is None or _kept[0] is not context:
            history = JobHistory(StatusStore(context))
            history.begin(exactly=True)
            _kept = (context, history)
            threading.Thread(target=_record_moments, args=_kept, name="twopc-moments", daemon=True).start()
        return _kept[1]


def _record_moments(context: SparkContext, history: JobHistory) -> None:
    """Record a moment every second, until the application stops.

    A query may be idle for hours while other queries run thousands of jobs. Without a recent moment, the query's next batch
    would have to examine all of these jobs, and Spark would have forgotten the oldest jobs.
    """
    with contextlib.suppress(Py4JError, OSError):  # the JVM has ended
        while not _ending.wait(_TICK_S) and context._jsc is not None:  # noqa: SLF001 - the only sign that the context has stopped
            with (
                contextlib.suppress(Py4JJavaError, UnavailableError),
                history.lock,
            ):  # a single call failed, and the next one may succeed
                history.begin(exactly=True)


_ending: Final = threading.Event()
atexit.register(_ending.set)
