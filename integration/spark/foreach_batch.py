"""``exactly_once``: the callable for ``foreachBatch`` that makes a streaming query's output exactly-once."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from integration.spark import checkpoint as checkpoint_source
from integration.spark.engine import SparkEngine
from integration.spark.frame import arrange
from integration.spark.hadoop_files import open_files
from integration.spark.staging import Staging, open_location
from sinks.kafka import KafkaSink
from twopc.batch import Batch, Overrides
from twopc.coordinator import Coordinator
from twopc.errors import ConfigurationError
from twopc.files import Subdirectory
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    from twopc.files import Files
    from twopc.sink import TwoPhaseCommitSink

logger = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"  # the query's run id *is* its job group
_RETAINED: Final = "spark.sql.streaming.minBatchesToRetain"
_RETAINED_DEFAULT: Final = "100"
_ON_BAD_RECORD: Final = ("stop", "dead_letter")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``exactly_once`` takes besides its sinks.

    Attributes:
        staging_location: where rows are kept with ``staging=True``; by default beside the checkpoint. A path that the
            driver and every worker share.
        adopt_query_id: the id of a query whose checkpoint lived before the sink, to take it over from where it is.
        end_query_id: the id of the query that this one ends and replaces under the same sink name.
        add_sink: the name of a sink that joins a checkpoint which was bound without it.
        max_attempts: how often a batch is prepared before its error stops the query.
        prepare_timeout_ms: cancel an attempt that takes longer; by default as long as the sinks' transactions allow.
        select: for a sink's name the SQL expressions that make its columns, such as
            ``{"events": ["CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"]}``; others take the batch's own.
        on_bad_record: ``"stop"``: a row that a sink can never take stops the query, with nothing of its batch visible.
            ``"dead_letter"``: it is left out of every sink and goes to the sink ``dead_letter``, with the cause.
        dead_letter: a KafkaSink with a topic.
    """

    staging_location: str | None = None
    adopt_query_id: str | None = None
    end_query_id: str | None = None
    add_sink: str | None = None
    max_attempts: int = 3
    prepare_timeout_ms: float | None = None
    select: Mapping[str, Sequence[str]] = field(default_factory=dict)
    on_bad_record: str = "stop"
    dead_letter: KafkaSink | None = None


def exactly_once(
    *sinks: TwoPhaseCommitSink[Any],
    checkpoint_location: str,
    staging: bool = False,
    **settings: Any,
) -> ExactlyOnce:
    """Make the callable for ``foreachBatch``.

    Args:
        sinks: one or more; every batch becomes visible in all of them or in none.
        checkpoint_location: the same path as the query's own ``checkpointLocation``.
        staging: keep each task's rows until its transactions are proven, so that a decided batch whose transactions
            timed out is completed whatever the plan (rule 9).
        settings: see :class:`Options`.

    Raises:
        ConfigurationError: an argument is missing, unknown or contradicts another.
    """
    known = {field.name for field in fields(Options)}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigurationError(f"exactly_once({unknown[0]}=…) is not a setting; there are {', '.join(sorted(known))}")
    if not sinks:
        raise ConfigurationError("exactly_once() needs at least one sink")
    if not str(checkpoint_location).strip():
        raise ConfigurationError("exactly_once(checkpoint_location=''): give the query's checkpointLocation")
    options = Options(**settings)
    if options.staging_location is not None and not staging:
        raise ConfigurationError("exactly_once(staging_location=…) has no effect without staging=True")
    participants = _participants(sinks, options)
    unknown = sorted(set(options.select) - {sink.name for sink in sinks})
    if unknown:
        raise ConfigurationError(f"exactly_once(select=…): no sink is called {unknown[0]!r}")
    return ExactlyOnce(participants, str(checkpoint_location), staging=staging, options=options)


