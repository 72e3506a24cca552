"""Cancel a Spark job that takes too long."""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext

_CANCEL_AGAIN_S: Final = 0.5


@contextlib.contextmanager
def cancelled_after(context: SparkContext, timeout_ms: float | None) -> Iterator[Callable[[], bool]]:
    """Cancel the jobs that the body starts once the time is over; None sets no limit.

    Yields:
        whether the time is over.
    """
    # A tag, not a job group: the job group is the query's run id, by which query.stop() cancels.
    tag = f"twopc-{uuid.uuid4().hex}"
    expired, done = threading.Event(), threading.Event()

    def expire() -> None:
        expired.set()
        # Again and again: before the plan's first job, or between two of them, there is nothing to cancel.
        context.cancelJobsWithTag(tag)
        while not done.wait(_CANCEL_AGAIN_S):
            context.cancelJobsWithTag(tag)

    timer = threading.Timer(timeout_ms / 1000, expire) if timeout_ms is not None else None
    context.addJobTag(tag)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield expired.is_set
    finally:
        done.set()
        if timer is not None:
            timer.cancel()
        context.removeJobTag(tag)
