"""The driver of the protocol. :meth:`Coordinator.process` is the whole flow of a checkpoint; the rest are its steps."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from twopc import repair
from twopc.binding import FORMAT as BINDING_FORMAT
from twopc.binding import Binding, Bound
from twopc.checkpoint import Checkpoint, Position, locate
from twopc.decision import Attempt, Begin, Decision, Record, Repair, TaskReport, Truncation
from twopc.engine import Engine, Slot, Snapshot, Work
from twopc.errors import DecisionInDoubtError, InDoubtError, RetriableError
from twopc.faults import point
from twopc.log_view import LogView, fold, fold_more
from twopc.masters import require_newest, require_no_other_master, require_not_driven_by_another
from twopc.recovery import Action, Case, Outcome, lookup, outcome_of
from twopc.refusals import blocked, damaged, refusal
from twopc.registers import RegisterLog
from twopc.settings import Settings
from twopc.sink import Claim, Evidence
from twopc.state import CheckpointState, move_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.decision import DecisionLog
    from twopc.files import Files
    from twopc.repair import StagedRows
    from twopc.sink import SinkCommitter, TwoPhaseCommitSink

__all__ = ["Coordinator", "Engine", "Settings", "Slot", "Work"]

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
        self._evidence: dict[Slot, Evidence] = {}
        self._incarnations: dict[str, int] = {}
        self._log_incarnation = -1
        self._counter = 0
        self._settled_through = -1
        self.state = CheckpointState.UNDECIDED

    # -- the flow ------------------------------------------------------------------------------------------------------

    def process(self, checkpoint: Checkpoint, engine: Engine) -> None:
        """Bring one batch to the point where every sink shows all of it, once. Returning is the proof of that.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors`` for what each kind means; nothing half-decided is left behind.
        """
        if self._doubt is not None:
            raise self._doubt  # rule 12: only a restart finds out, and nothing is decided before
        if self._view is None:
            self.initialize_state(checkpoint)
        evaluated, losses = False, 0
        while True:
            case, position = self._lookup(checkpoint)
            losses += case.action in _AFTER_A_LOSS
            if losses > _MAX_LOSSES:
                raise self._in_doubt(
                    f"again after each of {_MAX_LOSSES} attempts to write them anew; is the timeout too short?"
                )
            if case.action is Action.EVALUATE:
                if not evaluated:
                    engine.evaluate()
                self._settle(checkpoint.batch)
                return
            if case.action in {Action.WRITE, Action.REWRITE}:
                self._decide(checkpoint, self.snapshot_state(checkpoint, engine), plan=case.action.value)
            elif case.action is Action.REPAIR:
                self._decide_repair(self._replay_lost(checkpoint, engine))
            elif case.action is Action.PUBLISH:
                self._decide_repair(self._publish_staged())
            else:
                raise self._stop(case, position, checkpoint)
            evaluated = evaluated or case.action is not Action.PUBLISH
            self.notify_checkpoint_complete()

    # -- step 0: recovery ----------------------------------------------------------------------------------------------

    def initialize_state(self, checkpoint: Checkpoint) -> None:
        """Take over: check read-only, fence, read what the log says now, check again, finish, sweep (rule 1)."""
        self._drove = {name: committer.inspect() for name, committer in self._committers.items()}
        require_not_driven_by_another(self._drove, checkpoint, self._settings.permits)
        self._binding.check(self._bound_now(), add_sink=self._settings.add_sink)
        decided = self._log.inspect()
        self._require_startable(fold(decided), checkpoint)
        require_no_other_master(self._committers.values(), self._log, decided, checkpoint, self._settings.permits)
        point("driver.inspected")

        claim = Claim(lineage=checkpoint.lineage, run=self._run, deciding_log=self._log.name)
        self._log_incarnation = self._log.take_over(claim)
        self._incarnations = {name: committer.take_over(claim) for name, committer in self._committers.items()}
        view = fold(self._log.read())
        point("driver.taken_over")

        self._bound = self._bound_now()
        self._binding.check(self._bound, add_sink=self._settings.add_sink)
        self._require_startable(view, checkpoint)
        for name, committer in self._committers.items():
            found = committer.initialize_state(*self._decided_by(view, name))
            self._note(view, name, found)
        ours = view.begin is not None and view.begin.lineage == checkpoint.lineage
        if ours and view.highest_batch is not None and outcome_of(self._evidence.values()) is Outcome.COMMITTED:
            self._settled_through = view.highest_batch
        self._view = view
        point("driver.recovered")

    # -- steps 1 to 3 --------------------------------------------------------------------------------------------------

    def snapshot_state(
        self, checkpoint: Checkpoint, engine: Engine, *, only: frozenset[Slot] | None = None
    ) -> Snapshot:
        """Pre-commit in every task, collect the handles, and confirm each (rule 3)."""
        if self.state in {CheckpointState.COMMITTED, CheckpointState.PREPARED}:
            self.state = CheckpointState.UNDECIDED  # a new batch, or an attempt that came to nothing
        for remaining in reversed(range(self._settings.max_attempts)):
            self._counter += 1
            work = Work(
                checkpoint=checkpoint,
                attempt=Attempt(self._log_incarnation, self._counter),
                incarnations=self._incarnations,
                settled_through=self._settled_through,
                only=only,
                timeout_ms=self._timeout_ms,
            )
            tasks: Sequence[TaskReport] = ()
            began = time.monotonic()
            try:
                since = {name: dict(committer.begin_attempt()) for name, committer in self._committers.items()}
                tasks = tuple(sorted(engine.prepare(work), key=lambda task: task.partition))
                point("driver.prepared")
                self._confirm(tasks, began)
            except BaseException as error:
                for name, committer in self._committers.items():
                    committer.abort(self._handles(name, tasks))
                self._sweep()  # whatever else the attempt left open would hold back every reader of the output
                if not isinstance(error, RetriableError) or not remaining:
                    raise
                logger.warning("attempt %s at batch %d failed, trying again: %s", work.attempt, checkpoint.batch, error)
                continue
            self.state = move_checkpoint(self.state, CheckpointState.PREPARED)
            point("driver.confirmed")
            return Snapshot(work.attempt, tasks, since)
        raise AssertionError("unreachable: the last attempt raises")

    def _decide(self, checkpoint: Checkpoint, snapshot: Snapshot, *, plan: str) -> None:
        """The commit point: one record, durable when this returns."""
        self._binding.bind(self._bound)
        records: list[Record] = []
        begin = self._current.begin
        if begin is None or begin.lineage != checkpoint.lineage:
            prior = checkpoint.offsets_of(checkpoint.batch - 1) if checkpoint.batch > 0 else None
            ends = None if begin is None else begin.lineage
            records.append(
                Begin(lineage=checkpoint.lineage, first_batch=checkpoint.batch, prior_offsets=prior or (), ends=ends)
            )
        records.append(
            Decision(
                lineage=checkpoint.lineage,
                batch=checkpoint.batch,
                attempt=snapshot.attempt,
                offsets=checkpoint.offsets,
                tasks=snapshot.tasks,
                since=snapshot.since,
                plan=plan,
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
        self._append([Repair(lineage=decision.lineage, batch=decision.batch, attempt=snapshot.attempt, tasks=tasks)])
        self._decided(tasks)

    def _decided(self, tasks: Sequence[TaskReport]) -> None:
        # From here on nothing is proven until it is proven: not even if the commit below is cut short.
        self._evidence |= {(name, task.partition): Evidence.UNKNOWN for task in tasks for name in task.handles}
        self.state = move_checkpoint(self.state, CheckpointState.DECIDED)
        point("driver.decided")

    def notify_checkpoint_complete(self) -> None:
        """Commit what is decided, all in flight together, until each is proven one way or the other."""
        for name, committer in self._committers.items():
            handles, since = self._decided_by(self._current, name)
            self._note(self._current, name, committer.notify_checkpoint_complete(self._decision.batch, handles, since))
        outcome = outcome_of(self._evidence.values())
        if outcome is not Outcome.UNKNOWN:
            reached = CheckpointState.COMMITTED if outcome is Outcome.COMMITTED else CheckpointState.LOST
            self.state = move_checkpoint(self.state, reached)
        point("driver.committed")

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

    def _lookup(self, checkpoint: Checkpoint) -> tuple[Case, Position]:
        position = locate(self._current, checkpoint, self._settings.permits)
        outcome = outcome_of(self._evidence.values())
        staged = self._staging is not None and repair.all_staged(self._current.decision, self._lost(), self._staging)
        return lookup(self._current.status, outcome, position, staged=staged), position

    def _require_startable(self, view: LogView, checkpoint: Checkpoint) -> None:
        position = locate(view, checkpoint, self._settings.permits)
        case = lookup(view.status, Outcome.COMMITTED, position, staged=False)
        if case.action in {Action.REFUSE, Action.DAMAGED}:
            raise self._stop(case, position, checkpoint, view)
        require_newest(self._committers, self._drove, view, checkpoint, self._settings.permits)

    def _stop(self, case: Case, position: Position, checkpoint: Checkpoint, view: LogView | None = None) -> Exception:
        view = view or self._current
        if case.action is Action.REFUSE:
            return refusal(position, case.label, view, checkpoint, self._log.name)
        if case.action is Action.DAMAGED:
            return damaged(view, self._log.name)
        if case.action is Action.BLOCKED:
            unproven = [self._name_of(slot) for slot, found in self._evidence.items() if found is Evidence.UNKNOWN]
            obstacles = [what for committer in self._committers.values() for what in committer.obstacles()]
            return blocked(self._decision.batch, unproven, obstacles)
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
        return self._handles(name, view.decision.tasks), view.decision.since.get(name, {})

    def _note(self, view: LogView, name: str, found: Any) -> None:
        tasks = view.decision.tasks if view.decision else ()
        self._evidence = {slot: proof for slot, proof in self._evidence.items() if slot[0] != name}
        for task in tasks:
            if name in task.handles:
                self._evidence[name, task.partition] = found[self._sinks[name].decode_handle(task.handles[name])]

    def _lost(self) -> frozenset[Slot]:
        return frozenset(slot for slot, found in self._evidence.items() if found is Evidence.ABORTED)

    def _name_of(self, slot: Slot) -> str:
        name, partition = slot
        task = next(task for task in self._decision.tasks if task.partition == partition)
        transaction: str = self._sinks[name].decode_handle(task.handles[name]).transaction
        return transaction

    def _replay_lost(self, checkpoint: Checkpoint, engine: Engine) -> Snapshot:
        """Write what was lost from the replay, wherever the replay has it (rule 9)."""
        lost = self._lost()
        order: dict[int, int] = {}
        for _ in range(_MAX_LOSSES):
            only = frozenset((name, order.get(partition, partition)) for name, partition in lost)
            snapshot = self.snapshot_state(checkpoint, engine, only=only)
            try:
                found = repair.match_rows(self._current, snapshot.tasks, self._evidence, self._name_of, expected=order)
            except InDoubtError:
                self._sweep()
                raise
            if only == {(name, found[partition]) for name, partition in lost}:
                return replace(snapshot, tasks=repair.as_decided(snapshot.tasks, found))
            self._sweep()  # what was written belongs to other tasks of the decision
            order = found
        raise self._in_doubt("the replay gives the decided rows in another order each time")

    def _publish_staged(self) -> Snapshot:
        self._counter += 1
        attempt = Attempt(self._log_incarnation, self._counter)
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
                incarnations=self._incarnations,
                settled_through=self._settled_through,
            )
            self._confirm(tasks, began)
        except BaseException:
            self._sweep()
            raise
        self.state = move_checkpoint(self.state, CheckpointState.PREPARED)
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
        self._settled_through = batch
        if self._staging is not None:
            self._staging.settle(self._log_incarnation, batch)
        self._truncate()
        point("driver.swept")

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
        point("driver.truncating")
        self._log.truncate(log_start)
        for name, committer in self._committers.items():
            committer.forget(oldest.since.get(name, {}))

    def close(self) -> None:
        """Release connections. Ends no transaction."""
        for committer in self._committers.values():
            committer.close()
        self._log.close()
