"""Walk an operator through a batch in doubt (``twopc resolve``). The steps come from the recovery table."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from twopc.attempt import Evidence
from twopc.batch import Position
from twopc.counted import counted
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.integration.operate import acts
from twopc.integration.operate.advice import mismatches
from twopc.integration.operate.checkpoint import combined, read_checkpoint
from twopc.integration.operate.finding import RUNBOOK
from twopc.integration.operate.observe import observe
from twopc.integration.operate.opened import Standing
from twopc.integration.operate.printing import ATTENTION, DONE, Answer, show_lines
from twopc.integration.operate.subject import subject_of
from twopc.override import Overrides
from twopc.recovery import Step, lookup, outcome_of
from twopc.unproven import abandon

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.integration.operate.acts import Ended
    from twopc.integration.operate.checkpoint import CheckpointState
    from twopc.integration.operate.finding import Advice
    from twopc.integration.operate.observe import SinkState
    from twopc.integration.operate.opened import OpenTransaction
    from twopc.integration.operate.subject import Connection, Subject
    from twopc.integration.verify.deciding import QueryFacts
    from twopc.sinks.kafka import KafkaSink

#: For each step of the recovery table: what the query's next start does, and what the operator must do.
_NEXT: Final = {
    Step.WRITE: "Nothing is in doubt. Start the query. It will write the next batch.",
    Step.FINISH: "Nothing is in doubt. Start the query. It will finish the batch without writing any rows.",
    Step.REWRITE: "All rows of the batch were lost, so none of them are visible. Start the query. It will write the batch again.",
    Step.PUBLISH: (
        "Some rows were lost from Kafka, but they are still staged. Start the query with its former staging. The query "
        "will publish these rows from the staging area."
    ),
    Step.REPAIR: (
        "Start the version of the query that decided the batch. If the replay yields the decided rows, the query "
        "writes the lost rows again. Otherwise, the query stops in doubt."
    ),
    Step.IN_DOUBT: (
        "Spark has moved past the batch and cannot replay it. Check the output, then start the query once with "
        "{override}. Rows that are already visible stay visible, and the rest of the batch is "
        "abandoned."
    ),
    Step.BLOCKED: (
        "Neither a commit nor a loss can be proven now. Start the query when every broker responds. If the batch's "
        "markers were deleted, start the query once with {override}."
    ),
}
#: The runbook entry for each step that needs one.
_ENTRIES: Final = {
    Step.REWRITE: "a-decided-transaction-is-lost",
    Step.PUBLISH: "a-decided-transaction-is-lost",
    Step.REPAIR: "a-decided-transaction-is-lost",
    Step.IN_DOUBT: "a-batch-is-in-doubt",
    Step.BLOCKED: "a-commit-cannot-be-proven",
}


class _Walk:
    """The walk-through of one sink: the state, the evidence, and the commits to which the operator agreed."""

    def __init__(self, sink: KafkaSink, query: QueryFacts, state: SinkState) -> None:
        self._sink, self._query = sink, query
        self.state = state
        self.committed: list[Ended] = []
        if state.is_elsewhere:
            raise ConfigurationError(str(state.problem))
        self.lines = [
            f"1. State: sink {state.sink}, query {state.query_id or '-'}, last decided batch {state.last_decided}"
        ]
        if state.problem is not None:
            self.lines.append(f"2. Evidence: none: {state.problem}")
            return
        self.lines.append(f"2. Evidence: {_counted(state)}; {len(_open(state))} decided and open")
        self.lines += [
            f"   task {one.task}: {one.text} ({one.transaction}, {counted(one.rows, 'row')})" for one in _last(state)
        ]

    def commit(self, *, is_sure: bool, may_ask: bool) -> None:
        """Commit decided transactions that are still open, if the operator agrees."""
        wanted = _open(self.state)
        if wanted and (is_sure or (may_ask and _confirmed(self.lines, len(wanted)))):
            acts.require_committable(self.state, wanted, is_forced=False)
            self.committed = acts.commit(self._sink, wanted, self._query)
            self.lines += [f"   committed: {one.transactional_id}: {one.text}" for one in self.committed]
            self.state = observe(self._sink, self._query)


def resolve(what: str, connection: Connection, *, checkpoint: Path | None, is_sure: bool, may_ask: bool) -> Answer:
    """Walk through the last decision of each sink. If the operator agrees, commit decided transactions that are still open.

    Raises:
        ConfigurationError: the checkpoint and the sink's ledger belong to different queries.
        ForbiddenError: the decision record has changed in the meantime.
        TwoPhaseCommitError: no broker responds, or the decisions are on another cluster.
    """
    subject = subject_of(what, connection, checkpoint=checkpoint)
    walks = [_Walk(sink, subject.query, observe(sink, subject.query)) for sink in subject.with_transactions()]
    for walk in walks:
        _require_own(walk.state, subject.checkpoint)
    for walk in walks:
        walk.commit(is_sure=is_sure, may_ask=may_ask)
    states = [walk.state for walk in walks]
    states += _beside(subject, connection, {state.sink for state in states})
    compared = _read_again(subject.checkpoint)
    found = [_concluded(walk, states, compared) for walk in walks]
    is_clear = all(facts["step"] in {Step.WRITE.value, Step.FINISH.value} for _, facts in found)
    return Answer(
        DONE if is_clear else ATTENTION,
        [facts for _, facts in found],
        show_lines(line for lines, _ in found for line in lines),
    )


def _require_own(state: SinkState, checkpoint: CheckpointState | None) -> None:
    """Require that the checkpoint belongs to the query that decided the batch: every query counts its batches from 0."""
    if checkpoint is None or state.query_id in {None, checkpoint.query_id}:
        return
    raise ConfigurationError(
        f"the checkpoint {checkpoint.location} belongs to query {checkpoint.query_id}, but {state.ledger} belongs to query "
        f"{state.query_id}. Nothing was done, because this checkpoint says nothing about the batches of query "
        f"{state.query_id}. Pass the checkpoint of query {state.query_id}, or pass only the sink's name"
    )


def _read_again(before: CheckpointState | None) -> CheckpointState | None:
    """Read the checkpoint again after the sinks were observed.

    The result keeps the finished batches from the first reading. If Spark had already finished the last decided batch at that
    time, no replay can have repaired the batch since then, so the prescribed override is right. If Spark finished the batch
    later, the result prescribes a start, which judges the batch again.
    """
    return None if before is None else combined(before, read_checkpoint(Path(before.location)))


def _beside(subject: Subject, connection: Connection, known: set[str]) -> list[SinkState]:
    """Observe the query's other Kafka sinks, as far as the command can reach them."""
    bound = {} if subject.checkpoint is None else subject.checkpoint.sinks
    others = {sink.name: sink for sink in (*connection.bound_sinks(bound), *connection.kafka) if sink.name not in known}
    states = []
    for sink in others.values():
        with contextlib.suppress(TwoPhaseCommitError):  # the result names each sink that could not be observed
            states.append(observe(sink, subject.query))
    return states


