"""Observe a sink without a ledger: compare its store with the decisions. The module only reads, and fences no driver."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from twopc.errors import DecisionLogDamagedError, RetriableError, TwoPhaseCommitError
from twopc.files import LocalFiles
from twopc.integration.operate.finding import Urgency
from twopc.integration.operate.named_sinks import unquoted
from twopc.integration.operate.store_advice import advise_store, overtaken
from twopc.integration.operate.store_state import StoreState
from twopc.integration.verify.history import History, history_of
from twopc.log_view import LogView
from twopc.registers import RegisterLog
from twopc.versions import is_replaced, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.decision_log import DecisionLog
    from twopc.integration.operate.checkpoint import CheckpointState
    from twopc.integration.operate.finding import Advice
    from twopc.observation import Observation
    from twopc.sink import TwoPhaseCommitSink
    from twopc.sinks.kafka import KafkaSink

    Read = Callable[[], "Decisions"]


_NOTHING: Final = History(LogView(), {}, {}, is_complete=True)
#: A running query may overtake one observation, but is unlikely to overtake several in a row.
_OBSERVATIONS: Final = 3


class Decisions(NamedTuple):
    """A query's decisions, as read at one point in time.

    Attributes:
        history: the decisions; None if they could not be read.
        problem: why the decisions could not be read; None if they were read, or if they are in the ledger of an unknown sink.
    """

    checkpoint: CheckpointState
    history: History | None
    problem: str | None = None


def read_decisions(checkpoint: CheckpointState, kafka: Sequence[KafkaSink]) -> Decisions:
    """Read a query's decisions, from its checkpoint or from the ledger of one of its Kafka sinks."""
    if checkpoint.log is None:
        return Decisions(checkpoint, _NOTHING)  # nothing is decided before the checkpoint is bound
    create_log = _log_of(checkpoint, kafka)
    if create_log is None:
        return Decisions(checkpoint, None)
    try:
        history = _read(create_log())
    except (TwoPhaseCommitError, OSError) as error:
        return Decisions(checkpoint, None, str(error))
    damage = history.view.damage
    return Decisions(checkpoint, history) if damage is None else Decisions(checkpoint, None, damage)


def _log_of(checkpoint: CheckpointState, kafka: Sequence[KafkaSink]) -> Callable[[], DecisionLog] | None:
    if checkpoint.registers is not None:
        return lambda: RegisterLog(LocalFiles(Path(checkpoint.location) / "twopc"))
    return next((one.create_decision_log for one in kafka if one.ledger == checkpoint.log), None)


def observe_store(sink: TwoPhaseCommitSink[Any], read: Read) -> tuple[StoreState, list[Advice]]:
    """Observe one store, and return its state with advice.

    A running query can change its checkpoint and its store while this function observes them. So a finding that
    requires action counts only if the next observation confirms it. Each observation reads the checkpoint again.
    """
    before: object = None
    for _ in range(_OBSERVATIONS):
        decisions = read()
        state = _look(sink, decisions)
        advice = advise_store(state, decisions.checkpoint)
        urgent = {one.anchor for one in advice if one.urgency is Urgency.ACT}
        # If a store is really ahead, its query stops. So if the log has grown, the query has only overtaken the
        # observation.
        newest = state.batch if state.is_ahead else None
        if not urgent or (urgent, newest) == before or state.problem is not None:
            return state, advice
        before = (urgent, newest)
    return state, [overtaken(_OBSERVATIONS)] if state.is_ahead else advice


def _look(sink: TwoPhaseCommitSink[Any], decisions: Decisions) -> StoreState:
    checkpoint, history, unread = decisions
    state = StoreState(
        sink=sink.name,
        kind=type(sink).__name__,
        bound=checkpoint.sinks.get(sink.name),
        is_known=history is not None,
        unread=unread,
    )
    try:
        if history is None:
            return replace(state, seen=_observed(sink, LogView(), checkpoint.query_id))
        view = history.view
        if view.begin is not None and view.begin.query_id == checkpoint.query_id:
            batch = None if view.decision is None else view.decision.batch_id
            abandoned = view.highest_batch if batch is None and view.begin.abandons else None
            state = replace(state, batch=batch, abandoned=abandoned, first_batch=view.begin.first_batch)
        seen = _observed(sink, view, checkpoint.query_id)
        decided = _decided_rows(sink, history) if seen is not None and seen.rows else {}
        return replace(
            state, seen=seen, decided=decided, is_replaced=_is_replaced(sink, seen, view, checkpoint.query_id)
        )
    except RetriableError as error:
        return replace(state, problem=str(error), answers=False)
    except TwoPhaseCommitError as error:
        return replace(state, problem=str(error))
    except msgspec.ValidationError as error:
        return replace(
            state,
            problem=f"the store's decision was written by a different release or by a different kind of sink: {error}",
        )
    except Exception as error:  # noqa: BLE001 - a user-defined sink may raise its client's errors
        return replace(state, problem=f"the store could not be observed: {unquoted(error)}")


def _observed(sink: TwoPhaseCommitSink[Any], view: LogView, query_id: str) -> Observation | None:
    decision = view.decision if view.decision is not None and view.decision.query_id == query_id else None
    tasks = () if decision is None else decision.tasks
    decided = [sink.decode_handle(task.handles[sink.name]) for task in tasks if sink.name in task.handles]
    # As at startup: a sink that is not in the newest decision was added after it.
    scan_start = view.scan_start.get(sink.name) if view.kept else {}
    with closing(sink.create_committer()) as committer:
        seen = committer.observe(decided, scan_start or {})
    if seen is None:
        return None
    is_comparable = scan_start is not None
    is_owner = seen.record.query_id == query_id
    is_own = view.begin is not None and view.begin.query_id == query_id
    # A restored store may name an earlier owner, so only a store that is ahead must name this query.
    return replace(
        seen,
        is_ahead=seen.is_ahead and is_comparable and is_owner,
        is_behind=seen.is_behind and is_comparable and is_own,
    )


def _is_replaced(sink: TwoPhaseCommitSink[Any], seen: Observation | None, view: LogView, query_id: str) -> bool:
    if seen is None or view.decision is None or view.decision.query_id != query_id:
        return False
    scan_start = view.scan_start.get(sink.name)
    return bool(scan_start and is_replaced(seen.record, query_id, scan_start))


def _decided_rows(sink: TwoPhaseCommitSink[Any], history: History) -> dict[int, tuple[int, int]]:
    """Map the version of each retained decision to its batch and its number of rows.

    Leave out abandoned batches, because the store does not have to contain their rows.
    """
    found = {}
    for key, batch in history.batches.items():
        scan_start = batch.decision.scan_start.get(sink.name)
        if scan_start and not batch.abandoned:
            rows = sum(sink.decode_handle(encoded).rows for _, encoded in batch.handles(sink.name))
            found[version_of(scan_start)] = (key.batch, rows)
    return found


def _read(log: DecisionLog) -> History:
    with closing(log):
        try:
            contents = log.inspect()
            return history_of(contents, contents)
        except DecisionLogDamagedError as error:
            return replace(_NOTHING, view=LogView(damage=str(error)))
