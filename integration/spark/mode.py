"""Define the interface between a run of a query and Spark, for Spark's driver and for Spark Connect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

    from twopc.batch import Batch
    from twopc.engine import Engine
    from twopc.files import Files
    from twopc.integration.spark.direct import Way
    from twopc.integration.spark.frame import Rows
    from twopc.integration.spark.kept import Runs
    from twopc.integration.spark.options import Options
    from twopc.integration.spark.several import SinkFrame
    from twopc.integration.spark.staging import Staging
    from twopc.progress import StateSize
    from twopc.sink import TwoPhaseCommitSink


class Query(Protocol):
    """One run of a query, as seen during a call for one of the run's batches."""

    @property
    def query_id(self) -> str:
        """The query id, which survives restarts."""

    @property
    def run_id(self) -> str:
        """Spark's id for the run. Spark assigns a new id at each start."""

    @property
    def may_call(self) -> bool:
        """Whether the run is making a call, or may make one. A run that was stopped during a call first ends the call."""

    @property
    def checkpoint_location(self) -> str:
        """The checkpoint location."""

    @property
    def batch_id(self) -> int:
        """The batch that Spark is processing."""

    def makes_this_call(self) -> bool:
        """Whether Spark is waiting for the current call. Spark considers a batch finished when the call returns.

        Raises:
            ConfigurationError: the call comes from a forked child process.
        """

    def close(self) -> None:
        """Release Spark's objects after the run has ended.

        Spark's query holds the user's function, which holds the objects of the toolkit. If these objects also held Spark's query,
        neither Python nor the JVM could ever collect any part of the cycle, because neither sees all of it.
        """


class ShuffleCheck(Protocol):
    """Checks rule 6 for the jobs of one run: all of a batch's rows must come from the same shuffles."""

    def begin(self) -> None:
        """Record the start of an attempt."""

    def look(self, tag: str, *, is_collected: bool = True) -> None:
        """Begin to observe the jobs with the tag that have ended so far. :meth:`check` waits for the observation.

        Args:
            tag: the tag of the attempt's jobs.
            is_collected: whether the last of these jobs has collected rows that the driver writes.
        """

    def check(self, tag: str, results: Collection[int], kept_since_ms: Callable[[], float | None]) -> None:
        """Check the jobs with the tag after they have succeeded.

        Args:
            tag: the tag of the attempt's jobs.
            results: the stages whose tasks have reported to the driver.
            kept_since_ms: returns None if the batch's plans use no data that Spark keeps outside RDDs. If the plans do
                use such data, returns when Spark began to plan the batch, in milliseconds since 1970. Called only if
                the result matters.

        Raises:
            RetriableError: a stage that keeps no rows was rerun. A retry reads the stage's input again.
            FatalError: rows of two shuffles may be mixed.
        """

    def close(self) -> None:
        """Release threads."""


class StateCheck(Protocol):
    """Ensures that one batch of a stateful query writes all of its state before the batch is decided."""

    def begin(self) -> None:
        """Begin an attempt. Forget what an earlier attempt has shown, if a part of the batch is evaluated again.

        Rule 6 may have rejected the earlier evaluation, and the new evaluation may replace only a part of the earlier state.
        """

    def watching(self, frame: Any) -> AbstractContextManager[None]:
        """Check whether the body writes all of the state. The body runs one job over a DataFrame."""

    def complete(self, *, is_visible: bool = False) -> bool:
        """Write the missing part of the state: evaluate the entire batch, and discard the rows.

        Like a retry, the evaluation also rewrites the part of the state that already exists.

        Args:
            is_visible: whether the batch is already visible, for messages.

        Returns:
            whether any part was missing, and the batch was therefore evaluated again.

        Raises:
            ConfigurationError: Spark's plan does not write all of its state.
            Exception: the evaluation failed. Any other action would raise the same exception.
        """


class WriterLimit(Protocol):
    """Limits the number of tasks that write a batch."""

    def most_writers(self) -> int | None:
        """Return the maximum number of tasks that may write one DataFrame of a batch, or None for no limit."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The rows of an attempt at a batch, and the settings for the write; see ``SparkEngine``."""

    runs: Runs
    shuffles: ShuffleCheck
    rows: Sequence[Rows]
    sinks: tuple[TwoPhaseCommitSink[Any], ...]
    staging: Staging | None
    way: Way
    options: Options


class Mode(Protocol):
    """Gives one run of a query access to Spark.

    Attributes:
        is_stateless: whether the query is known to be stateless.
        output_mode: the query's output mode.
        copies_functions: whether the query has its own copy of the session's SQL functions, which nobody else can change.
    """

    copies_functions: bool

    @property
    def is_stateless(self) -> bool:
        """Whether the query is known to keep no state."""

    @property
    def output_mode(self) -> str | None:
        """The query's output mode, in lower case; None if Spark does not show it."""

    def open_files(self, location: str) -> Files:
        """Open the directory ``location``, as Spark resolves it.

        Raises:
            ConfigurationError: the directory cannot be opened.
        """

    def pause(self, pause_ms: int) -> None:
        """Wait until the time is up or the query stops."""

    def resolved(self, frames: Sequence[SinkFrame]) -> AbstractContextManager[Sequence[SinkFrame]]:
        """Return the DataFrames of a call, in a form whose rows cannot change during the call."""

    def other_data(self, frame: DataFrame) -> str | None:
        """Return a part of a DataFrame's plan that reads data other than the batch, a checkpoint, or rows in the plan itself.

        Such data may change between two evaluations of the DataFrame. Return None if there is no such part.
        """

    def same_rows(self, frame: DataFrame, other: DataFrame) -> bool:
        """Whether two DataFrames of a batch certainly have the same rows, according to Spark's plans.

        Two plans are compared as they are now. So the result is False if a plan may have changed since an earlier call.
        """

    def look(self, files: Files, frames: Sequence[SinkFrame], batch: Batch) -> tuple[StateSize, ...]:
        """Check a batch before an attempt to write it. Return the known sizes of the query's state.

        Raises:
            FatalError: another driver has overwritten the batch's offsets.
        """

    def engine(self, files: Files, batch: Batch, attempt: Attempt) -> Engine:
        """Make the engine for an attempt.

        Raises:
            ConfigurationError: this kind of query or plan cannot be written exactly once.
        """


class Calls(Protocol):
    """Finds the run that calls an ``exactly_once`` object."""

    def open_writer(self, session: Any) -> Any:
        """Return the ``RunWriter`` for the run that makes this call.

        If necessary, create the writer, and close the writer of an earlier run.

        Raises:
            ConfigurationError: the checkpoint or this object belongs to another query, or the call does not come from a query.
        """

    def close(self) -> None:
        """Close the connections of a query that has stopped."""
