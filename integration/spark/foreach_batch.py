"""Make a streaming query's output exactly-once, with a callable for ``foreachBatch``: ``exactly_once(sink, …)``."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql.utils import is_remote

from twopc.checkpoint_config import CheckpointConfig
from twopc.errors import ConfigurationError, TwoPhaseCommitError, release
from twopc.integration.spark.answered import answered
from twopc.integration.spark.batch_number import require_number
from twopc.integration.spark.installed import HERE
from twopc.integration.spark.interceptors import InterceptedBatch, pass_through
from twopc.integration.spark.options import Options, participants
from twopc.integration.spark.py4j_log import hide_functions
from twopc.integration.spark.several import Call, Passed, any_frame, by_frame, taken_once
from twopc.override import Overrides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.integration.spark.direct import WriteBy
    from twopc.integration.spark.installed import Installed
    from twopc.integration.spark.interceptors import Interceptor
    from twopc.integration.spark.mode import Calls
    from twopc.integration.spark.run_writer import RunWriter
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
        sinks: one or more; every batch becomes visible in all sinks or in no sink.
        checkpoint_location: the query's ``checkpointLocation``. None means the calling query's location.
        checkpoints: timeouts, retries, retention and history of the query's checkpoints.
        dead_letter: a KafkaSink with a topic, for records about bad rows. If one sink can never accept a row, no other
            sink receives the row either. Without a dead-letter sink (None), a bad row stops the query, and no part of
            its batch is visible.
        select: maps a sink's name to the SQL expressions that make the sink's columns, such as ``{"events": ["CAST(id AS
            STRING) AS key", "to_json(struct(*)) AS value"]}``; other sinks use the batch's columns.
        staging: keep each task's rows until the task's transactions are proven. A decided batch whose transactions timed out can
            then be completed with any plan (rule 9). True keeps the rows next to the checkpoint; a path keeps them in that
            directory. The driver and every worker must share the directory.
        write_by: who writes a batch. ``"auto"``: the driver if the batch is expected to fit into 16 MiB, else the
            tasks. ``DriverUpTo(max_bytes)``: like ``"auto"``, but with a different limit. ``"driver"``: always the
            driver. ``"tasks"``: always the tasks.
        listeners: objects that are notified of each checkpoint; see :class:`twopc.Listener`.
        interceptors: further actions for each batch. The first interceptor is the outermost. Examples are
            :class:`~twopc.integration.operate.Savepoints`, :class:`~twopc.integration.operate.SourceProgress`,
            :class:`~twopc.integration.migrate.TakeOver`.
        override: permits an otherwise rejected operation: :class:`~twopc.EndQuery`, :class:`~twopc.AdoptQuery`,
            :class:`~twopc.ResumeAt`, :class:`~twopc.Abandon`, :class:`~twopc.AddSink`, or several of them.

    Raises:
        ConfigurationError: an argument is invalid, contradicts another argument, or is not available under Spark Connect.
    """
    hide_functions()
    location = None if checkpoint_location is None else str(checkpoint_location)  # users may pass a Path
    if location is not None and not location.strip():
        raise ConfigurationError(
            "exactly_once(checkpoint_location=''): the path is empty. Pass the query's checkpointLocation, or omit the "
            "argument"
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
            "this release was not tested on Spark %s, only on %s. Before you rely on this Spark version, test it by "
            "killing one of your queries with twopc.testing",
            pyspark.__version__,
            ", ".join(_PROVEN_SPARKS),
        )
    everyone = participants(sinks, options)
    if options.dead_letter is not None:
        options = replace(options, dead_letter=options.dead_letter.beside(everyone))
    return ExactlyOnce([sink.beside(everyone) for sink in sinks], location, options)


