"""Check that the log and the sinks' stores have not diverged, because one of them was restored or copied, or lost records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.attempt import Known
from twopc.errors import RefusedStartError
from twopc.new_checkpoint import last_decided, new_checkpoint
from twopc.recovery import Outcome
from twopc.refusals import lost_decision, lost_record, replaced

if TYPE_CHECKING:
    from twopc.batch import Batch
    from twopc.committer import SinkCommitter
    from twopc.log_view import LogView
    from twopc.ownership import Owners
    from twopc.settings import Setup


def require_kept(setup: Setup, owners: Owners, view: LogView, batch: Batch) -> None:
    """Refuse the start if a sink's store was restored, and this query's decisions or their rows are missing from it.

    The check does not depend on the owner that the store names, because the backup may be older than this query's first
    start. The restored store then names an earlier owner.

    Raises:
        RefusedStartError: a decision in the log is missing from a sink's store.
    """
    for name, committer, scan_start in _in_own_decision(setup, view, batch):
        if committer.lacks_decisions(scan_start):
            owner = owners[name] or batch.query_id
            last = last_decided(batch.query_id, view, setup.log.name)
            raise RefusedStartError(
                f"older store: decisions in {setup.log.name} (up to batch {view.highest_batch}), or rows of these decisions, "
                f"are missing from the store of sink {name!r}. The store was restored from a backup, or a failover lost "
                "acknowledged writes, so the rows of these batches, or some of them, are lost. Continuing would leave an "
                f"unnoticed gap in the output. Restore a newer state of the store{_or_all_older(setup)}. To accept the gap "
                f"instead, {new_checkpoint(batch, owner, last)}. "
                "Nothing was written",
                case="older store",
            )


def _or_all_older(setup: Setup) -> str:
    """Name the other way back, if it exists: every part of the query returns to its state at the time of the backup.

    A log that a sink provides keeps its newer decisions and transactions, and then refuses the older checkpoint.
    """
    if not setup.decides_in_checkpoint or setup.participants.decision_logs():
        return ""
    return ", or restore the checkpoint and the query's other sinks to their states at the time of the backup"


def require_not_replaced(setup: Setup, owners: Owners, view: LogView, batch: Batch) -> None:
    """Refuse the start if a sink's store shows that another query has replaced this one, and has made decisions.

    A log that both queries use shows the replacement itself. If the decisions are in this query's checkpoint, only the stores
    show the replacement. ``EndQuery`` does not turn off this check, because a store does not keep the evidence for an ended
    query's decisions.

    Raises:
        RefusedStartError: another query has made a decision in a sink after this query's newest decision.
    """
    mine = batch.query_id
    for name, committer, scan_start in _in_own_decision(setup, view, batch):
        if committer.is_replaced(mine, scan_start):
            raise replaced(name, batch, owners[name] or mine)


def _in_own_decision(setup: Setup, view: LogView, batch: Batch) -> list[tuple[str, SinkCommitter[Any], dict[str, Any]]]:
    """List the sinks in this query's newest decision, each with its committer and its ``scan_start``.

    A sink that is not in this decision was added after it.
    """
    begin = view.begin
    if begin is None or begin.query_id != batch.query_id or (begin.ends is not None and view.decision is None):
        return []  # a sink does not have to keep an ended query's decisions
    committers, starts = setup.participants.committers, view.scan_start
    return [(name, committer, starts[name]) for name, committer in committers.items() if name in starts]


def require_newest(setup: Setup, owners: Owners, view: LogView, batch: Batch) -> None:
    """Refuse the start if a sink's store contains a decision that is missing from the log.

    If the log is in the checkpoint, the checkpoint is then outdated. Otherwise, all copies of the checkpoint use the same
    log, so the log has lost the decision. ``owners`` was read before the sinks were acquired.

    Raises:
        RefusedStartError: a sink's store contains a decision that is missing from the log.
    """
    mine = batch.query_id
    for name, committer in setup.participants.committers.items():
        # A sink that is not in the newest decision was added after it. If such a sink's store contains a decision, that
        # decision is newer.
        if owners[name] == mine and committer.has_newer_decision(view.scan_start.get(name, {})):
            raise _older_copy(name, batch) if setup.decides_in_checkpoint else _lost(setup, view, batch, name)


def require_known(setup: Setup, view: LogView, batch: Batch, *, is_swept: bool) -> None:
    """Refuse the start if a sink with a log contains a transaction that is missing from the checkpoint's decisions.

    This check runs twice, but only if the decisions are in the checkpoint. A sink with its own log then stores neither the
    decisions nor a control record, so only the sink's transactions reveal a newer copy of the checkpoint. They also
    reveal two copies that have decided the same batch, because one copy's transactions are missing from the other
    copy's decision.

    The first check must not stop a healthy driver, so another run may still commit after this check. The second check
    follows this driver's sweep. By then, the other run can commit nothing more: its open transactions have ended, and
    the sink confirms no new ones.

    Raises:
        RefusedStartError: a sink contains a transaction that is missing from the checkpoint's decisions.
    """
    if not setup.decides_in_checkpoint:
        return  # the copies use the same log
    for name in _with_unknown(setup, view, batch, is_swept=is_swept):
        raise _older_copy(name, batch, has_fenced=is_swept)


def require_decided(setup: Setup, view: LogView, batch: Batch, outcome: Outcome, *, is_abandoned: bool) -> bool:
    """Refuse the start if a sink shows rows whose decision is missing from the log that the sinks provide.

    Only a log that has lost acknowledged records lacks such a decision. The check follows this driver's sweep, so an older
    driver can no longer decide or commit, and no open transaction hides what is visible. ``outcome`` is the outcome of the
    log's last decision, and ``is_abandoned`` says whether the user abandons the rest of that decision.

    Returns:
        whether the user lets the query continue after ``batch``, which the sinks already show.

    Raises:
        RefusedStartError: the log has lost a decision or a repair.
    """
    if setup.decides_in_checkpoint:
        return False  # see require_known
    at, highest = batch.batch_id, view.highest_batch_of(batch.query_id)
    after = None if highest is None else max(at, highest + 1)  # from this batch on, nothing is decided
    shown = _with_unknown(setup, view, batch, first=after if is_abandoned else None)
    if not shown:
        return False
    if view.decision is not None and highest is not None and not _with_unknown(setup, view, batch, first=after):
        raise lost_record(setup.log.name, shown[0], view.decision, setup.settings.overrides)
    is_replay = highest is not None and at <= highest
    if is_replay or outcome is not Outcome.COMMITTED or _with_unknown(setup, view, batch, first=at + 1):
        raise _lost(setup, view, batch, shown[0])
    if setup.settings.overrides.resumes_at(batch.query_id, at + 1, needs_id=bool(view.ended)):
        return True
    raise _lost(setup, view, batch, shown[0], resume_at=at + 1)


def shows_unlisted(setup: Setup, view: LogView, batch: Batch) -> bool:
    """Whether a sink shows rows of the log's last decided batch that no record lists. Only reads, after this driver's sweep.

    The log has then lost a later record of the batch. :func:`require_decided` has already found no later batch in the sinks.

    Raises:
        RetriableError: a sink could not be read.
    """
    return not setup.decides_in_checkpoint and bool(_with_unknown(setup, view, batch))


def require_undecided(setup: Setup, owners: Owners, view: LogView, batch: Batch) -> None:
    """Before a start is refused because of a gap, check that the gap's decisions were never made. Only reads.

    The advice for a gap is to run its batches again. If the log has lost the gap's decisions, that would duplicate their rows.

    Raises:
        RefusedStartError: a sink shows rows of these batches.
    """
    require_newest(setup, owners, view, batch)
    highest = view.highest_batch_of(batch.query_id)
    if setup.decides_in_checkpoint or highest is None:
        return
    if shown := _with_unknown(setup, view, batch, first=highest + 1):
        shows_this = _with_unknown(setup, view, batch, first=batch.batch_id)
        raise _lost(setup, view, batch, shown[0], resume_at=None if shows_this else batch.batch_id)


def _with_unknown(
    setup: Setup, view: LogView, batch: Batch, *, is_swept: bool = False, first: int | None = None
) -> list[str]:
    """List the sinks with a log that show a transaction that is in no decision.

    Only the batches from ``first`` on count. By default, ``first`` is the oldest batch that may lack a decision.
    """
    highest = view.highest_batch_of(batch.query_id)
    if highest is None:  # the log's decisions, if any, belong to another query
        first, decision, starts = first or batch.batch_id, None, {}
    elif first is not None:
        decision, starts = None, view.scan_start
    elif (
        view.decision is None or batch.batch_id > highest + 1
    ):  # batches were abandoned, or skipped with the user's permission
        first, decision, starts = max(batch.batch_id, highest + 1), None, view.scan_start
    else:
        first, decision, starts = highest, view.decision, view.scan_start
    known = Known[Any](batch.query_id, first, (), is_swept, setup.decides_in_checkpoint)
    return setup.participants.with_unknown_commits(known, setup.participants.decode_decided(decision), starts)


def require_unwritten(setup: Setup, batch: Batch) -> None:
    """Reject a batch that the checkpoint's previous writer has made visible, but that Spark has not recorded.

    That writer skips each batch whose number it has committed, whatever rows the batch contains. So only this very batch, as
    Spark first planned it, may be given back to that writer. Spark plans a batch only after it has recorded the batch before
    it. So if that writer has committed a later batch, or if Spark has planned this batch after that writer committed it, the
    checkpoint is an older copy, and its batches may contain other rows.

    Raises:
        RefusedStartError: a sink's store contains the batch.
    """
    for name, committer in setup.participants.committers.items():
        newest = committer.newest_batch_of_others(batch.query_id)
        if newest is None or newest < batch.batch_id:
            continue
        if newest > batch.batch_id or _is_planned_after(batch, committer):
            raise _older_than_writer(name, batch, newest)
        raise RefusedStartError(
            f"written already: another writer of query {batch.query_id} has written batch {newest} to the store of sink "
            f"{name!r}, but Spark has not recorded the batch in the checkpoint. Writing the batch again would duplicate its "
            "rows. Nothing was written. Start the previous version of the query again with this checkpoint and "
            "trigger(availableNow=True). That version records the batch without writing it again. When that version has ended, "
            "start this one. But if the checkpoint was copied or restored since the batch was written, use the newest "
            "checkpoint instead",
            case="written already",
        )


def _is_planned_after(batch: Batch, committer: SinkCommitter[Any]) -> bool:
    """Whether Spark planned the batch after the previous writer had committed a batch with the same number.

    Spark keeps the time of a plan when it replays the batch. The writer's driver has made both times, so only a clock that was
    set back between the two makes a plan look later than its own commit.
    """
    committed_ms = committer.committed_by_others_ms(batch.query_id, batch.batch_id)
    return committed_ms is not None and batch.times is not None and batch.times.timestamp_ms > committed_ms


def _older_than_writer(name: str, batch: Batch, newest: int) -> RefusedStartError:
    at = batch.batch_id
    late = (
        f"Spark planned this checkpoint's batch {at} only after that"
        if newest == at
        else f"this checkpoint is at batch {at}"
    )
    return RefusedStartError(
        f"older copy: another writer of query {batch.query_id} has written batch {newest} to the store of sink {name!r}, but "
        f"{late}. So the checkpoint was copied or restored. Continuing would write rows twice. Nothing was "
        "written. Do not start the previous version of the query with this checkpoint: its writer would skip every batch up to "
        f"batch {newest}, even if the batch now contains other rows, and these rows would be lost. Use the newest checkpoint, "
        f"or {new_checkpoint(batch, batch.query_id, f'batch {newest}, the last batch in the store')}",
        case="older copy",
    )


def _lost(setup: Setup, view: LogView, batch: Batch, name: str, *, resume_at: int | None = None) -> RefusedStartError:
    highest = view.highest_batch_of(batch.query_id)
    overrides = setup.settings.overrides
    return lost_decision(setup.log.name, name, batch, overrides, highest=highest, resume_at=resume_at)


def _older_copy(name: str, batch: Batch, *, has_fenced: bool = False) -> RefusedStartError:
    fenced = ". This start has stopped the other run, so restart that run" if has_fenced else ""
    return RefusedStartError(
        f"older copy: sink {name!r} shows a decision that this checkpoint (at batch {batch.batch_id}) does not "
        "contain. The checkpoint was copied or restored, and another run continued from it. Continuing would write "
        "batches twice. Use the checkpoint of the run that wrote last, or "
        f"{new_checkpoint(batch, batch.query_id, last_decided(batch.query_id, None, ''))}. Nothing was written{fenced}",
        case="older copy",
    )
