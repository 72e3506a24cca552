"""The driver of the protocol. :meth:`Coordinator.process` is the whole flow of a checkpoint; the rest are its steps."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from twopc import repair
from twopc.attempt import Attempt, Claim, TaskKey
from twopc.batch import Batch, Position, locate
from twopc.binding import FORMAT as BINDING_FORMAT
from twopc.binding import Binding, Bound
from twopc.crash_points import crash_point
from twopc.engine import Engine, Snapshot, Work
from twopc.errors import DecisionInDoubtError, InDoubtError, RetriableError
from twopc.handle import Evidence
from twopc.log_view import LogView, fold, fold_more
from twopc.ownership import require_newest, require_no_other_master, require_not_driven_by_another
from twopc.records import Begin, Decision, Record, Repair, TaskReport, Truncation
from twopc.recovery import Action, Case, Outcome, lookup, outcome_of
from twopc.refusals import blocked, damaged, refusal
from twopc.registers import RegisterLog
from twopc.settings import Settings
from twopc.state import BatchState, move_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.committer import SinkCommitter
    from twopc.decision_log import DecisionLog
    from twopc.files import Files
    from twopc.repair import StagedRows
    from twopc.sink import TwoPhaseCommitSink


logger = logging.getLogger(__name__)

#: How often one call writes anew what it finds lost before it gives up and leaves the rest to a restart.
_MAX_LOSSES: Final = 3
_AFTER_A_LOSS: Final = frozenset({Action.REWRITE, Action.REPAIR, Action.PUBLISH})


class Coordinator:
    """Drives one run of one query over all its sinks. Made for a run, used by one thread.

    Attributes:
        state: where the batch of the current or last :meth:`process` stands.
    """

    def __init__(
        self,
        sinks: Sequence[TwoPhaseCommitSink[Any]],
        files: Files,
        *,
        settings: Settings | None = None,
        staging: StagedRows | None = None,
    ) -> None:
        made = {sink.name: sink.create_committer() for sink in sinks}
        # Those with a log first, and so in every run: what is in it may be read by the time that the others show theirs.
        ordered = sorted(sinks, key=lambda sink: (made[sink.name].decision_log() is None, sink.name))
        self._sinks = {sink.name: sink for sink in ordered}
        self._committers: dict[str, SinkCommitter[Any]] = {name: made[name] for name in self._sinks}
        self._files = files
        self._settings = settings or Settings()
        self._staging = staging
        self._timeout_ms = min((s.prepare_timeout_ms for s in sinks if s.prepare_timeout_ms), default=None)
        self._binding = Binding(files)
        self._log = self._choose_log()
        self._run = uuid.uuid4().hex  # one for all: a repeated take-over must not throw out a successor
        self._view: LogView | None = None
        self._doubt: DecisionInDoubtError | None = None
        self._bound: Bound  # from initialize_state on
        self._drove: dict[str, str | None] = {}
        self._evidence: dict[TaskKey, Evidence] = {}
        self._driver_epochs: dict[str, int] = {}
        self._log_epoch = -1
        self._counter = 0
        self._committed_through = -1
        self.state = BatchState.UNDECIDED

    # -- the flow ------------------------------------------------------------------------------------------------------

    def process(self, batch: Batch, engine: Engine) -> None:
        """Bring one batch to the point where every sink shows all of it, once. Returning is the proof of that.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors`` for what each kind means; nothing half-decided is left behind.
        """
        if self._doubt is not None:
            raise self._doubt  # rule 12: only a restart finds out, and nothing is decided before
        if self._view is None:
            self.initialize_state(batch)
        evaluated, losses = False, 0
        while True:
            case, position = self._lookup(batch)
            losses += case.action in _AFTER_A_LOSS
            if losses > _MAX_LOSSES:
                raise self._in_doubt(
                    f"again after each of {_MAX_LOSSES} attempts to write them anew; is the timeout too short?"
                )
            if case.action is Action.EVALUATE:
                if not evaluated:
                    engine.evaluate()
                self._settle(batch.batch_id)
                return
            if case.action in {Action.WRITE, Action.REWRITE}:
                self._decide(batch, self.snapshot_state(batch, engine), plan=case.action.value)
            elif case.action is Action.REPAIR:
                self._decide_repair(self._replay_lost(batch, engine))
            elif case.action is Action.PUBLISH:
                self._decide_repair(self._publish_staged())
            else:
                raise self._stop(case, position, batch)
            evaluated = evaluated or case.action is not Action.PUBLISH
            self.notify_checkpoint_complete()

    # -- step 0: recovery ----------------------------------------------------------------------------------------------

    def initialize_state(self, batch: Batch) -> None:
        """Take over: check read-only, fence, read what the log says now, check again, finish, sweep (rule 1)."""
        self._drove = {name: committer.inspect() for name, committer in self._committers.items()}
        require_not_driven_by_another(self._drove, batch, self._settings.overrides)
        self._binding.check(self._bound_now(), add_sink=self._settings.add_sink)
        decided = self._log.inspect()
        self._require_startable(fold(decided), batch)
        require_no_other_master(self._committers.values(), self._log, decided, batch, self._settings.overrides)
        crash_point("driver.inspected")

        claim = Claim(query_id=batch.query_id, run=self._run, deciding_log=self._log.name)
        self._log_epoch = self._log.acquire(claim)
        self._driver_epochs = {name: committer.acquire(claim) for name, committer in self._committers.items()}
        view = fold(self._log.read())
        crash_point("driver.acquired")

        self._bound = self._bound_now()
        self._binding.check(self._bound, add_sink=self._settings.add_sink)
        self._require_startable(view, batch)
        for name, committer in self._committers.items():
            found = committer.initialize_state(*self._decided_by(view, name))
            self._note(view, name, found)
        ours = view.begin is not None and view.begin.query_id == batch.query_id
        if ours and view.highest_batch is not None and outcome_of(self._evidence.values()) is Outcome.COMMITTED:
            self._committed_through = view.highest_batch
        self._view = view
        crash_point("driver.recovered")

    # -- steps 1 to 3 --------------------------------------------------------------------------------------------------

    def snapshot_state(self, batch: Batch, engine: Engine, *, only_tasks: frozenset[TaskKey] | None = None) -> Snapshot:
        """Pre-commit in every task, collect the handles, and confirm each (rule 3)."""
        if self.state in {BatchState.COMMITTED, BatchState.PREPARED}:
            self.state = BatchState.UNDECIDED  # a new batch, or an attempt that came to nothing
        for remaining in reversed(range(self._settings.max_attempts)):
            self._counter += 1
            work = Work(
                batch=batch,
                attempt=Attempt(self._log_epoch, self._counter),
                driver_epochs=self._driver_epochs,
                committed_through=self._committed_through,
                only_tasks=only_tasks,
                timeout_ms=self._timeout_ms,
            )
            tasks: Sequence[TaskReport] = ()
            began = time.monotonic()
            try:
                scan_start = {name: dict(committer.begin_attempt()) for name, committer in self._committers.items()}
                tasks = tuple(sorted(engine.prepare(work), key=lambda task: task.partition))
                crash_point("driver.prepared")
                self._confirm(tasks, began)
            except BaseException as error:
                for name, committer in self._committers.items():
                    committer.abort(self._handles(name, tasks))
                self._sweep()  # whatever else the attempt left open would hold back every reader of the output
                if not isinstance(error, RetriableError) or not remaining:
                    raise
                logger.warning("attempt %s at batch %d failed, trying again: %s", work.attempt, batch.batch_id, error)
                continue
            self.state = move_batch(self.state, BatchState.PREPARED)
            crash_point("driver.confirmed")
            return Snapshot(work.attempt, tasks, scan_start)
        raise AssertionError("unreachable: the last attempt raises")

    def _decide(self, batch: Batch, snapshot: Snapshot, *, plan: str) -> None:
        """The commit point: one record, durable when this returns."""
        self._binding.bind(self._bound)
        records: list[Record] = []
        begin = self._current.begin
        if begin is None or begin.query_id != batch.query_id:
            prior = batch.offsets_of(batch.batch_id - 1) if batch.batch_id > 0 else None
            ends = None if begin is None else begin.query_id
            records.append(
                Begin(query_id=batch.query_id, first_batch=batch.batch_id, prior_offsets=prior or (), ends=ends)
            )
        records.append(
            Decision(
                query_id=batch.query_id,
                batch_id=batch.batch_id,
                attempt=snapshot.attempt,
                offsets=batch.offsets,
                tasks=snapshot.tasks,
                scan_start=snapshot.scan_start,
                kind=plan,
            )
        )
        self._append(records)
        self._evidence = {}
        self._decided(snapshot.tasks)

    def _decide_repair(self, snapshot: Snapshot) -> None:
        decision = self._decision
        tasks = tuple(task for task in snapshot.tasks if task.handles)
        if {(name, task.partition) for task in tasks for name in task.handles} != self._lost():
            raise AssertionError("a repair replaces exactly what was lost")
        self._append(
            [Repair(query_id=decision.query_id, batch_id=decision.batch_id, attempt=snapshot.attempt, tasks=tasks)]
        )
        self._decided(tasks)

    def _decided(self, tasks: Sequence[TaskReport]) -> None:
        # From here on nothing is proven until it is proven: not even if the commit below is cut short.
        self._evidence |= {(name, task.partition): Evidence.UNKNOWN for task in tasks for name in task.handles}
        self.state = move_batch(self.state, BatchState.DECIDED)
        crash_point("driver.decided")

    def notify_checkpoint_complete(self) -> None:
        """Commit what is decided, all in flight together, until each is proven one way or the other."""
        for name, committer in self._committers.items():
            handles, scan_start = self._decided_by(self._current, name)
            self._note(
                self._current, name, committer.notify_checkpoint_complete(self._decision.batch_id, handles, scan_start)
            )
        outcome = outcome_of(self._evidence.values())
        if outcome is not Outcome.UNKNOWN:
            reached = BatchState.COMMITTED if outcome is Outcome.COMMITTED else BatchState.LOST
            self.state = move_batch(self.state, reached)
        crash_point("driver.committed")

    # -- the steps' small parts ----------------------------------------------------------------------------------------

    @property
    def _current(self) -> LogView:
        if self._view is None:
            raise AssertionError("initialize_state comes first")
        return self._view

    @property
    def _decision(self) -> Decision:
        if self._current.decision is None:
            raise AssertionError("there is no decision to act on")
        return self._current.decision

    def _choose_log(self) -> DecisionLog:
        logs: list[DecisionLog] = [log for c in self._committers.values() if (log := c.decision_log()) is not None]
        logs.append(RegisterLog(self._files))
        return next((log for log in logs if log.name == self._binding.log), logs[0])

    def _bound_now(self) -> Bound:
        sinks = {name: dict(committer.binding()) for name, committer in self._committers.items()}
        return Bound(format=BINDING_FORMAT, log=self._log.name, log_identity=self._log.identity(), sinks=sinks)

    def _lookup(self, batch: Batch) -> tuple[Case, Position]:
        position = locate(self._current, batch, self._settings.overrides)
        outcome = outcome_of(self._evidence.values())
        staged = self._staging is not None and repair.all_staged(self._current.decision, self._lost(), self._staging)
        return lookup(self._current.status, outcome, position, staged=staged), position

    def _require_startable(self, view: LogView, batch: Batch) -> None:
        position = locate(view, batch, self._settings.overrides)
        case = lookup(view.status, Outcome.COMMITTED, position, staged=False)
        if case.action in {Action.REFUSE, Action.DAMAGED}:
            raise self._stop(case, position, batch, view)
        require_newest(self._committers, self._drove, view, batch, self._settings.overrides)

    def _stop(self, case: Case, position: Position, batch: Batch, view: LogView | None = None) -> Exception:
        view = view or self._current
        if case.action is Action.REFUSE:
            return refusal(position, case.label, view, batch, self._log.name)
        if case.action is Action.DAMAGED:
            return damaged(view, self._log.name)
        if case.action is Action.BLOCKED:
            unproven = [self._name_of(slot) for slot, found in self._evidence.items() if found is Evidence.UNKNOWN]
            blockers = [what for committer in self._committers.values() for what in committer.blockers()]
            return blocked(self._decision.batch_id, unproven, blockers)
        return self._in_doubt("the engine has gone on, so there is no replay to write them from")

    def _in_doubt(self, why: str) -> InDoubtError:
        return repair.in_doubt(self._decision, self._evidence, self._name_of, why)

    def _append(self, records: list[Record]) -> None:
        try:
            offset = self._log.append(records)
        except DecisionInDoubtError as error:
            self._doubt = error
            raise
        self._view = fold_more(self._current, offset, records)

    def _handles(self, name: str, tasks: Sequence[TaskReport]) -> list[Any]:
        return [self._sinks[name].decode_handle(task.handles[name]) for task in tasks if name in task.handles]

    def _decided_by(self, view: LogView, name: str) -> tuple[list[Any], dict[str, Any]]:
        if view.decision is None:
            return [], {}
        return self._handles(name, view.decision.tasks), view.decision.scan_start.get(name, {})

    def _note(self, view: LogView, name: str, found: Any) -> None:
        tasks = view.decision.tasks if view.decision else ()
        self._evidence = {slot: proof for slot, proof in self._evidence.items() if slot[0] != name}
        for task in tasks:
            if name in task.handles:
                self._evidence[name, task.partition] = found[self._sinks[name].decode_handle(task.handles[name])]

    def _lost(self) -> frozenset[TaskKey]:
        return frozenset(slot for slot, found in self._evidence.items() if found is Evidence.ABORTED)

    def _name_of(self, slot: TaskKey) -> str:
        name, partition = slot
        task = next(task for task in self._decision.tasks if task.partition == partition)
        transaction: str = self._sinks[name].decode_handle(task.handles[name]).transaction
        return transaction

    def _replay_lost(self, batch: Batch, engine: Engine) -> Snapshot:
        """Write what was lost from the replay, wherever the replay has it (rule 9)."""
        lost = self._lost()
        order: dict[int, int] = {}
        for _ in range(_MAX_LOSSES):
            only_tasks = frozenset((name, order.get(partition, partition)) for name, partition in lost)
            snapshot = self.snapshot_state(batch, engine, only_tasks=only_tasks)
            try:
                found = repair.match_rows(self._current, snapshot.tasks, self._evidence, self._name_of, expected=order)
            except InDoubtError:
                self._sweep()
                raise
            if only_tasks == {(name, found[partition]) for name, partition in lost}:
                return replace(snapshot, tasks=repair.as_decided(snapshot.tasks, found))
            self._sweep()  # what was written belongs to other tasks of the decision
            order = found
        raise self._in_doubt("the replay gives the decided rows in another order each time")

    def _publish_staged(self) -> Snapshot:
        self._counter += 1
        attempt = Attempt(self._log_epoch, self._counter)
        if self._staging is None:
            raise AssertionError("nothing was staged")
        began = time.monotonic()
        try:
            tasks = repair.publish(
                self._decision,
                self._lost(),
                self._staging,
                sinks=self._sinks,
                attempt=attempt,
                driver_epochs=self._driver_epochs,
                committed_through=self._committed_through,
            )
            self._confirm(tasks, began)
        except BaseException:
            self._sweep()
            raise
        self.state = move_batch(self.state, BatchState.PREPARED)
        return Snapshot(attempt, tasks, {})

    def _confirm(self, tasks: Sequence[TaskReport], began: float) -> None:
        for name, committer in self._committers.items():
            committer.confirm(self._handles(name, tasks), (time.monotonic() - began) * 1000)

    def _sweep(self) -> None:
        for name, committer in self._committers.items():
            committer.recover_and_abort(self._decided_by(self._current, name)[0])

    def _settle(self, batch: int) -> None:
        """Every transaction of ``batch`` is proven: sweep its orphans, and drop what nobody needs any more."""
        self._sweep()
        self._committed_through = batch
        if self._staging is not None:
            self._staging.release(self._log_epoch, batch)
        self._truncate()
        crash_point("driver.swept")

    def _truncate(self) -> None:
        """Drop decisions beyond twice ``keep_batches``, down to ``keep_batches``: seldom, so that it costs nothing."""
        view, keep = self._current, self._settings.keep_batches
        if len(view.kept) < 2 * keep or view.begin is None:
            return
        log_start, oldest = view.kept[-keep]
        record = Truncation(log_start=log_start, begin=view.begin, ended=tuple(sorted(view.ended)))
        try:
            self._append([record])
        except RetriableError as error:
            logger.warning("the decision log keeps more than it needs until the next batch: %s", error)
            return
        crash_point("driver.truncating")
        self._log.truncate(log_start)
        for name, committer in self._committers.items():
            committer.forget(oldest.scan_start.get(name, {}))

    def close(self) -> None:
        """Release connections. Ends no transaction."""
        for committer in self._committers.values():
            committer.close()
        self._log.close()
