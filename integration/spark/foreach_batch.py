"""``exactly_once``: the callable for ``foreachBatch`` that makes a streaming query's output exactly-once."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark import SparkContext

from twopc.batch import Overrides
from twopc.checkpointing import PASSING
from twopc.coordinator import Coordinator
from twopc.errors import CheckpointExpiredError
from twopc.integration.history.writer import writer_for
from twopc.integration.spark import checkpoint
from twopc.integration.spark.budget import Budget
from twopc.integration.spark.connect import require_classic_mode
from twopc.integration.spark.direct import Direct, Planned, Way
from twopc.integration.spark.engine import SparkEngine
from twopc.integration.spark.frame import arrange
from twopc.integration.spark.hadoop_files import open_files
from twopc.integration.spark.handed_over import require_taken_over
from twopc.integration.spark.jobs import interruptible_pause, is_of_cluster, slow_batch_advice
from twopc.integration.spark.options import Options, checked_options, participants
from twopc.integration.spark.planned import require_as_planned
from twopc.integration.spark.py4j_log import hide_functions
from twopc.integration.spark.query_runs import drop, run_of_this_call
from twopc.integration.spark.repeated import Repeated
from twopc.integration.spark.retention import decisions_kept
from twopc.integration.spark.running import require_number
from twopc.integration.spark.several import Call, any_frame, by_frame
from twopc.integration.spark.staging import Staging, as_uri
from twopc.integration.spark.state_sizes import StateSizes
from twopc.integration.spark.stateful import StatefulOperators
from twopc.integration.spark.status_store import BEGINNING, StatusStore
from twopc.pending import Listeners
from twopc.settings import Settings
from twopc.tried_files import tried

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from twopc.batch import Batch
    from twopc.files import Files
    from twopc.integration.spark.frame import Rows
    from twopc.integration.spark.query_runs import QueryRun
    from twopc.integration.spark.several import Frames, SinkFrame
    from twopc.pending import Pending
    from twopc.sink import TwoPhaseCommitSink

logger = logging.getLogger(__name__)

#: What `make matrix` runs.
_PROVEN_SPARKS: Final = ("3.5", "4.0", "4.1", "4.2", "4.3")


def exactly_once(
    *sinks: TwoPhaseCommitSink[Any], checkpoint_location: str, staging: bool = False, **settings: Any
) -> ExactlyOnce:
    """Make the callable for ``foreachBatch``.

    Args:
        sinks: one or more; every batch becomes visible in all of them or in none.
        checkpoint_location: the same path as the query's own ``checkpointLocation``.
        staging: see :class:`Options`, as for all other settings.
        settings: the others.

    Raises:
        ConfigurationError: an argument is missing, unknown or contradicts another; or this process uses Spark Connect.
    """
    require_classic_mode()
    hide_functions()
    options = checked_options(sinks, str(checkpoint_location), {"staging": staging, **settings})
    if not pyspark.__version__.startswith(tuple(f"{version}." for version in _PROVEN_SPARKS)):
        logger.warning(
            "this release was not run on Spark %s, only on %s: kill a query of yours with twopc.testing before you rely on it",
            pyspark.__version__,
            ", ".join(_PROVEN_SPARKS),
        )
    everyone = participants(sinks, options)
    if options.dead_letter is not None:
        options = replace(options, dead_letter=options.dead_letter.beside(everyone))
    return ExactlyOnce([sink.beside(everyone) for sink in sinks], str(checkpoint_location), options)


class ExactlyOnce:
    """Spark calls it with each batch: in the driver, in the query's own thread."""

    def __init__(self, sinks: Sequence[TwoPhaseCommitSink[Any]], checkpoint_location: str, options: Options) -> None:
        self._sinks = sinks
        self._participants = participants(sinks, options)
        self._location = checkpoint_location
        self._options = options
        # A cache may be older than the query: then any job since this moment may have filled it.
        self._context = SparkContext._active_spark_context  # noqa: SLF001 - the public way would start one
        self._since = BEGINNING if self._context is None else StatusStore(self._context).now()
        self._run: QueryRun | None = None
        self._coordinator: Coordinator | None = None
        self._listeners: Listeners | None = None
        self._direct = Direct(options.direct, options.direct_max_bytes)
        self._budget = Budget()
        self._state = StateSizes()
        self._repeated = Repeated()
        self._stateful = StatefulOperators()
        self._last_batch: Batch | None = None

    def __call__(self, frames: Frames, batch_id: int) -> None:
        """Make one batch visible in every sink exactly once; returning proves it. Call it once for every batch.

        Args:
            frames: the batch, or a DataFrame made from it, for all sinks; or a dictionary with a DataFrame for each sink's
                name, and None for a sink that is to get nothing of this batch. A DataFrame is evaluated once, even if
                several sinks take it.
            batch_id: the number that Spark gave with the batch.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``; the query stops with it.
        """
        given = any_frame(frames)
        if given is None:
            by_frame(frames, self._sinks, batch_id)  # raises: there is nothing to write
            raise AssertionError("a batch without a DataFrame")
        context = given.sparkSession.sparkContext
        files = open_files(context, self._location)
        run = self._run_of_this_call(given.sparkSession, files)
        number = require_number(batch_id, run.query)
        batch_frames = by_frame(frames, self._sinks, number)
        call = Call(number, tuple(one.frame for one in batch_frames))
        run.take(call, self)
        self._process(context, files, batch_frames, run, checkpoint.read_batch(files, run.query.query_id, number))
        run.last_call = replace(call, frames=None)

    def _process(
        self, context: SparkContext, files: Files, frames: Sequence[SinkFrame], run: QueryRun, batch: Batch
    ) -> None:
        try:
            self._options.checkpointing.run(
                self._watched(context),
                batch,
                run.query.run_id,
                lambda pending: self._write(context, files, frames, batch, run, pending),
                lambda error, pending: self._may_repeat(error, batch, pending),
                lambda pause_ms: interruptible_pause(context, pause_ms),
            )
        except BaseException:
            self._release()  # so that the next call begins with recovery
            raise
        self._last_batch = batch

    def _write(  # noqa: PLR0913, PLR0917 - what a batch consists of
        self,
        context: SparkContext,
        files: Files,
        frames: Sequence[SinkFrame],
        batch: Batch,
        run: QueryRun,
        pending: Pending,
    ) -> None:
        if not files.is_atomic:
            require_as_planned(frames[0].frame.sparkSession, files, batch.query_id, batch.batch_id)
        pending.state = self._state.before(frames[0].frame.sparkSession, batch.query_id)
        self._repeated.look(frames, batch.query_id, batch.batch_id)
        staging = self._open_staging(files, batch.query_id)
        rows = [self._arrange(one, is_repeated=pending.failed_before > 0) for one in frames]
        if self._coordinator is None:
            pending.enter("connect")
            self._coordinator = self._connect(context, frames[0].frame.sparkSession, staging, batch)
        coordinator = self._coordinator
        engine = SparkEngine(
            batch=rows,
            sinks=self._participants,
            runs=run.among_others,
            shuffles=run.shuffles,
            staging=staging,
            way=Way(self._direct, self._planned(batch), self._state.is_stateless),
            budget=self._budget,
            timeout_ms=self._options.prepare_timeout_ms,
            state=self._stateful.of_batch(run.query, batch.batch_id, has_state=lambda: bool(files.names("state"))),
        )
        try:
            coordinator.process(batch, engine, pending)
        except CheckpointExpiredError as error:
            is_undecided = coordinator.is_undecided(batch)
            advice = slow_batch_advice(files.location, batch.batch_id, is_undecided=is_undecided)
            raise CheckpointExpiredError(f"{error}. {advice}", late=error.late) from error

    def _may_repeat(self, error: Exception, batch: Batch, pending: Pending) -> bool:
        """Whether the batch may be written again after this error; what the failed checkpoint left open is being ended."""
        may_pass = isinstance(error, PASSING) or (pending.phase == "prepare" and is_of_cluster(error))
        return may_pass and self._coordinator is not None and self._coordinator.is_undecided(batch)

    @property
    def sink_names(self) -> tuple[str, ...]:
        """The sinks that get rows, as they were given."""
        return tuple(sink.name for sink in self._sinks)

    def close(self) -> None:
        """Close this query's connections after it has ended; an error or a new run does so, too. Ends no transaction."""
        self._release()
        if self._run is not None and not self._run.query.is_active:
            drop(self._run)
            self._run = None

    def _release(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
        if self._listeners is not None:
            self._listeners.close()
        self._coordinator = self._listeners = None

    def _watched(self, context: SparkContext) -> Listeners:
        if self._listeners is None:
            writer = writer_for(open_files(context, f"{self._location}/twopc"), is_wanted=self._options.history)
            self._listeners = Listeners([*([] if writer is None else [writer]), *self._options.listeners])
        return self._listeners

    def _run_of_this_call(self, session: SparkSession, files: Files) -> QueryRun:
        """The run of the query that makes this call; what belongs to an earlier one is let go.

        Raises:
            ConfigurationError: the checkpoint belongs to another query, or no query's own thread makes the call.
        """
        run = self._run
        if run is None or not run.query.makes_this_call():
            since = self._since if session.sparkContext is self._context else BEGINNING
            run = run_of_this_call(session, checkpoint.query_id(files), files.location, since)
            self._release()
            self._direct = Direct(self._options.direct, self._options.direct_max_bytes)
            self._budget = Budget()
            self._state = StateSizes()
            self._repeated = Repeated()
            self._stateful = StatefulOperators()
            self._last_batch = None
            self._run = run
        return run

    def _open_staging(self, files: Files, query_id: str) -> Staging | None:
        if not self._options.staging:
            return None
        shared = self._options.staging_location
        if shared is None:
            return Staging(as_uri(f"{files.location}/twopc/staging"))
        return Staging(f"{shared.rstrip('/')}/{query_id}", former=shared)

    def _arrange(self, one: SinkFrame, *, is_repeated: bool) -> Rows:
        letters = self._options.dead_letter
        return arrange(
            one.name,
            # With another plan: Spark keeps a failed broadcast in the plan that it was for, and gives its error again.
            one.frame.select("*") if is_repeated else one.frame,
            participants(one.sinks, self._options),
            select=self._options.select,
            dead_letter=None if letters is None else letters.name,
        )

    def _planned(self, batch: Batch) -> Planned:
        last = self._last_batch
        if last is not None and last.batch_id == batch.batch_id - 1:
            return Planned(last.offsets, batch.offsets)
        return Planned(batch.offsets_of(batch.batch_id - 1) if batch.batch_id else None, batch.offsets)

    def _connect(
        self, context: SparkContext, session: SparkSession, staging: Staging | None, batch: Batch
    ) -> Coordinator:
        """The same for all batches of a run until one fails."""
        own_files = tried(open_files(context, f"{self._location}/twopc"))
        require_taken_over(own_files, batch)
        settings = Settings(
            overrides=Overrides(**{one.name: getattr(self._options, one.name) for one in fields(Overrides)}),
            add_sink=self._options.add_sink,
            max_attempts=self._options.max_attempts,
            keep_batches=decisions_kept(session, self._options.num_retained),
        )
        return Coordinator(self._participants, own_files, settings=settings, staging=staging)
