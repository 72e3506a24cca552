"""Walk an operator through a batch in doubt (``twopc resolve``). The steps come from the recovery table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from twopc.attempt import Evidence
from twopc.batch import Position
from twopc.counted import counted
from twopc.errors import ConfigurationError
from twopc.integration.operate import acts
from twopc.integration.operate.advice import RUNBOOK
from twopc.integration.operate.observe import observe
from twopc.integration.operate.opened import Standing
from twopc.integration.operate.printing import ATTENTION, DONE, Answer, show_lines
from twopc.integration.operate.subject import subject_of
from twopc.recovery import Step, lookup, outcome_of

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.operate.checkpoint import CheckpointState
    from twopc.integration.operate.observe import SinkState
    from twopc.integration.operate.subject import Connection, Subject
    from twopc.sinks.kafka import KafkaSink

#: For each step of the table, an explanation of the query's next start and of the operator's task.
_NEXT: Final = {
    Step.WRITE: "Nothing is in doubt. Start the query. It will write the next batch.",
    Step.FINISH: "Nothing is in doubt. Start the query. It will finish the batch without writing.",
    Step.REWRITE: "All rows of the batch are lost, so none is visible. Start the query. It will write the batch again.",
    Step.PUBLISH: "Some rows are lost, but they are staged. Start the query. It will publish the lost rows from the "
    "staging area.",
    Step.REPAIR: (
        "Start the query. If the replay yields the decided rows, the query writes the lost rows again. Otherwise, the "
        "query stops in doubt."
    ),
    Step.IN_DOUBT: (
        "Spark has moved past the batch and cannot replay it. Check the output, then start once with "
        "override=Abandon({batch}, {query!r}). Visible rows stay, and the rest of the batch is abandoned."
    ),
    Step.BLOCKED: (
        "Neither a commit nor a loss can be proven now. Start the query when every broker responds. If the batch's markers "
        "were deleted, start once with override=Abandon({batch}, {query!r})."
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


def resolve(what: str, connection: Connection, *, checkpoint: Path | None, is_sure: bool, may_ask: bool) -> Answer:
    """Walk through the last decision of each sink. If the operator agrees, commit decided transactions that are still open.

    Raises:
        ForbiddenError: the decision record has changed in the meantime.
        TwoPhaseCommitError: no broker responds, or the decisions are on another cluster.
    """
    subject = subject_of(what, connection, checkpoint=checkpoint)
    found = [_resolve(sink, subject, is_sure=is_sure, may_ask=may_ask) for sink in subject.with_transactions()]
    is_clear = all(facts["step"] in {Step.WRITE.value, Step.FINISH.value} for _, facts in found)
    return Answer(
        DONE if is_clear else ATTENTION,
        [facts for _, facts in found],
        show_lines(line for lines, _ in found for line in lines),
    )


def _resolve(sink: KafkaSink, subject: Subject, *, is_sure: bool, may_ask: bool) -> tuple[list[str], dict[str, Any]]:
    checkpoint, state = subject.checkpoint, observe(sink, subject.query)
    if state.is_elsewhere:
        raise ConfigurationError(str(state.problem))
    lines = [f"1. State: sink {state.sink}, query {state.query_id or '-'}, last decided batch {state.last_decided}"]
    if state.problem is not None:
        action = f"3. Next: do not start the query. Read {RUNBOOK}#the-ledger-is-lost-or-damaged"
        return [*lines, f"2. Evidence: none: {state.problem}", action], {"sink": state.sink, "step": Step.DAMAGED.value}
    wanted = [one for one in state.transactions if one.standing is Standing.DECIDED]
    lines.append(f"2. Evidence: {_counted(state)}; {len(wanted)} decided and open")
    lines += [f"   task {one.task}: {one.text} ({one.transaction}, {counted(one.rows, 'row')})" for one in _last(state)]
    committed = []
    if wanted and (is_sure or (may_ask and _confirmed(lines, len(wanted)))):
        acts.require_committable(state, wanted, is_forced=False)
        committed = acts.commit(sink, wanted, subject.query)
        lines += [f"   committed: {one.transactional_id}: {one.text}" for one in committed]
        state = observe(sink, subject.query)
        wanted = [one for one in state.transactions if one.standing is Standing.DECIDED]
    step, label = _step(state, checkpoint)
    text, anchor = _NEXT[step], _ENTRIES.get(step, "healthy")
    if wanted:
        text, anchor = (
            f"Start the query to commit the open transactions, or run `twopc transactions commit {state.in_commands}`.",
            "decided-and-not-committed",
        )
    action = text.format(batch=state.last_decided, query=state.query_id)
    if checkpoint is None and step in _ENTRIES:
        action += " This advice assumes that Spark replays the batch. Pass the checkpoint to be sure."
    lines.append(f"3. Next ({label}): {action} {RUNBOOK}#{anchor}")
    facts = {
        "sink": state.sink,
        "batch": state.last_decided,
        "case": label,
        "step": step.value,
        "evidence": [one.facts() for one in _last(state)],
        "committed": [one.facts() for one in committed],
        "next": action,
        "runbook": f"{RUNBOOK}#{anchor}",
    }
    return lines, facts


def _step(state: SinkState, checkpoint: CheckpointState | None) -> tuple[Step, str]:
    """Predict, as far as possible, which row of the recovery table the next start will match."""
    assert state.history is not None
    batch = state.last_decided
    finished = None if checkpoint is None else checkpoint.finished
    is_past = finished is not None and batch is not None and finished >= batch
    position = Position.NEXT if is_past or batch is None else Position.SAME
    case = lookup(
        state.history.view.status, outcome_of(one.evidence for one in _last(state)), position, staged=state.staged
    )
    return case.step, case.label


def _last(state: SinkState) -> list[Any]:
    return [one for one in state.proofs if one.batch == state.last_decided]


def _counted(state: SinkState) -> str:
    found = [one.evidence for one in _last(state)]
    names = {Evidence.COMMITTED: "committed", Evidence.ABORTED: "lost", Evidence.UNKNOWN: "not proven"}
    return ", ".join(f"{found.count(one)} {name}" for one, name in names.items())


def _confirmed(lines: list[str], count: int) -> bool:
    typer.echo("\n".join(lines), err=True)
    return typer.confirm(f"Commit {counted(count, 'decided transaction')} now?", err=True)
