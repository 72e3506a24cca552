"""A driver after recovery: its epochs, what the log has decided, and what is proven of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twopc.attempt import Attempt
from twopc.crash_points import crash_point
from twopc.errors import DecisionInDoubtError, RetriableError
from twopc.log_view import fold_more
from twopc.records import Truncation
from twopc.recovery import Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import TaskKey
    from twopc.batch import Batch
    from twopc.binding import Binding, Bound
    from twopc.decision_log import DecisionLog
    from twopc.handle import Evidence
    from twopc.log_view import LogView
    from twopc.participants import Handles, Participants
    from twopc.records import Decision, Record
    from twopc.settings import Settings
    from twopc.staged_rows import StagedRows

logger = logging.getLogger(__name__)


class Run:
    """What one driver holds from recovery to its end. Exists only once recovery has succeeded.

    Attributes:
        participants: the sinks.
        settings: what the user has set.
        staging: the rows that tasks keep until they are proven, if they do.
        log_epoch: this driver's epoch in the decision log; part of every attempt's name.
        driver_epochs: by sink name.
        view: what the log says now.
        handles: the handle of every transaction of the last decision, decoded once.
        evidence: what is proven of each of them.
        committed_through: the highest batch of which every transaction is proven; -1: none.
    """

    def __init__(  # noqa: PLR0913 - keyword-only: everything that recovery has established
        self,
        *,
        participants: Participants,
        log: DecisionLog,
        binding: Binding,
        bound: Bound,
        settings: Settings,
        staging: StagedRows | None,
        log_epoch: int,
        driver_epochs: dict[str, int],
        view: LogView,
        handles: Handles,
        evidence: dict[TaskKey, Evidence],
        batch: Batch,
    ) -> None:
        self.participants = participants
        self.settings = settings
        self.staging = staging
        self.log_epoch = log_epoch
        self.driver_epochs = driver_epochs
        self.view = view
        self.handles = handles
        self.evidence = evidence
        self._log = log
        self._binding = binding
        self._bound = bound
        self._attempts = 0
        self._doubt: DecisionInDoubtError | None = None
        highest = view.highest_batch
        is_ours = view.begin is not None and view.begin.query_id == batch.query_id
        self.committed_through = (
            highest if is_ours and highest is not None and self.outcome is Outcome.COMMITTED else -1
        )

    @property
    def log_name(self) -> str:
        """The deciding log's name, for messages."""
        return self._log.name

    @property
    def outcome(self) -> Outcome:
        """What became of the last decision."""
        return outcome_of(self.evidence.values())

    @property
    def decision(self) -> Decision:
        """The last decision, with its repairs."""
        if self.view.decision is None:
            raise AssertionError("there is no decision to act on")
        return self.view.decision

    def which(self, evidence: Evidence) -> frozenset[TaskKey]:
        """The transactions of the last decision with this evidence."""
        return frozenset(key for key, found in self.evidence.items() if found is evidence)

    def next_attempt(self) -> Attempt:
        """A name that no attempt has had before."""
        self._attempts += 1
        return Attempt(self.log_epoch, self._attempts)

    def require_no_doubt(self) -> None:
        """Nothing is decided after a decision whose outcome is unknown (rule 12).

        Raises:
            DecisionInDoubtError: a former decision of this run was not answered; only a restart finds out.
        """
        if self._doubt is not None:
            raise self._doubt

    def bind(self) -> None:
        """Bind the checkpoint to its sinks (rule 11), with the first decision and not before."""
        self._binding.bind(self._bound)

    def decide(self, records: Sequence[Record]) -> None:
        """Write a decision: the commit point, durable when this returns.

        Raises:
            FencedError, RetriableError, DecisionInDoubtError: see :meth:`DecisionLog.append`.
        """
        self._append(records)

    def commit(self) -> Outcome:
        """Commit the last decision in every sink. May be repeated; returns what is proven now."""
        batch_id, scan_start = self.decision.batch_id, self.decision.scan_start
        self.evidence = self.participants.commit(batch_id, self.handles, scan_start)
        return self.outcome

    def sweep(self) -> None:
        """End every open transaction that is not decided."""
        self.participants.sweep(self.handles)

    def finish(self, batch_id: int) -> None:
        """A batch is proven: sweep its orphans, and drop what only older batches needed."""
        self.sweep()
        self.committed_through = batch_id
        if self.staging is not None:
            self.staging.release(self.log_epoch, batch_id)
        self._truncate()
        crash_point("driver.swept")

    def _append(self, records: Sequence[Record]) -> None:
        try:
            offset = self._log.append(records)
        except DecisionInDoubtError as error:
            self._doubt = error
            raise
        self.view = fold_more(self.view, offset, records)

    def _truncate(self) -> None:
        """Keep ``keep_batches`` decisions. Waits until there are twice as many, so that it costs next to nothing."""
        view, keep = self.view, self.settings.keep_batches
        if len(view.kept) < 2 * keep or view.begin is None:
            return
        log_start, oldest = view.kept[-keep]
        try:
            self._append([Truncation(log_start=log_start, begin=view.begin, ended=tuple(sorted(view.ended)))])
        except RetriableError as error:
            logger.warning("%s is not truncated now, the next batch tries again: %s", self._log.name, error)
            return
        crash_point("driver.truncating")
        self._log.truncate(log_start)
        self.participants.forget(oldest.scan_start)