class ExactlyOnce:
    """Writes each batch that Spark passes to it. Spark waits for each call.

    Spark calls the object in the driver or, under Spark Connect, in one of the server's processes. The object opens no
    connection before its first call. A pickled copy, such as the one that Spark Connect makes, acts as a separate driver.
    """

    def __init__(
        self, sinks: Sequence[TwoPhaseCommitSink[Any]], checkpoint_location: str | None, options: Options
    ) -> None:
        self._sinks = sinks
        self._location = checkpoint_location
        self._options = options
        self._calls = _calls(sinks, checkpoint_location, options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments, and which code made them."""
        return _copy, (HERE, self._sinks, self._location, self._options)

    def __call__(self, frames: Frames, batch_id: int) -> None:
        """Make one batch visible in every sink exactly once. Call this method once for each batch.

        When the call returns, every commit is proven. If the function runs again for the batch and passes the same
        DataFrame objects, the second call writes nothing.

        Args:
            frames: one DataFrame for all sinks (the batch, or a DataFrame made from the batch), or a dictionary. The dictionary
                maps each sink's name to a DataFrame. Use None for a sink that should not receive any rows from this batch. A
                DataFrame is evaluated once, even if several sinks use it.
            batch_id: the number that Spark passed with the batch.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``. The error stops the query. In a classic session, a
                :class:`~twopc.errors.DecisionInDoubtError` replaces any exception that is not an ``Exception``.
        """
        then = "No row is lost or duplicated: a restart completes the batch if it was decided, and otherwise writes it again"
        try:
            with answered(batch_id, then=then):
                self._write(frames, batch_id)
        except TwoPhaseCommitError as error:
            # Spark shows a traceback before the message. The traceback goes only to the log, so that the message is easy to
            # find.
            logger.exception("batch %s failed, so the query stops", batch_id)
            release(error)  # the user's function may catch the error and continue
            raise error.with_traceback(None) from None

    def _write(self, frames: Frames, batch_id: int) -> None:
        frames = taken_once(frames)
        given = any_frame(frames)
        if given is None:
            by_frame(frames, self._sinks, batch_id)  # raises an error, because no DataFrame was passed
            raise AssertionError("a batch without a DataFrame")
        writer: RunWriter = self._calls.open_writer(given.sparkSession)
        query = writer.run.query
        number = require_number(batch_id, query)
        sinks = participants(self._sinks, self._options)
        given_frames = Passed.of(frames, self._sinks, number)
        if writer.run.is_repeat(given_frames, writer):
            return
        batch = InterceptedBatch(frames, number, writer.location, query.run_id, sinks, self._options.select)
        pass_through(self._options.interceptors, batch, lambda passed: self._write_once(writer, passed, given_frames))
        writer.run.returned(given_frames)

    def _write_once(self, writer: RunWriter, frames: Frames, given: Passed) -> None:
        number = given.batch_id
        call = Call(number, tuple(by_frame(frames, self._sinks, number)), self._options.select)
        with writer.run.alone(number):
            if writer.run.take(call, writer):
                writer.write(call)
                writer.run.finish(call, given, writer)

    def close(self) -> None:
        """Close this query's connections after the query has stopped. This method does not end any transaction.

        If a call is still writing a batch, the call closes the connections once it has written the batch.

        An error or a new run also closes the connections.
        """
        self._calls.close()


def _copy(
    client: Installed, sinks: Sequence[TwoPhaseCommitSink[Any]], location: str | None, options: Options
) -> ExactlyOnce:
    """Make a copy in another process, such as a process of Spark Connect's server.

    Raises:
        ConfigurationError: this process runs different code. The arguments' fields may have another meaning there.
    """
    HERE.require_same(client, "client")
    return ExactlyOnce(sinks, location, options)


def _calls(sinks: Sequence[TwoPhaseCommitSink[Any]], location: str | None, options: Options) -> Calls:
    # Each mode has its own package, because the classic part of PySpark may be missing from a Spark Connect client.
    if is_remote():
        from twopc.integration.connect.calls import ConnectCalls  # noqa: PLC0415 - see above

        return ConnectCalls(sinks, location, options)
    from twopc.integration.spark.classic import ClassicCalls  # noqa: PLC0415 - see above

    return ClassicCalls(sinks, location, options)
