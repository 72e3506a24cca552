"""Commit one batch in all sinks with a global two-phase commit transaction.

:meth:`Coordinator.process` calls these steps in order: :meth:`~BatchTransaction.next_step` consults the recovery table,
:meth:`~BatchTransaction.prepare` is phase one, :meth:`~BatchTransaction.decide` is the commit point, and
:meth:`~BatchTransaction.commit` is phase two.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from twopc import records, refusals, repair, unproven
from twopc.attempt import Evidence
from twopc.batch import Batch, locate
from twopc.crash_points import crash_point
from twopc.engine import Publish, Repair, Work, Write
from twopc.errors import (
    CheckpointExpiredError,
    CommitBlockedError,
    InDoubtError,
    RetriableError,
    TwoPhaseCommitError,
    release,
)
from twopc.recovery import Step, lookup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.attempt import Attempt, Place
    from twopc.batch import Position
    from twopc.driver_run import DriverRun
    from twopc.engine import Engine, Mode
    from twopc.participants import Handles, ScanStart
    from twopc.pending import Pending
    from twopc.records import Record, TaskReport
    from twopc.recovery import Case

logger = logging.getLogger(__name__)

#: After losses, a batch is written again at most this many times. After that, only a restart tries again.
_MAX_LOSSES: Final = 3
_REPAIRS: Final = frozenset({Step.REPAIR, Step.PUBLISH})
_AFTER_A_LOSS: Final = _REPAIRS | {Step.REWRITE}
#: These errors, but not the classes derived from them, say themselves what has become of the batch.
_SAYING: Final = (CommitBlockedError, InDoubtError)


@dataclass(frozen=True)
class Prepared:
    """The result of phase one. The decision is based on this result. ``handles`` are decoded from the tasks' reports."""

    step: Step
    attempt: Attempt
    tasks: tuple[TaskReport, ...]
    handles: Handles
    scan_start: ScanStart


