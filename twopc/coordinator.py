"""Drive the protocol: :meth:`Coordinator.process` takes a batch through all of its steps."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from twopc.batch import Position, locate
from twopc.batch_transaction import BatchTransaction
from twopc.binding import Binding
from twopc.log_reader import view_of
from twopc.participants import Participants
from twopc.pending import Pending
from twopc.recovery import Outcome, Step
from twopc.refusals import damaged
from twopc.registers import RegisterLog, require_atomic
from twopc.settings import Settings, Setup
from twopc.start import recover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.batch import Batch
    from twopc.driver_run import DriverRun
    from twopc.engine import Engine, StagedRows
    from twopc.files import Files
    from twopc.sink import TwoPhaseCommitSink


class Coordinator:
    """Drives the protocol for one run of a query, across all of the query's sinks. Only one thread uses a coordinator.

    Args:
        sinks: the query's sinks. Every batch becomes visible in all sinks or in none.
        files: a directory next to the query's checkpoint. The directory contains the binding, and also the decisions if no sink
            provides a log.
        settings: the user's settings.
        staging: the store for rows that tasks retain until their transactions are proven; None if tasks retain no rows.

    Attributes:
        participants: the sinks, in a fixed order.
        log: the log that stores the decisions.
    """

    def __init__(
        self,
        sinks: Sequence[TwoPhaseCommitSink[Any]],
        files: Files,
        *,
        settings: Settings | None = None,
        staging: StagedRows | None = None,
    ) -> None:
        binding, own_log, settings = Binding(files), RegisterLog(files), settings or Settings()
        self.participants = Participants(sinks)
        with ExitStack() as opened:
            opened.callback(self.participants.close)
            self.log = binding.deciding(self.participants.decision_logs(), own_log, settings.overrides.end_query_ids)
            if self.log is own_log:
                require_atomic(files)
            opened.pop_all()
        self._setup = Setup(
            participants=self.participants,
            log=self.log,
            binding=binding,
            settings=settings,
            staging=staging,
            driver_run_id=uuid.uuid4().hex,
        )
        self._run: DriverRun | None = None

    @property
    def log_epoch(self) -> int:
        """This driver's epoch in the decision log. Every attempt's name contains the epoch. Read it only after recovery."""
        return self._recovered.log_epoch

    @property
    def _recovered(self) -> DriverRun:
        if self._run is None:
            raise AssertionError("recover comes first")
        return self._run

    def last_decided(self, query_id: str) -> int | None:
        """Return the last batch that the query has decided; None if there is no such batch. This method needs no recovery.

        Raises:
            TwoPhaseCommitError: the log is damaged, or cannot be read.
        """
        view = view_of(self.log, self.log.inspect)
        if view.damage is not None:
            raise damaged(view, self.log.name)
        return view.highest_batch_of(query_id)

    def is_undecided(self, batch: Batch) -> bool:
        """Whether the batch is undecided, all earlier batches are proven, and this driver's recovery is complete.

        If so, this driver may write the batch again under its current epoch. The driver must not acquire the sinks
        again, because that could fence a driver that has taken over.
        """
        run = self._run
        if run is None or run.doubt is not None or run.outcome is not Outcome.COMMITTED:
            return False
        highest = run.view.highest_batch_of(batch.query_id)
        return highest is None or highest < batch.batch_id

    def decided_sinks(self, batch: Batch) -> frozenset[str]:
        """Return the sinks whose DataFrames a decided batch contains. Call this method after recovery.

        Returns:
            the names of sinks, for each DataFrame at least one. Empty if the batch is undecided, or if one DataFrame was for all
            sinks.
        """
        view, overrides = self._recovered.view, self._setup.settings.overrides
        if view.decision is None or locate(view, batch, overrides) is not Position.SAME:
            return frozenset()
        tasks = view.decision.tasks
        if any(not task.frame_name for task in tasks):
            return frozenset()
        return frozenset(name for task in tasks for name in (task.frame_name, *task.handles))

    def process(self, batch: Batch, engine: Engine, pending: Pending | None = None) -> None:
        """Make the batch visible in every sink, exactly once.

        If this method returns without an error, the batch is proven visible.

        ``pending`` records the events for the listeners (:meth:`twopc.listeners.Listeners.watching`).

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``. No batch is ever decided in part.
        """
        pending = pending or Pending()
        try:
            self._process(batch, engine, pending)
        finally:
            pending.swept(self.participants.take_orphans_ended())

    def _process(self, batch: Batch, engine: Engine, pending: Pending) -> None:
        run = self.start(batch, pending)
        transaction = BatchTransaction(run, batch, engine, pending)
        with transaction.ending_what_is_open():  # ends the batch's open transactions after any error
            while (step := transaction.next_step()) is not Step.FINISH:  # the recovery table; a refusal raises an error
                if step is Step.ABANDON:
                    transaction.abandon()  # one durable record; the table reads it immediately
                    continue
                prepared = transaction.prepare(step)  # phase one: write, rewrite, repair, or publish staged rows
                transaction.decide(prepared)  # COMMIT POINT: one durable record
                transaction.commit()  # phase two: repeated until every commit is proven
            transaction.finish()  # evaluate the plan if that has not happened, sweep orphans, truncate the log

    def start(self, batch: Batch, pending: Pending) -> DriverRun:
        """Recover, unless this coordinator has recovered already.

        Raises:
            TwoPhaseCommitError: see :meth:`recover`.
        """
        return self._run or self.recover(batch, pending)

    def recover(self, batch: Batch, pending: Pending | None = None) -> DriverRun:
        """Recover: fence the previous driver, read the log, commit the last decision again, and end every undecided transaction.

        :meth:`process` calls this method with the run's first batch.

        Raises:
            TwoPhaseCommitError: the start was refused or failed. A retry is safe.
        """
        pending = pending or Pending()
        try:
            self._run = recover(self._setup, batch, pending)
        finally:
            pending.swept(self.participants.take_orphans_ended())
        return self._run

    def close(self) -> None:
        """Release connections. Open transactions are not ended."""
        with ExitStack() as closing:
            closing.callback(self.log.close)
            closing.callback(self.participants.close)
