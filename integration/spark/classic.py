"""Access Spark from the driver of a classic session, through the driver's JVM."""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError
from pyspark import SparkContext

from twopc.errors import ConfigurationError
from twopc.integration.spark import checkpoint
from twopc.integration.spark.budget import Budget
from twopc.integration.spark.engine import SparkEngine
from twopc.integration.spark.hadoop_files import open_files, renames_exclusively
from twopc.integration.spark.java_errors import JAVA_ERRORS, is_java_error
from twopc.integration.spark.jobs import interruptible_pause
from twopc.integration.spark.kept_data import Unused, planned_ms, unused, uses_kept_data
from twopc.integration.spark.lasting import require_lasting
from twopc.integration.spark.one_clock import at_one_instant
from twopc.integration.spark.overwritten import require_not_overwritten
from twopc.integration.spark.query_runs import drop_if_ended, enter_run
from twopc.integration.spark.repeated import Repeated, other_data
from twopc.integration.spark.run_writer import RunWriter
from twopc.integration.spark.running import GivenCheckpoint, calling_query
from twopc.integration.spark.shared_history import history_of
from twopc.integration.spark.shuffle_kinds import other_shuffles
from twopc.integration.spark.shuffles import Shuffles
from twopc.integration.spark.slots import Slots
from twopc.integration.spark.sorted_plans import may_be_sorted, reads_other_rdd
from twopc.integration.spark.state_reports import STATE_FORMAT, tell_once
from twopc.integration.spark.state_sizes import StateSizes
from twopc.integration.spark.stateful import StatefulOperators
from twopc.integration.spark.task_numbers import function_pattern, plan_depends_on_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from twopc.batch import Batch
    from twopc.engine import Engine
    from twopc.files import Files
    from twopc.integration.spark.frame import Rows
    from twopc.integration.spark.mode import Attempt, Query
    from twopc.integration.spark.options import Options
    from twopc.integration.spark.running import RunningQuery
    from twopc.integration.spark.several import SinkFrame
    from twopc.progress import StateSize
    from twopc.sink import TwoPhaseCommitSink

#: If this setting of Spark 4.1 and newer is on, Spark removes a plan's shuffle files after each evaluation of the plan.
_CLEANUP: Final = "spark.sql.classic.shuffleDependency.fileCleanup.enabled"


class ClassicMode:
    """See :class:`~twopc.integration.spark.mode.Mode`.

    Args:
        context: Spark's context.
        query: the query, as seen from the query's own thread.
        since: numbers that Spark had not used when ``exactly_once()`` was called.
        keeps_shuffles: whether Spark keeps a plan's shuffle files after an evaluation of the plan.
        stateful: finds the query's stateful operators.
    """

    copies_functions = True

    def __init__(
        self,
        context: SparkContext,
        query: RunningQuery,
        since: Unused,
        *,
        keeps_shuffles: bool,
        stateful: StatefulOperators,
    ) -> None:
        self._context = context
        self._query = query
        self._since = since
        self._keeps_shuffles = keeps_shuffles
        self._budget = Budget()
        self._state_sizes = StateSizes()
        self._repeated = Repeated()
        self._tell, self._tell_of_writers = tell_once(), tell_once()
        self._stateful = stateful
        self._slots = Slots(context)

    @property
    def is_stateless(self) -> bool:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        return self._state_sizes.is_stateless

    @property
    def output_mode(self) -> str | None:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        try:
            return self._query.output_mode
        except Py4JError:  # this release of Spark is unknown
            return None

    def open_files(self, location: str) -> Files:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        return open_files(self._context, location)

    def pause(self, pause_ms: int) -> None:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        interruptible_pause(self._context, pause_ms)

    def resolved(self, frames: Sequence[SinkFrame]) -> AbstractContextManager[Sequence[SinkFrame]]:
        """See :class:`~twopc.integration.spark.mode.Mode`. A classic DataFrame was already resolved when it was made."""
        return contextlib.nullcontext(frames)

    def other_data(self, frame: DataFrame) -> str | None:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        try:
            return other_data(frame, self._query.execution.toRdd().id())
        except Py4JError as error:  # this release of Spark is unknown: assume the worst
            return f"Spark does not show the plan: {error}"

    def same_rows(self, frame: DataFrame, other: DataFrame) -> bool:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        return frame is other or frame.sameSemantics(other)

    def look(self, files: Files, frames: Sequence[SinkFrame], batch: Batch) -> tuple[StateSize, ...]:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        session = frames[0].frame.sparkSession
        if not (renames_exclusively(files) and files.location == self._own_location):
            require_not_overwritten(self._query, files, batch.batch_id, lambda: self._own_location)
        sizes = self._state_sizes.before(session, batch.query_id, batch.batch_id)
        self._repeated.look(frames, batch.query_id, batch.batch_id)
        return sizes

    def engine(self, files: Files, batch: Batch, attempt: Attempt) -> Engine:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        if not self._keeps_shuffles:
            attempt = replace(attempt, rows=[rows.replanned() for rows in attempt.rows])
        return SparkEngine(
            batch=at_one_instant(attempt.rows, self._tell),
            sinks=attempt.sinks,
            runs=attempt.runs,
            shuffles=attempt.shuffles,
            slots=self._slots,
            staging=attempt.staging,
            way=attempt.way,
            budget=self._budget,
            timeout_ms=attempt.options.checkpoints.timeout_ms,
            max_writers=attempt.options.checkpoints.max_writers,
            may_be_sorted=self._may_be_sorted,
            depends_on_task=self._depends_on_task,
            tell=self._tell_of_writers,
            kept_since_ms=lambda: self._kept_since_ms(attempt),
            state=self._stateful.of_batch(self._query, batch.batch_id, has_state=lambda: bool(files.names("state"))),
        )

    @cached_property
    def _own_location(self) -> str:
        """Return the location of the checkpoint that the running query itself uses.

        The user may have passed another name for the same directory. Or the user may have passed a copy of the checkpoint, which
        has the same query id.
        """
        return open_files(self._context, self._query.checkpoint_location).location

    def _may_be_sorted(self, rows: Rows) -> bool:
        execution = self._query.execution
        try:
            plan: Any = rows.base._jdf.queryExecution().executedPlan()  # noqa: SLF001 - no public API returns plans
            return may_be_sorted(
                str(plan.toString()),
                lambda: str(execution.executedPlan().toString()),
                lambda: reads_other_rdd(rows.source, execution.toRdd().id()),
            )
        except Py4JError:  # this release of Spark is unknown, or it reports the plan's fault when it runs the plan
            return True

    def _depends_on_task(self, rows: Rows) -> bool:
        plan: Any = rows.base._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public API returns plans
        return self._query_depends_on_task or self._plan_depends_on_task(plan)

    @cached_property
    def _query_depends_on_task(self) -> bool:
        """Whether the query's own plan depends on the task. All batches of a run have the same functions."""
        return self._plan_depends_on_task(self._query.execution.analyzed())

    @cached_property
    def _function_pattern(self) -> Any:
        return function_pattern(self._context._jvm)  # noqa: SLF001 - no public API returns functions

    def _plan_depends_on_task(self, plan: Any) -> bool:
        try:
            return plan_depends_on_task(plan, self._function_pattern, self._context._jvm)  # noqa: SLF001 - see above
        except Py4JError:  # this release of Spark is unknown: assume the worst
            return True

    def _kept_since_ms(self, attempt: Attempt) -> float | None:
        execution = self._query.execution
        try:
            return planned_ms(execution) if uses_kept_data(execution, attempt.rows, self._since) else None
        except Py4JError:  # this release of Spark is unknown: assume the worst
            return 0