class BatchTransaction:
    """The global transaction for one batch. Each object is used once, by one thread."""

    def __init__(self, run: DriverRun, batch: Batch, engine: Engine, pending: Pending) -> None:
        self._run = run
        self._pending = pending
        self._participants = run.setup.participants
        self._batch = batch
        self._engine = engine
        self._judged = run.view
        self._losses = 0
        self._is_evaluated = False
        self._may_be_open = False
        self._prepared: Handles = {}
        self._known = ""  # a sentence for errors: what is known about the batch, beyond the current attempt

    def next_step(self) -> Step:
        """Look the batch up in the recovery table. Changes nothing.

        Raises:
            RefusedStartError, DecisionLogDamagedError, CommitBlockedError, InDoubtError: the table says to stop the query.
            DecisionInDoubtError: the log never acknowledged an earlier decision from this run.
        """
        run, self._known = self._run, ""
        if run.doubt is not None:  # only a restart can read the decision's outcome (rule 12)
            raise run.doubt
        view = self._judged = run.view
        position = locate(view, self._batch, run.setup.settings.overrides)
        staged = repair.all_staged(view.decision, run.lost, run.setup.staging)
        case = lookup(view.status, run.outcome, position, staged=staged, abandoned=run.is_abandoned)
        if case.step in _AFTER_A_LOSS and self._losses == _MAX_LOSSES:
            raise self._in_doubt(unproven.LOST_AGAIN)
        if case.step.stops:
            raise self._stop(case, position)
        return case.step

    @contextlib.contextmanager
    def ending_what_is_open(self) -> Iterator[None]:
        """If the ``with`` block fails, end the batch's open transactions, but only those that are certainly undecided.

        An open transaction would block every reader of the output until the next start. Transactions that have been
        decided, or may have been, stay open.

        The code that raises an error knows only this attempt. So this method adds to the error what is known about the batch.
        """
        try:
            yield
        except BaseException as error:
            if self._may_be_open:
                self._end_what_is_open(error)
            if self._known and isinstance(error, TwoPhaseCommitError) and type(error) not in _SAYING:
                error.args = (f"{error}. {self._known}",)
            raise

    def abandon(self) -> None:
        """Record that the user abandons the rest of the last decision.

        Raises:
            FatalError, FencedError, RetriableError, DecisionInDoubtError: see :meth:`DriverRun.append`.
        """
        self._known = self._decided_before()
        self._run.abandon(self._judged)

    # -- phase one -----------------------------------------------------------------------------------------------------

    def prepare(self, step: Step) -> Prepared:
        """Pre-commit in every task, collect the handles, and confirm each one (rule 3).

        Raises:
            RetriableError, FatalError: nothing is decided, and the prepared transactions have been ended.
            InDoubtError: the lost rows cannot be written again.
            DecisionInDoubtError: the record of an adoption was never acknowledged; nothing is decided.
        """
        self._losses += step in _AFTER_A_LOSS
        if step in _REPAIRS:
            self._known = self._decided_before()
        if step is Step.REPAIR:
            prepared = self._replay_lost()
        elif step is Step.PUBLISH:
            prepared = self._publish_lost()
        else:
            self._record_adoption()
            prepared = self._attempt_repeatedly(step, self._batch, Write())
        if step in _REPAIRS:
            lost = {key: self._run.handles[key] for key in self._run.lost}
            self._participants.require_same_destinations(self._run.decision.batch_id, lost, prepared.handles)
        self._pending.prepared(step.value, prepared.tasks, prepared.handles)
        crash_point("driver.confirmed")
        return prepared

    def _record_adoption(self) -> None:
        """Record an adopted query's first batch before it is attempted.

        The user's function may catch the error of a failed batch. The engine then continues with the next batch. AdoptQuery
        permits any first batch. Without this record, the next batch would count as the first batch, and the failed batch would
        be lost.
        """
        run = self._run
        if run.adopts(self._batch.query_id):
            # Bind before the record is written, so that the log cannot move (rule 11).
            run.setup.binding.bind(run.bound, run.log_epoch)
            self._judged = run.open(self._begin(), self._judged)

    def _replay_lost(self) -> Prepared:
        """Replay the batch and write its lost rows again. The replay may assign these rows to different tasks (rule 9)."""
        run, lost = self._run, self._run.lost
        direct = frozenset(task.frame_name for task in run.decision.tasks if task.is_direct)
        order: dict[Place, Place] = {}
        for _ in range(_MAX_LOSSES):
            wanted = repair.lost_places(run.decision, lost, order)
            mode = Repair(wanted, repair.first_task(run.decision), direct)
            prepared = self._attempt_repeatedly(Step.REPAIR, self._batch, mode)
            found = repair.match_rows(run.decision, prepared.tasks, expected=order)
            if found is None:
                raise self._in_doubt(unproven.OTHER_ROWS)
            if wanted == repair.lost_places(run.decision, lost, found):
                tasks = repair.as_decided(run.decision, lost, prepared.tasks, found)
                if tasks is None:
                    raise self._in_doubt(unproven.OTHER_ROWS)
                return replace(prepared, tasks=tasks, handles=self._participants.decode(tasks))
            self._end_what_is_open()  # these rows belong to other transactions of the decision
            order = found
        raise self._in_doubt(unproven.OTHER_ORDERS)

    def _publish_lost(self) -> Prepared:
        """Write the last decision's lost rows again, from the files that its tasks staged."""
        decision, lost = self._run.decision, self._run.lost
        batch = Batch(decision.query_id, decision.batch_id, decision.offsets, self._batch.offsets_of)
        return self._attempt_repeatedly(Step.PUBLISH, batch, Publish(lost, repair.lost_tasks(decision, lost)))

    def _attempt_repeatedly(self, step: Step, batch: Batch, mode: Mode) -> Prepared:
        allowed = self._run.setup.settings.max_attempts
        for number in range(1, allowed):
            try:
                return self._attempt(step, batch, mode)
            except RetriableError as error:
                batch_id = self._batch.batch_id
                logger.warning(
                    "attempt %d of %d to write batch %d failed. Retrying. Cause: %s", number, allowed, batch_id, error
                )
                self._pending.attempt_failed(error)
                self._end_what_is_open(error)
                release(error)
        return self._attempt(step, batch, mode)

    def _attempt(self, step: Step, batch: Batch, mode: Mode) -> Prepared:
        """Let the tasks write and pre-commit the rows once, then confirm every handle."""
        run = self._run
        work = Work(
            batch=batch,
            attempt=run.next_attempt(),
            driver_epochs=run.driver_epochs,
            committed_through=run.committed_through,
            mode=mode,
            timeout_ms=self._participants.prepare_timeout_ms,
            pending=self._pending,
        )
        self._pending.attempting(work.timeout_ms)
        began = time.monotonic()
        self._may_be_open = True
        scan_start = self._participants.begin_attempt()
        reports = self._engine.prepare(work)
        self._is_evaluated |= not isinstance(mode, Publish)
        tasks = tuple(sorted(reports, key=lambda task: task.partition))
        handles = self._prepared = self._participants.decode(tasks)
        crash_point("driver.prepared")
        self._pending.enter("confirm")
        self._participants.confirm(handles, (time.monotonic() - began) * 1000)
        return Prepared(step, work.attempt, tasks, handles, scan_start)

    def _end_what_is_open(self, error: BaseException | None = None) -> None:
        """End the transactions that attempts left open.

        If a transaction cannot be ended, only log that error, because the caller needs the original error.
        """
        prepared, self._prepared = self._prepared, {}
        try:
            if isinstance(error, CheckpointExpiredError):
                prepared = prepared or self._participants.decode(error.late)
            with contextlib.ExitStack() as ending:
                ending.callback(self._run.sweep)
                ending.callback(self._participants.abort, prepared)  # runs before the sweep: it needs no listing
        except Exception as second:  # noqa: BLE001 - see above
            text = (
                "batch %d: some open transactions could not be aborted. The next start or the transaction timeout will abort "
                "them. Cause: %r"
            )
            logger.warning(text, self._batch.batch_id, second)
            release(second)

    # -- the commit point, and phase two -------------------------------------------------------------------------------

    def decide(self, prepared: Prepared) -> None:
        """Write the decision as one record, which is durable when this method returns.

        Raises:
            FencedError: another driver owns the sinks now; nothing was decided.
            FatalError: another call decided the batch at the same time; this call decided nothing.
            RetriableError: nothing was decided.
            DecisionInDoubtError: the outcome is unknown, and only a restart can learn it (rule 12).
        """
        run = self._run
        self._pending.enter("decide")
        if prepared.step in _REPAIRS:
            lost = run.lost
            self._append([self._repair(prepared)], prepared)
            run.handles = {key: handle for key, handle in run.handles.items() if key not in lost} | prepared.handles
            run.evidence = {key: found for key, found in run.evidence.items() if key not in lost}
        else:
            run.setup.binding.bind(run.bound, run.log_epoch)  # no earlier than the first decision (rule 11)
            if prepared.step is Step.REWRITE:
                self._compare_rows(prepared)
            self._append(self._decision(prepared), prepared)
            run.handles, run.evidence = dict(prepared.handles), {}
        # No transaction counts as proven without evidence. If the commit is cut short, the new transactions stay unproven.
        run.evidence |= dict.fromkeys(prepared.handles, Evidence.UNKNOWN)
        crash_point("driver.decided")

    def _compare_rows(self, prepared: Prepared) -> None:
        """Warn if a lost batch is decided again with a different row count. The decision is correct, but rows may be missing."""
        # Leave out a repair's tasks, because they rewrote rows that are already counted for other tasks of the decision.
        before = sum(task.rows for task in self._run.decision.tasks if not task.is_repair)
        now = sum(task.rows for task in prepared.tasks)
        if before != now:
            text = (
                "batch %d was decided with %d rows. All of its transactions were lost before they became visible, and Spark now "
                "returns %d rows for it. The batch continues with these rows. If there are fewer rows now, the source may no "
                "longer contain the missing rows. For example, retention may have deleted them, and failOnDataLoss=false hides "
                "this. Compare the source with the output, and write missing rows by other means"
            )
            logger.warning(text, self._batch.batch_id, before, now)

    def _append(self, records: list[Record], prepared: Prepared) -> None:
        self._prepared = {}  # from here on, these handles may already have been decided
        self._run.append(records, self._judged, prepared.handles)

    def commit(self) -> None:
        """Make every decided transaction visible, and record the evidence for the next step."""
        self._pending.enter("commit")
        self._known = f"Batch {self._run.decision.batch_id} is decided"
        self._run.commit()
        crash_point("driver.committed")

    def finish(self) -> None:
        """After the batch is visible, evaluate the plan if that has not happened yet, then tidy up."""
        self._known = f"All rows of batch {self._batch.batch_id} are visible. A restart does not write them again"
        if not self._is_evaluated:
            self._pending.enter("evaluate")
            self._engine.evaluate()
        self._pending.enter("finish")
        self._run.finish(self._batch.batch_id)

    def _decision(self, prepared: Prepared) -> list[Record]:
        batch, view = self._batch, self._run.view
        decision = records.Decision(
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            attempt=prepared.attempt,
            offsets=batch.offsets,
            tasks=prepared.tasks,
            scan_start=prepared.scan_start,
            kind=prepared.step.value,
            binding=self._run.setup.binding.number,
            times=batch.times,
        )
        highest = view.highest_batch_of(batch.query_id)
        if highest is not None and batch.batch_id <= highest + 1:
            return [decision]
        return [self._begin(), decision]

    def _begin(self) -> records.Begin:
        """Build the record that opens the log at a query's first batch, or at the first batch after a gap that the user names."""
        batch, view = self._batch, self._run.view
        prior = batch.offsets_of(batch.batch_id - 1) if batch.batch_id > 0 else None
        ends = None if view.begin is None or view.begin.query_id == batch.query_id else view.begin.query_id
        return records.Begin(query_id=batch.query_id, first_batch=batch.batch_id, prior_offsets=prior or (), ends=ends)

    def _repair(self, prepared: Prepared) -> records.Repair:
        if not prepared.handles.keys().isdisjoint(self._run.handles.keys() - self._run.lost):
            raise AssertionError("a repair may replace only lost transactions")
        decision = self._run.decision
        return records.Repair(
            query_id=decision.query_id,
            batch_id=decision.batch_id,
            attempt=prepared.attempt,
            tasks=tuple(task for task in prepared.tasks if task.handles),
            replaces=tuple(sorted(self._run.lost)),
        )

    # -- errors that stop the query ------------------------------------------------------------------------------------

    def _stop(self, case: Case, position: Position) -> Exception:
        run = self._run
        if case.step is Step.BLOCKED:
            return run.unproven(self._batch.query_id).blocked()
        if case.step is Step.IN_DOUBT:
            return self._in_doubt(unproven.LEFT_BEHIND)
        overrides = run.setup.settings.overrides
        return refusals.refused(position, run.view, self._batch, run.setup.log.name, overrides)

    def _decided_before(self) -> str:
        return f"Batch {self._run.decision.batch_id} was decided before this attempt, and some of its rows may already be visible"

    def _in_doubt(self, why: str) -> InDoubtError:
        return self._run.unproven(self._batch.query_id).in_doubt(why, self._run.setup.staging)
