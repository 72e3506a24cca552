"""Write the batches in one run of a query. The writer and its connections live as long as the run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from twopc.batch import Position
from twopc.checkpointing import PASSING, Checkpoints
from twopc.coordinator import Coordinator
from twopc.errors import CheckpointExpiredError, ConfigurationError, RefusedStartError
from twopc.integration.history.writer import writer_for
from twopc.integration.spark import checkpoint
from twopc.integration.spark.built_ins import BuiltIns
from twopc.integration.spark.direct import BatchInput, Direct, Way
from twopc.integration.spark.former_writers import require_adoptable, warn_of_adoption
from twopc.integration.spark.frame import arrange
from twopc.integration.spark.handed_over import check_once_swept, require_taken_over
from twopc.integration.spark.jobs import is_of_cluster
from twopc.integration.spark.mode import Attempt
from twopc.integration.spark.options import Options, participants
from twopc.integration.spark.output_mode import warn_of_whole_results
from twopc.integration.spark.retention import decisions_kept
from twopc.integration.spark.several import require_decided_sinks
from twopc.integration.spark.skipped import skipped_before
from twopc.integration.spark.slow_batches import slow_batch_advice
from twopc.integration.spark.staging import Staging
from twopc.integration.spark.staging_location import as_uri, below
from twopc.listeners import Listeners
from twopc.refusals import DEADLINE
from twopc.settings import Settings
from twopc.tried_files import tried

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from twopc.batch import Batch
    from twopc.driver_run import DriverRun
    from twopc.files import Files
    from twopc.integration.spark.frame import Rows
    from twopc.integration.spark.mode import Mode
    from twopc.integration.spark.query_runs import QueryRun
    from twopc.integration.spark.several import Call, SinkFrame
    from twopc.pending import Pending
    from twopc.sink import TwoPhaseCommitSink


class RunWriter:
    """Writes the batches of one run. Only the query's thread uses this object.

    Attributes:
        run: the run.
        location: the checkpoint location.

    Args:
        run: the run.
        mode: how this process reaches Spark.
        location: the checkpoint location.
        sinks: the sinks that receive rows.
        options: the user's options.
    """

    def __init__(
        self,
        run: QueryRun,
        mode: Mode,
        location: str,
        sinks: Sequence[TwoPhaseCommitSink[Any]],
        options: Options,
    ) -> None:
        self.run = run
        self._mode = mode
        self.location = location
        self._participants = participants(sinks, options)
        self._options = options
        self._coordinator: Coordinator | None = None
        self._checkpoints: Checkpoints | None = None
        self._direct = Direct(options.write_by)
        self._built_ins = BuiltIns()
        self._last_batch: Batch | None = None
        self._last_allowed: int | None = None  #: see require_taken_over()

    def write(self, call: Call) -> None:
        """Make a batch visible.

        Raises:
            TwoPhaseCommitError: the batch is not known to be visible. The next call begins with recovery.
        """
        files, query = self._mode.open_files(self.location), self.run.query
        batch = checkpoint.read_batch(files, query.query_id, call.batch_id)
        try:
            with self._mode.resolved(call.frames) as found:
                self._open_checkpoints().complete(
                    batch,
                    lambda pending, failed: self._attempt(files, call, found, batch, pending, is_repeated=failed > 0),
                    lambda error: self._may_repeat(error, batch),
                )
        except BaseException:
            self.close()  # so that the next call begins with recovery
            raise
        self._last_batch = batch
        if self._last_allowed == batch.batch_id:
            self.close()  # so that the next call begins with the check of the hand-over

    def other_data(self, frame: DataFrame) -> str | None:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        return self._mode.other_data(frame)

    def close(self) -> None:
        """Close the connections, but do not end any transaction."""
        if self._coordinator is not None:
            self._coordinator.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._coordinator = self._checkpoints = None

    def _attempt(  # noqa: PLR0913 - the parts of an attempt
        self,
        files: Files,
        call: Call,
        frames: Sequence[SinkFrame],
        batch: Batch,
        pending: Pending,
        *,
        is_repeated: bool,
    ) -> None:
        session = frames[0].frame.sparkSession
        if not self._mode.copies_functions:
            self._built_ins = BuiltIns()
        pending.measured(self._mode.look(files, frames, batch))
        staging = self._open_staging(files, batch.query_id)
        is_first, run = self._coordinator is None, self.run
        # Recover before the columns are checked. A decided transaction may expire while each start rejects the columns. Only
        # recovery finds out what an earlier call decided.
        coordinator = self._coordinator or self._recovered(session, staging, batch, pending)
        require_decided_sinks(call, coordinator.decided_sinks(batch))
        rows = [self._arrange(one, is_repeated=is_repeated) for one in frames]
        if is_first:
            pending.enter("recover")  # the recovery table says what to do with the batch
        run.begin(call, self._mode.same_rows, is_undecided=coordinator.is_undecided(batch))
        attempt = Attempt(
            runs=run.among_others,
            shuffles=run.shuffles,
            rows=rows,
            sinks=self._participants,
            staging=staging,
            way=Way(self._direct, self._input_of(batch), self._mode.is_stateless),
            options=self._options,
        )
        engine = self._mode.engine(files, batch, attempt)
        try:
            coordinator.process(batch, engine, pending)
        except CheckpointExpiredError as error:
            own = self._mode.open_files(f"{self.location}/twopc")
            advice = slow_batch_advice(files.location, own, batch, is_undecided=coordinator.is_undecided(batch))
            raise CheckpointExpiredError(f"{error}. {advice}", late=error.late) from error

    def _may_repeat(self, error: Exception, batch: Batch) -> bool:
        may_pass = isinstance(error, PASSING) or is_of_cluster(error)
        return may_pass and self._coordinator is not None and self._coordinator.is_undecided(batch)

    def _open_checkpoints(self) -> Checkpoints:
        if self._checkpoints is None:
            own_files = self._mode.open_files(f"{self.location}/twopc")
            writer = writer_for(own_files, is_wanted=self._options.checkpoints.history)
            listeners = Listeners([*([] if writer is None else [writer]), *self._options.listeners])
            self._checkpoints = Checkpoints(
                self._options.checkpoints, listeners, self.run.query.run_id, self._mode.pause
            )
        return self._checkpoints

    def _open_staging(self, files: Files, query_id: str) -> Staging | None:
        shared = self._options.staging
        if shared is False:
            return None
        if shared is True:
            return Staging(as_uri(f"{files.location}/twopc/staging"))
        return Staging(below(shared, query_id))

    def _arrange(self, one: SinkFrame, *, is_repeated: bool) -> Rows:
        letters = self._options.dead_letter
        rows = arrange(
            one.name,
            # A retry uses a new plan, because Spark keeps a failed broadcast in the old plan and would raise its error
            # again.
            one.frame.select("*") if is_repeated else one.frame,
            participants(one.sinks, self._options),
            select=self._options.select,
            dead_letter=None if letters is None else letters.name,
        )
        self._built_ins.require(one.frame.sparkSession, rows.functions)
        return rows

    def _input_of(self, batch: Batch) -> BatchInput:
        last = self._last_batch
        if last is not None and last.batch_id == batch.batch_id - 1:
            return BatchInput(last.offsets, batch.offsets)
        return BatchInput(batch.offsets_of(batch.batch_id - 1) if batch.batch_id else None, batch.offsets)

    def _recovered(self, session: SparkSession, staging: Staging | None, batch: Batch, pending: Pending) -> Coordinator:
        pending.enter("connect")
        own_files = tried(self._mode.open_files(f"{self.location}/twopc"))
        coordinator = self._coordinator = self._connect(session, staging, own_files)
        decided = partial(coordinator.last_decided, batch.query_id)
        self._last_allowed = require_taken_over(own_files, batch, decided)
        if self._options.overrides.adopt_query_id == batch.query_id:
            require_adoptable(self._mode.open_files(self.location), batch, decided)
        run = self._started(coordinator, own_files, batch, pending)
        if run.adopts(batch.query_id):
            warn_of_adoption(self._mode.open_files(self.location), own_files, batch)
        warn_of_whole_results(self._mode, self._participants)
        pending.enter("check")
        return coordinator

    def _started(self, coordinator: Coordinator, own_files: Files, batch: Batch, pending: Pending) -> DriverRun:
        """Start, and check that since a hand-over, no batch was skipped, and no other writer has written.

        The start itself notices a gap only if the log contains a record of the query. Even then, its advice would also run
        batches again that the old query has written.
        """
        try:
            run = coordinator.start(batch, pending)
        except RefusedStartError as error:
            if error.case == Position.GAP.value:
                text = skipped_before(own_files, batch, coordinator.last_decided(batch.query_id))
                if text is not None:
                    raise ConfigurationError(f"{text}. {DEADLINE}") from error
            raise
        decided = run.view.highest_batch_of(batch.query_id)
        text = skipped_before(own_files, batch, decided)
        if text is not None:
            raise ConfigurationError(text)
        # If this query has decided the batch, its own rows are in the output.
        if decided is None or decided < batch.batch_id:
            check_once_swept()
        return run

    def _connect(self, session: SparkSession, staging: Staging | None, own_files: Files) -> Coordinator:
        """Make the coordinator. A run's batches share the coordinator until a batch fails."""
        settings = Settings(
            overrides=self._options.overrides,
            max_attempts=self._options.checkpoints.max_attempts,
            keep_batches=decisions_kept(session, self._options.checkpoints.num_retained),
        )
        return Coordinator(self._participants, own_files, settings=settings, staging=staging)