def _participants(sinks: tuple[TwoPhaseCommitSink[Any], ...], options: Options) -> tuple[TwoPhaseCommitSink[Any], ...]:
    if options.on_bad_record not in _ON_BAD_RECORD:
        raise ConfigurationError(
            f"exactly_once(on_bad_record={options.on_bad_record!r}): give one of {', '.join(map(repr, _ON_BAD_RECORD))}"
        )
    letters = options.dead_letter
    if (options.on_bad_record == "dead_letter") != (letters is not None):
        raise ConfigurationError(
            'exactly_once(): give on_bad_record="dead_letter" and dead_letter=KafkaSink(…), or neither'
        )
    if letters is not None and (not isinstance(letters, KafkaSink) or letters.topic is None):
        raise ConfigurationError("exactly_once(dead_letter=…): give a KafkaSink with a topic")
    found = sinks if letters is None else (*sinks, letters)
    names = [sink.name for sink in found]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"exactly_once(): two sinks have the same name in {names}; each needs its own")
    return found


class ExactlyOnce:
    """Called by Spark with each batch, in the driver, in the stream's own thread."""

    def __init__(
        self, sinks: tuple[TwoPhaseCommitSink[Any], ...], checkpoint_location: str, *, staging: bool, options: Options
    ) -> None:
        self._sinks = sinks
        self._location = checkpoint_location
        self._staged = staging
        self._options = options
        self._run: str | None = None
        self._coordinator: Coordinator | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Bring one batch to the point where every sink shows all of it, exactly once.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``; the query stops with it.
        """
        context = frame.sparkSession.sparkContext
        files = open_files(context, self._location)
        checkpoint = self._checkpoint(context, files, batch)
        staging = self._staging(files)
        letters = self._options.dead_letter
        rows = arrange(
            frame, self._sinks, select=self._options.select, dead_letter=None if letters is None else letters.name
        )
        engine = SparkEngine(frame, rows, self._sinks, staging, timeout_ms=self._options.prepare_timeout_ms)
        try:
            self._coordinator_of_run(context, files, staging).process(checkpoint, engine)
        except BaseException:
            self.close()  # whatever happened, the next call begins with recovery
            raise

    def close(self) -> None:
        """Release this query's connections once it has ended; an error or the next run does it, too. Ends no transaction."""
        if self._coordinator is not None:
            self._coordinator.close()
        self._coordinator = None

    def _checkpoint(self, context: SparkContext, files: Files, batch: int) -> Batch:
        query_id = checkpoint_source.query_id(files)
        query = context.getLocalProperty(_QUERY_ID)
        if query != query_id:
            raise ConfigurationError(
                f"checkpoint_location={self._location!r} belongs to query {query_id}, this is query {query}: give "
                "exactly_once() the same path as .option('checkpointLocation', …)"
            )
        offsets = checkpoint_source.source_offsets(files, batch)
        if offsets is None:
            raise ConfigurationError(f"{files.location}/offsets has no batch {batch}: is it this query's checkpoint?")
        return Batch(
            query_id=query_id,
            batch_id=batch,
            offsets=offsets,
            offsets_of=lambda other: checkpoint_source.source_offsets(files, other),
        )

    def _staging(self, files: Files) -> Staging | None:
        if not self._staged:
            return None
        location = self._options.staging_location or f"{files.location}/twopc/staging"
        open_location(location)
        return Staging(location)

    def _coordinator_of_run(self, context: SparkContext, files: Files, staging: Staging | None) -> Coordinator:
        run = context.getLocalProperty(_RUN_ID)
        if self._coordinator is not None and run == self._run:
            return self._coordinator
        self.close()
        retained = int(context.getConf().get(_RETAINED, _RETAINED_DEFAULT) or _RETAINED_DEFAULT)
        settings = Settings(
            overrides=Overrides(adopt_query_id=self._options.adopt_query_id, end_query_id=self._options.end_query_id),
            add_sink=self._options.add_sink,
            max_attempts=self._options.max_attempts,
            keep_batches=max(retained, int(_RETAINED_DEFAULT)),
        )
        self._coordinator = Coordinator(self._sinks, Subdirectory(files, "twopc"), settings=settings, staging=staging)
        self._run = run
        return self._coordinator