def _concluded(
    walk: _Walk, states: Sequence[SinkState], checkpoint: CheckpointState | None
) -> tuple[list[str], dict[str, Any]]:
    state = walk.state
    if state.problem is not None:
        action = f"3. Next: do not start the query. Read {RUNBOOK}#the-ledger-is-lost-or-damaged"
        return [*walk.lines, action], {"sink": state.sink, "step": Step.DAMAGED.value}
    if (mismatch := next(mismatches(state, checkpoint), None)) is not None:
        return _refused(walk, mismatch)
    step, label = _step(state, states, checkpoint)
    text, anchor = _NEXT[step], _ENTRIES.get(step, "healthy")
    if _open(state):
        text, anchor = (
            f"Start the query to commit the open transactions, or run `twopc transactions commit {state.in_commands}`.",
            "decided-and-not-committed",
        )
    action = text.format(override=_giving_up(state, states))
    if checkpoint is None and step in _ENTRIES:
        action += (
            " This advice assumes that Spark will replay the batch. To check that assumption, pass the checkpoint."
        )
    action += _after_a_rollback(checkpoint, state)
    if unseen := _decided_sinks(state) - {one.sink for one in _of_same_batch(state, states)}:
        action += (
            " This advice does not cover the whole batch. The batch also has transactions in "
            f"{', '.join(sorted(unseen))}. When the query next starts, it will decide what to do about all of them "
            "together. Pass the checkpoint or --sinks. For sinks other than Kafka sinks, also run `twopc status "
            "CHECKPOINT --sinks MODULE:NAME`."
        )
    return _result(walk, step, label, action, f"{RUNBOOK}#{anchor}")


