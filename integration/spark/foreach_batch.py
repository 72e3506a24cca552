"""``exactly_once``: the callable for ``foreachBatch`` that makes a streaming query's output exactly-once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from integration.spark import checkpoint
from integration.spark.engine import SparkEngine
from integration.spark.frame import arrange
from integration.spark.hadoop_files import open_files
from integration.spark.options import Options, checked_options, participants
from integration.spark.staging import Staging, open_location
from twopc.batch import Overrides
from twopc.coordinator import Coordinator
from twopc.errors import ConfigurationError
from twopc.files import Subdirectory
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    from integration.spark.frame import Rows
    from twopc.files import Files
    from twopc.sink import TwoPhaseCommitSink

_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"  # a streaming query's run id is its job group
_RETAINED: Final = "spark.sql.streaming.minBatchesToRetain"
_RETAINED_DEFAULT: Final = "100"


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
    options = checked_options(sinks, str(checkpoint_location), staging=staging, settings=settings)
    return ExactlyOnce(sinks, str(checkpoint_location), staging=staging, options=options)


class ExactlyOnce:
    """Spark calls it with each batch: in the driver, in the query's own thread."""

    def __init__(
        self, sinks: Sequence[TwoPhaseCommitSink[Any]], checkpoint_location: str, *, staging: bool, options: Options
    ) -> None:
        self._sinks = participants(sinks, options)
        self._location = checkpoint_location
        self._has_staging = staging
        self._options = options
        self._run_id: str | None = None
        self._coordinator: Coordinator | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Make one batch visible in every sink exactly once; returning proves it.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``; the query stops with it.
        """
        context = frame.sparkSession.sparkContext
        files = open_files(context, self._location)
        query_id = self._require_own_checkpoint(context, files)
        batch = checkpoint.read_batch(files, query_id, batch_id)
        staging = self._open_staging(files)
        rows = self._arrange(frame)
        engine = SparkEngine(frame, rows, self._sinks, staging, timeout_ms=self._options.prepare_timeout_ms)
        try:
            self._coordinator_of_run(context, files, staging).process(batch, engine)
        except BaseException:
            self.close()  # so that the next call begins with recovery
            raise

    def close(self) -> None:
        """Close this query's connections after it has ended; an error or a new run does so, too. Ends no transaction."""
        if self._coordinator is not None:
            self._coordinator.close()
        self._coordinator = None

    def _require_own_checkpoint(self, context: SparkContext, files: Files) -> str:
        """Returns the query's id.

        Raises:
            ConfigurationError: the checkpoint belongs to another query.
        """
        found, running = checkpoint.query_id(files), context.getLocalProperty(_QUERY_ID)
        if found != running:
            raise ConfigurationError(
                f"checkpoint_location={self._location!r} belongs to query {found}, but this is query {running}: give "
                "exactly_once() the same path as .option('checkpointLocation', …)"
            )
        return found

    def _open_staging(self, files: Files) -> Staging | None:
        if not self._has_staging:
            return None
        location = self._options.staging_location or f"{files.location}/twopc/staging"
        open_location(location)  # raises here, not in a task
        return Staging(location)

    def _arrange(self, frame: DataFrame) -> Rows:
        letters = self._options.dead_letter
        return arrange(
            frame, self._sinks, select=self._options.select, dead_letter=None if letters is None else letters.name
        )

    def _coordinator_of_run(self, context: SparkContext, files: Files, staging: Staging | None) -> Coordinator:
        """The same coordinator for all batches of a run of the query; a restarted query gets a new one."""
        run_id = context.getLocalProperty(_RUN_ID)
        if self._coordinator is not None and run_id == self._run_id:
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
        self._run_id = run_id
        return self._coordinator