class ClassicCalls:
    """See :class:`~twopc.integration.spark.mode.Calls`.

    Args:
        sinks: the sinks that receive rows.
        location: the checkpoint location, if the user has passed it.
        options: the user's options.
    """

    def __init__(self, sinks: Sequence[TwoPhaseCommitSink[Any]], location: str | None, options: Options) -> None:
        self._sinks = sinks
        self._location = location
        self._options = options
        context = SparkContext._active_spark_context  # noqa: SLF001 - the public function would start a context
        if context is not None:
            # Record a moment before the query begins, so that no earlier job can have computed its batches.
            history_of(context)
        self._since = Unused() if context is None else unused(context)
        # Hold only a weak reference. Otherwise, an ended run would stay in memory for as long as the user keeps this object. The
        # run itself holds the writer.
        self._writer: weakref.ref[RunWriter] | None = None
        self._changing = threading.Lock()  # two queries that share the object by mistake may call concurrently

    def open_writer(self, session: SparkSession) -> RunWriter:
        """See :class:`~twopc.integration.spark.mode.Calls`."""
        with self._changing:
            previous, context = self._opened, session.sparkContext
            if previous is not None and previous.run.query.makes_this_call():
                return previous
            named = None
            if self._location is not None:
                files = open_files(context, self._location)
                named = GivenCheckpoint(files.location, checkpoint.query_id(files))
            query = calling_query(session, named)
            if named is None:  # a location that the user passes is known before the query starts
                require_lasting(query)
            is_merged = bool(other_shuffles(context.getConf().get))
            run = enter_run(query, lambda: Shuffles(history_of(context), is_merged=is_merged))
            query = cast("RunningQuery", run.query)  # the run releases this object when it has ended
            if previous is not None:
                _require_ended(previous.run.query, run.query)
                previous.run.close(previous)
            location = query.checkpoint_location if self._location is None else self._location
            stateful = StatefulOperators(int(session.conf.get(STATE_FORMAT, None) or 1))
            keeps_shuffles = _keeps_shuffles(session)
            mode = ClassicMode(context, query, self._since, keeps_shuffles=keeps_shuffles, stateful=stateful)
            writer = RunWriter(run, mode, location, self._sinks, self._options)
            self._writer = weakref.ref(writer)
            return writer

    @property
    def _opened(self) -> RunWriter | None:
        return None if self._writer is None else self._writer()

    def close(self) -> None:
        """See :class:`~twopc.integration.spark.mode.Calls`."""
        writer = self._opened
        if writer is not None:
            writer.run.close(writer)
            drop_if_ended(writer.run)


def _keeps_shuffles(session: SparkSession) -> bool:
    # Read the setting once per run, because Spark copies the settings when it starts the query, and each further
    # request would slow down a batch. Pass no default value. Otherwise, Spark would ignore its own default, which is
    # true while SPARK_TESTING is set.
    try:
        return (session.conf.get(_CLEANUP) or "").strip().lower() != "true"
    except JAVA_ERRORS as error:
        if is_java_error(error, "NoSuchElementException"):  # Spark 3.5 and 4.0 do not have the setting
            return True
        raise


def _require_ended(previous: Query, present: Query) -> None:
    if previous.query_id != present.query_id and previous.may_call:
        raise ConfigurationError(
            f"query {present.query_id} calls the exactly_once() object of query {previous.query_id}, which is still "
            "running. This call wrote nothing. Create a separate object for each query, with its own sinks"
        )
