"""Run additional actions around the write of each batch: ``exactly_once(sink, interceptors=[…])``.

The name comes from Kafka (``ProducerInterceptor``). An interceptor sees the batch before it is written, and again once it is
visible. An interceptor may replace the batch's rows, or stop the query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from twopc.integration.spark.answered import answered
from twopc.integration.spark.handed_over import require_passed_on
from twopc.integration.spark.several import any_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    from twopc.integration.spark.several import Frames
    from twopc.sink import TwoPhaseCommitSink


@dataclass(frozen=True)
class InterceptedBatch:
    """A batch that Spark has passed to the query's function.

    Attributes:
        frames: the user's argument: one DataFrame for all sinks, or a DataFrame for each sink.
        batch_id: the batch number.
        checkpoint_location: the location of the query's checkpoint.
        run_id: Spark's id for this run of the query. Spark assigns a new id at each start. The first batch of a run may be a
            replay.
        sinks: all sinks that take part in the decision, including the dead-letter sink. Empty if a function other than
            ``exactly_once`` writes the batch.
        select: the SQL expressions that make the sinks' columns from the rows, by sink name.
    """

    frames: Frames
    batch_id: int
    checkpoint_location: str
    run_id: str = ""
    sinks: tuple[TwoPhaseCommitSink[Any], ...] = ()
    select: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def context(self) -> SparkContext:
        """Spark's context."""
        frame = any_frame(self.frames)
        if frame is None:
            raise AssertionError("a batch without a DataFrame")
        return frame.sparkSession.sparkContext


class Interceptor(ABC):
    """Wraps the writing of each batch. Each query needs its own instance."""

    def require_fitting(self, sink_names: Sequence[str]) -> None:
        """Check that the interceptor works with a query that writes to these sinks.

        Raises:
            ConfigurationError: the interceptor does not work with this query.
        """
        del sink_names  # most interceptors work with every query

    @abstractmethod
    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        """Write the batch by calling ``proceed`` with its rows. ``proceed`` returns when the rows are visible.

        Call ``proceed`` in the current thread. ``exactly_once`` rejects a call from any other thread.

        The rows must depend only on ``batch.frames``. If the user's function repeats a call that has succeeded, this method is
        not called again.

        Raises:
            TwoPhaseCommitError: the query stops.
        """


def pass_through(interceptors: Sequence[Interceptor], batch: InterceptedBatch, write: Callable[[Frames], None]) -> None:
    """Write a batch through interceptors. The first interceptor is the outermost."""
    if not interceptors:
        require_passed_on(batch.frames, batch.batch_id)
        write(batch.frames)
        return
    first, *rest = interceptors

    def proceed(frames: Frames) -> None:
        pass_through(rest, replace(batch, frames=frames), write)

    first.intercept(batch, proceed)


def intercepted(
    function: Callable[[DataFrame, int], object], *interceptors: Interceptor
) -> Callable[[DataFrame, int], None]:
    """Make a callable for ``foreachBatch`` that wraps a function other than ``exactly_once``.

    Args:
        function: writes a batch.
        interceptors: the interceptors, the outermost first.
    """
    from twopc.integration.spark.running import calling_query  # noqa: PLC0415 - this module needs the classic part of PySpark

    def write(frame: DataFrame, batch_id: int) -> None:
        with answered(
            batch_id,
            then="Restart the query. Spark passes the batch again, unless Spark has recorded the batch as complete",
        ):
            query = calling_query(frame.sparkSession, None)
            batch = InterceptedBatch(frame, batch_id, query.checkpoint_location, query.run_id)
            pass_through(interceptors, batch, lambda frames: _call(function, frames, batch_id))

    return write


def _call(function: Callable[[DataFrame, int], object], frame: Frames, batch_id: int) -> None:
    function(frame, batch_id)  # type: ignore[arg-type] # a function that accepts one DataFrame receives the one that was passed