def _after_a_rollback(checkpoint: CheckpointState | None, state: SinkState) -> str:
    """Say how the query can skip the batches that the old sink has written since the last decision."""
    if checkpoint is None:
        return ""
    if checkpoint.former is None:
        return (
            " `twopc migrate rollback` has returned the checkpoint to the old sink, and the old sink may have written "
            "batches since then. So before you start the query, stop the old query, and run `twopc migrate cutover "
            "--apply` again."
        )
    finished, decided = checkpoint.finished, state.last_decided
    if finished is None or decided is None or finished <= decided:
        return ""
    written = f"batch {finished}" if finished == decided + 1 else f"batches {decided + 1} to {finished}"
    return (
        f" Another sink has written {written} since then, so also pass "
        f"override=ResumeAt({finished + 1}, {checkpoint.query_id!r})."
    )


def _refused(walk: _Walk, mismatch: Advice) -> tuple[list[str], dict[str, Any]]:
    """Say that the next start would be refused. Spark's progress in such a checkpoint says nothing about the last batch."""
    commands = walk.state.in_commands
    first = f"First, run `twopc transactions commit {commands}`. A refused start commits nothing. "
    action = f"{mismatch.what[0].upper()}{mismatch.what[1:]}. {first if _open(walk.state) else ''}{mismatch.action}"
    return _result(walk, Step.REFUSE, "start refused", action, mismatch.link)


def _result(walk: _Walk, step: Step, label: str, action: str, link: str) -> tuple[list[str], dict[str, Any]]:
    facts = {
        "sink": walk.state.sink,
        "batch": walk.state.last_decided,
        "case": label,
        "step": step.value,
        "evidence": [one.facts() for one in _last(walk.state)],
        "committed": [one.facts() for one in walk.committed],
        "next": action,
        "runbook": link,
    }
    return [*walk.lines, f"3. Next ({label}): {action} {link}"], facts


def _step(state: SinkState, states: Sequence[SinkState], checkpoint: CheckpointState | None) -> tuple[Step, str]:
    """Predict, as far as possible, which row of the recovery table the next start will match.

    The start commits the open transactions, and then judges the batch across all sinks.
    """
    assert state.history is not None
    batch = state.last_decided
    finished = None if checkpoint is None else checkpoint.finished
    is_past = finished is not None and batch is not None and finished >= batch
    position = Position.NEXT if is_past or batch is None else Position.SAME
    others = [one for one in _of_same_batch(state, states) if one.sink != state.sink]
    evidence = [one.evidence for one in _last(state)] + [found for one in others for found in _after_commit(one)]
    case = lookup(state.history.view.status, outcome_of(evidence), position, staged=state.staged)
    return case.step, case.label


def _of_same_batch(state: SinkState, states: Sequence[SinkState]) -> list[SinkState]:
    """Select the states of the sinks that were observed at the same last decision as ``state``."""
    assert state.history is not None
    return [one for one in states if one.history is not None and one.history.last == state.history.last]


def _giving_up(state: SinkState, states: Sequence[SinkState]) -> str:
    """Return the override that gives up the last batch in those observed sinks in which the batch is not visible."""
    assert state.history is not None
    last = state.history.last
    if last is None:
        return ""
    lost = [one.sink for one in _of_same_batch(state, states) if {*_after_commit(one)} - {Evidence.COMMITTED}]
    return Overrides().in_code(abandon(state.history.batches[last].decision, sorted(lost)))


def _decided_sinks(state: SinkState) -> set[str]:
    """Name the sinks that have transactions in the last decision."""
    assert state.history is not None
    last = state.history.last
    tasks = () if last is None else state.history.batches[last].decision.tasks
    return {name for task in tasks for name in task.handles}


def _after_commit(state: SinkState) -> list[Evidence]:
    """Predict the evidence after the query's next start has committed the sink's open transactions."""
    are_open = {one.task for one in _open(state) if one.batch == state.last_decided}
    return [Evidence.COMMITTED if one.task in are_open else one.evidence for one in _last(state)]


def _open(state: SinkState) -> list[OpenTransaction]:
    return [one for one in state.transactions if one.standing is Standing.DECIDED]


def _last(state: SinkState) -> list[Any]:
    return [one for one in state.proofs if one.batch == state.last_decided]


def _counted(state: SinkState) -> str:
    found = [one.evidence for one in _last(state)]
    names = {Evidence.COMMITTED: "committed", Evidence.ABORTED: "lost", Evidence.UNKNOWN: "not proven"}
    return ", ".join(f"{found.count(one)} {name}" for one, name in names.items())


def _confirmed(lines: list[str], count: int) -> bool:
    typer.echo("\n".join(lines), err=True)
    return typer.confirm(f"Commit {counted(count, 'decided transaction')} now?", err=True)
