"""One batch over all sinks: the global transaction of the two-phase commit.

:meth:`Coordinator.process` calls its steps in order: :meth:`~BatchTransaction.next_step` asks the recovery table,
:meth:`~BatchTransaction.prepare` is phase one, :meth:`~BatchTransaction.decide` the commit point,
:meth:`~BatchTransaction.commit` phase two.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from twopc import refusals, repair
from twopc.batch import locate
from twopc.crash_points import crash_point
from twopc.engine import Work
from twopc.errors import RetriableError
from twopc.handle import Evidence
from twopc.records import Begin, Decision, Repair
from twopc.recovery import Outcome, Step, lookup
from twopc.state import BatchState, move_batch

if TYPE_CHECKING:
    from twopc.attempt import Attempt, TaskKey
    from twopc.batch import Batch, Position
    from twopc.engine import Engine
    from twopc.errors import InDoubtError
    from twopc.participants import Handles, ScanStart
    from twopc.records import Record, TaskReport
    from twopc.recovery import Case
    from twopc.run import Run

logger = logging.getLogger(__name__)

#: How often one batch is written again after losses before the rest is left to a restart.
_MAX_LOSSES: Final = 3
_AFTER_A_LOSS: Final = frozenset({Step.REWRITE, Step.REPAIR, Step.PUBLISH})
_REPAIRS: Final = frozenset({Step.REPAIR, Step.PUBLISH})


@dataclass(frozen=True)
class Prepared:
    """What phase one brings to the decision.

    Attributes:
        step: how it was prepared.
        attempt: names the attempt.
        tasks: the report of every task, stored handles included.
        handles: the same handles, decoded.
        scan_start: by sink, where the evidence of these transactions begins.
    """

    step: Step
    attempt: Attempt
    tasks: tuple[TaskReport, ...]
    handles: Handles
    scan_start: ScanStart


class BatchTransaction:
    """The global transaction of one batch. Used once, by one thread.

    Attributes:
        state: where the batch stands.
    """

    def __init__(self, run: Run, batch: Batch, engine: Engine) -> None:
        self._run = run
        self._batch = batch
        self._engine = engine
        self._losses = 0
        self._is_evaluated = False
        self.state = BatchState.UNDECIDED

    def next_step(self) -> Step:
        """Look the batch up in the recovery table.

        Raises:
            RefusedStartError, DecisionLogDamagedError, CommitBlockedError, InDoubtError: the table stops the query.
            DecisionInDoubtError: an earlier decision of this run was not answered.
        """
        run = self._run
        run.require_no_doubt()
        position = locate(run.view, self._batch, run.settings.overrides)
        staged = repair.all_staged(run.view.decision, run.which(Evidence.ABORTED), run.staging)
        case = lookup(run.view.status, run.outcome, position, staged=staged)
        self._losses += case.step in _AFTER_A_LOSS
        if self._losses > _MAX_LOSSES:
            raise self._in_doubt(refusals.LOST_AGAIN)
        if case.step.stops:
            raise self._stop(case, position)
        return case.step

    # -- phase one -----------------------------------------------------------------------------------------------------

    def prepare(self, step: Step) -> Prepared:
        """Pre-commit in every task, collect the handles, confirm each (rule 3).

        Raises:
            RetriableError, FatalError: nothing is decided, and what was prepared is being ended.
            InDoubtError: what was lost cannot be written again.
        """
        if step is Step.REPAIR:
            prepared = self._replay_lost()
        elif step is Step.PUBLISH:
            prepared = self._publish_staged()
        else:
            prepared = self._attempt(step, only_tasks=None)
        if self.state is BatchState.COMMITTED:
            self.state = BatchState.UNDECIDED  # that was the last batch, completed from staged rows; now comes this one
        self.state = move_batch(self.state, BatchState.PREPARED)
        crash_point("driver.confirmed")
        return prepared

    def _attempt(self, step: Step, *, only_tasks: frozenset[TaskKey] | None) -> Prepared:
        """Run the tasks, again after errors that may pass."""
        run = self._run
        for remaining in reversed(range(run.settings.max_attempts)):
            attempt = run.next_attempt()
            try:
                return self._attempt_once(step, attempt, only_tasks)
            except RetriableError as error:
                if not remaining:
                    raise
                logger.warning("attempt %s at batch %d failed, retrying: %s", attempt, self._batch.batch_id, error)
        raise AssertionError("unreachable: the last attempt raises")

    def _attempt_once(self, step: Step, attempt: Attempt, only_tasks: frozenset[TaskKey] | None) -> Prepared:
        run = self._run
        handles: Handles = {}
        work = Work(
            batch=self._batch,
            attempt=attempt,
            driver_epochs=run.driver_epochs,
            committed_through=run.committed_through,
            only_tasks=only_tasks,
            timeout_ms=run.participants.prepare_timeout_ms,
        )
        began = time.monotonic()
        try:
            scan_start = run.participants.begin_attempt()
            tasks = tuple(sorted(self._engine.prepare(work), key=lambda task: task.partition))
            handles = run.participants.decode(tasks)
            crash_point("driver.prepared")
            run.participants.confirm(handles, _age_ms(began))
        except BaseException:
            run.participants.abort(handles)
            run.sweep()  # whatever else the attempt left open would hold back every reader of the output
            raise
        self._is_evaluated = True
        return Prepared(step, attempt, tasks, handles, scan_start)

    def _replay_lost(self) -> Prepared:
        """Write what was lost from the replay, wherever the replay has it (rule 9)."""
        run, lost = self._run, self._run.which(Evidence.ABORTED)
        order: dict[int, int] = {}
        for _ in range(_MAX_LOSSES):
            only_tasks = frozenset((name, order.get(partition, partition)) for name, partition in lost)
            prepared = self._attempt(Step.REPAIR, only_tasks=only_tasks)
            found = repair.match_rows(run.decision, prepared.tasks, expected=order)
            if found is None:
                run.sweep()
                raise self._in_doubt(refusals.OTHER_ROWS)
            if only_tasks == {(name, found[partition]) for name, partition in lost}:
                decided = {there: here for here, there in found.items()}
                handles = {(name, decided[partition]): handle for (name, partition), handle in prepared.handles.items()}
                return replace(prepared, tasks=repair.as_decided(prepared.tasks, found), handles=handles)
            run.sweep()  # what was written belongs to other tasks of the decision
            order = found
        raise self._in_doubt(refusals.OTHER_ORDERS)

    def _publish_staged(self) -> Prepared:
        """Write what was lost from the staged rows, in this process, whatever the plan would give today."""
        run, lost, attempt = self._run, self._run.which(Evidence.ABORTED), self._run.next_attempt()
        if run.staging is None:
            raise AssertionError("nothing was staged")
        began = time.monotonic()
        try:
            tasks = repair.publish(
                run.decision,
                lost,
                run.staging,
                sinks=run.participants.sinks,
                attempt=attempt,
                driver_epochs=run.driver_epochs,
                committed_through=run.committed_through,
            )
            handles = run.participants.decode(tasks)
            run.participants.confirm(handles, _age_ms(began))
        except BaseException:
            run.sweep()
            raise
        return Prepared(Step.PUBLISH, attempt, tasks, handles, {})

    # -- the commit point, and phase two -------------------------------------------------------------------------------

    def decide(self, prepared: Prepared) -> None:
        """Write the decision: one record, durable when this returns.

        Raises:
            FencedError: another driver owns the sinks now; nothing was decided.
            RetriableError: nothing was decided.
            DecisionInDoubtError: it is not known whether it was; only a restart finds out (rule 12).
        """
        run = self._run
        if prepared.step in _REPAIRS:
            run.decide([self._repair(prepared)])
            run.handles |= prepared.handles
        else:
            run.bind()
            run.decide(self._decision(prepared))
            run.handles, run.evidence = dict(prepared.handles), {}
        # Nothing of it is proven until it is proven, even if the commit is cut short.
        run.evidence |= dict.fromkeys(prepared.handles, Evidence.UNKNOWN)
        self.state = move_batch(self.state, BatchState.DECIDED)
        crash_point("driver.decided")

    def commit(self) -> None:
        """Make every decided transaction visible, and note what is proven. The next step judges it."""
        outcome = self._run.commit()
        if outcome is not Outcome.UNKNOWN:
            self.state = move_batch(
                self.state, BatchState.COMMITTED if outcome is Outcome.COMMITTED else BatchState.LOST
            )
        crash_point("driver.committed")

    def finish(self) -> None:
        """The batch is visible: evaluate the plan if nothing has yet, then tidy up."""
        if not self._is_evaluated:
            self._engine.evaluate()
        self._run.finish(self._batch.batch_id)

    def _decision(self, prepared: Prepared) -> list[Record]:
        batch, begin = self._batch, self._run.view.begin
        records: list[Record] = []
        if begin is None or begin.query_id != batch.query_id:
            prior = batch.offsets_of(batch.batch_id - 1) if batch.batch_id > 0 else None
            records.append(
                Begin(
                    query_id=batch.query_id,
                    first_batch=batch.batch_id,
                    prior_offsets=prior or (),
                    ends=None if begin is None else begin.query_id,
                )
            )
        records.append(
            Decision(
                query_id=batch.query_id,
                batch_id=batch.batch_id,
                attempt=prepared.attempt,
                offsets=batch.offsets,
                tasks=prepared.tasks,
                scan_start=prepared.scan_start,
                kind=prepared.step.value,
            )
        )
        return records

    def _repair(self, prepared: Prepared) -> Repair:
        if prepared.handles.keys() != self._run.which(Evidence.ABORTED):
            raise AssertionError("a repair replaces exactly what was lost")
        decision = self._run.decision
        tasks = tuple(task for task in prepared.tasks if task.handles)
        return Repair(query_id=decision.query_id, batch_id=decision.batch_id, attempt=prepared.attempt, tasks=tasks)

    # -- what stops it -------------------------------------------------------------------------------------------------

    def _stop(self, case: Case, position: Position) -> Exception:
        run = self._run
        if case.step is Step.BLOCKED:
            unproven = [
                run.handles[key].transaction for key, found in run.evidence.items() if found is Evidence.UNKNOWN
            ]
            return refusals.blocked(run.decision.batch_id, unproven, run.participants.blockers())
        if case.step is Step.IN_DOUBT:
            return self._in_doubt(refusals.LEFT_BEHIND)
        return refusals.refused(case, position, run.view, self._batch, run.log_name)

    def _in_doubt(self, why: str) -> InDoubtError:
        run = self._run
        return refusals.in_doubt(run.decision.batch_id, run.handles, run.evidence, why)


def _age_ms(began: float) -> float:
    return (time.monotonic() - began) * 1000
