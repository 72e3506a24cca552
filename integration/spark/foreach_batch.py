"""``exactly_once``: the callable for ``foreachBatch`` that makes a streaming query's output exactly-once."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark import SparkContext

from twopc.checkpoint_config import CheckpointConfig
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.integration.spark import checkpoint
from twopc.integration.spark.connect import require_classic_mode
from twopc.integration.spark.hadoop_files import open_files
from twopc.integration.spark.interceptors import InterceptedBatch, pass_through
from twopc.integration.spark.job_history import history_of
from twopc.integration.spark.options import Options, participants
from twopc.integration.spark.py4j_log import hide_functions
from twopc.integration.spark.query_runs import drop, enter_run
from twopc.integration.spark.run_writer import RunWriter
from twopc.integration.spark.running import GivenCheckpoint, require_number
from twopc.integration.spark.several import Call, any_frame, by_frame
from twopc.override import Overrides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from twopc.integration.spark.direct import WriteBy
    from twopc.integration.spark.interceptors import Interceptor
    from twopc.integration.spark.running import RunningQuery
    from twopc.integration.spark.several import Frames
    from twopc.listeners import Listener
    from twopc.override import Override
    from twopc.sink import TwoPhaseCommitSink

logger = logging.getLogger(__name__)

#: The versions that `make matrix` runs.
_PROVEN_SPARKS: Final = ("3.5", "4.0", "4.1", "4.2", "4.3")


def exactly_once(  # noqa: PLR0913 - settings, each with a default
    *sinks: TwoPhaseCommitSink[Any],
    checkpoint_location: str | None = None,
    checkpoints: CheckpointConfig | None = None,
    dead_letter: TwoPhaseCommitSink[Any] | None = None,
    select: Mapping[str, Sequence[str]] | None = None,
    staging: bool | str = False,
    write_by: WriteBy = "auto",
    listeners: Sequence[Listener] = (),
    interceptors: Sequence[Interceptor] = (),
    override: Override | Sequence[Override] = (),
) -> ExactlyOnce:
    """Make the callable for ``foreachBatch``.

    Args:
        sinks: one or more; every batch becomes visible in all of them or in none.
        checkpoint_location: the query's ``checkpointLocation``. None: found from the query that makes the call.
        checkpoints: how checkpoints are made: timeouts, retries, retention, history.
        dead_letter: a sink for records about bad rows: a KafkaSink with a topic. No other sink gets a row that one of them can
            never take. None: such a row stops the query, and no part of its batch is visible.
        select: by sink name, the SQL expressions that make its columns, such as
            ``{"events": ["CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"]}``; other sinks use the batch's own columns.
        staging: keep each task's rows until its transactions are proven, so that a decided batch whose transactions timed out is
            completed under any plan (rule 9). True: beside the checkpoint. A path: there. The driver and every worker must
            share it.
        write_by: who writes a batch. ``"auto"``: the driver if the batch is expected to fit into 16 MiB, else the tasks.
            ``DriverUpTo(max_bytes)``: the same with another limit. ``"driver"``, ``"tasks"``: always the driver, or
            always the tasks.
        listeners: they receive each checkpoint; see :class:`twopc.Listener`.
        interceptors: further actions with each batch, the first one outermost: :class:`~twopc.integration.operate.Savepoints`,
            :class:`~twopc.integration.operate.SourceProgress`, :class:`~twopc.integration.migrate.TakeOver`.
        override: permits what would otherwise be refused: :class:`~twopc.EndQuery`, :class:`~twopc.AdoptQuery`,
            :class:`~twopc.ResumeAt`, :class:`~twopc.Abandon`,
            :class:`~twopc.AddSink`, or several of them.

    Raises:
        ConfigurationError: an argument is invalid or contradicts another; or this process uses Spark Connect.
    """
    require_classic_mode()
    hide_functions()
    location = None if checkpoint_location is None else str(checkpoint_location)  # people pass a Path, too
    if location is not None and not location.strip():
        raise ConfigurationError(
            "exactly_once(checkpoint_location=''): pass the query's checkpointLocation, or omit the argument"
        )
    options = Options(
        checkpoints=CheckpointConfig() if checkpoints is None else checkpoints,
        dead_letter=dead_letter,
        select={} if select is None else select,
        staging=staging,
        write_by=write_by,
        listeners=listeners,
        interceptors=tuple(interceptors),
        overrides=Overrides.of(override),
    )
    options.require_fitting(sinks)
    for interceptor in options.interceptors:
        interceptor.require_fitting([sink.name for sink in sinks])
    if not pyspark.__version__.startswith(tuple(f"{version}." for version in _PROVEN_SPARKS)):
        logger.warning(
            "this release was not tested on Spark %s, only on %s: before you rely on it, kill one of your queries with "
            "twopc.testing",
            pyspark.__version__,
            ", ".join(_PROVEN_SPARKS),
        )
    everyone = participants(sinks, options)
    if options.dead_letter is not None:
        options = replace(options, dead_letter=options.dead_letter.beside(everyone))
    return ExactlyOnce([sink.beside(everyone) for sink in sinks], location, options)


class ExactlyOnce:
    """Spark calls it with each batch, in the driver, in the query's own thread."""

    def __init__(
        self, sinks: Sequence[TwoPhaseCommitSink[Any]], checkpoint_location: str | None, options: Options
    ) -> None:
        self._sinks = sinks
        self._location = checkpoint_location
        self._options = options
        context = SparkContext._active_spark_context  # noqa: SLF001 - the public function would start one
        if context is not None:
            history_of(context)  # records a moment before the query: no earlier job has computed its batches
        self._writer: RunWriter | None = None
        self._changing = threading.Lock()  # two queries that share the object by mistake call at the same time

    def __call__(self, frames: Frames, batch_id: int) -> None:
        """Make one batch visible in every sink exactly once; returning proves it. Call it once for every batch.

        Args:
            frames: the batch, or a DataFrame made from it, for all sinks; or a dictionary with a DataFrame for each sink's
                name, and None for a sink that gets nothing from this batch. A DataFrame is evaluated once, even if
                several sinks take it.
            batch_id: the number that Spark passed with the batch.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``; the query stops with it.
        """
        try:
            self._write(frames, batch_id)
        except TwoPhaseCommitError as error:
            # Spark shows the traceback before the message. To keep the message easy to find, the rest is in the log.
            logger.exception("batch %s failed; the query stops", batch_id)
            raise error.with_traceback(None) from None

    def _write(self, frames: Frames, batch_id: int) -> None:
        given = any_frame(frames)
        if given is None:
            by_frame(frames, self._sinks, batch_id)  # raises an error: there is nothing to write
            raise AssertionError("a batch without a DataFrame")
        writer = self._open_writer(given.sparkSession)
        query = writer.run.query
        number = require_number(batch_id, query)
        batch = InterceptedBatch(frames, number, writer.location, query.run_id)
        pass_through(self._options.interceptors, batch, lambda passed: self._write_once(writer, passed, number))

    def _write_once(self, writer: RunWriter, frames: Frames, number: int) -> None:
        run = writer.run
        batch_frames = by_frame(frames, self._sinks, number)
        call = Call(number, tuple(one.frame for one in batch_frames))
        run.take(call, writer)
        writer.write(batch_frames, number)
        run.last_call = replace(call, frames=None)

    def close(self) -> None:
        """Close this query's connections after it has ended; an error or a new run does so, too. Ends no transaction."""
        writer = self._writer
        if writer is None:
            return
        writer.close()
        if not writer.run.query.is_active:
            drop(writer.run)
            self._writer = None

    def _open_writer(self, session: SparkSession) -> RunWriter:
        """Open the writer of the run that makes this call, unless it is open. Closes the writer of an earlier run.

        Raises:
            ConfigurationError: the checkpoint, or this object, belongs to another query, or no query's own thread makes the call.
        """
        with self._changing:
            previous, context = self._writer, session.sparkContext
            if previous is not None and previous.run.query.makes_this_call():
                return previous
            named = None
            if self._location is not None:
                files = open_files(context, self._location)
                named = GivenCheckpoint(files.location, checkpoint.query_id(files))
            run = enter_run(session, named)
            if previous is not None:
                _require_ended(previous.run.query, run.query)
                previous.close()
            location = run.query.checkpoint_location if self._location is None else self._location
            self._writer = RunWriter(run, context, location, self._sinks, self._options)
            return self._writer


def _require_ended(previous: RunningQuery, present: RunningQuery) -> None:
    if previous.query_id != present.query_id and previous.is_active:
        raise ConfigurationError(
            f"query {present.query_id} calls an object of exactly_once() of query {previous.query_id}, which is still running. "
            "This call wrote nothing. Make one object for each query, with its own sinks"
        )
