"""A user's function during which Spark drops reports about its jobs and stages, because the queue for them is full."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from twopc.integration.spark import ExactlyOnce

#: The settings of a session whose queue of reports soon fills up.
SMALL_QUEUE = {"spark.scheduler.listenerbus.eventqueue.appStatus.capacity": "50"}
_TASKS = 200


class _Holding:
    """A listener in the queue of Spark's status store that holds the queue up until it is released."""

    class Java:
        implements = ("org.apache.spark.scheduler.SparkListenerInterface",)

    def __init__(self) -> None:
        self.released = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on"):
            raise AttributeError(name)
        return self._wait

    def _wait(self, *event: object) -> None:
        del event
        self.released.wait()


def after_a_drop(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
    """Write each batch after Spark has dropped reports.

    Spark planned the batch before it dropped the reports, and the attempt begins afterward.
    """

    def write(batch: DataFrame, batch_id: int) -> None:
        spark: Any = batch.sparkSession.sparkContext._jsc.sc()
        bus, holding = spark.listenerBus(), _Holding()
        bus.addToStatusQueue(holding)
        try:
            spark.range(0, 1, 1, _TASKS).count()
        finally:
            holding.released.set()
        bus.waitUntilEmpty()
        each(batch, batch_id)

    return write
