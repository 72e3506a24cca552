"""Check that the log and the sinks' stores have not diverged, because one of them was restored or copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.attempt import Known
from twopc.errors import RefusedStartError

if TYPE_CHECKING:
    from twopc.batch import Batch
    from twopc.log_view import LogView
    from twopc.ownership import Owners
    from twopc.settings import Setup


def require_kept(setup: Setup, owners: Owners, view: LogView, batch: Batch) -> None:
    """Refuse the start if a sink's store was restored and this query's decisions are missing from it.

    The check does not depend on the owner that the store names, because the backup may be older than this query's first
    start. The restored store then names an earlier owner.

    Raises:
        RefusedStartError: a decision in the log is missing from a sink's store.
    """
    mine, begin = batch.query_id, view.begin
    if begin is None or begin.query_id != mine or (begin.ends is not None and view.decision is None):
        return  # a sink need not keep an ended query's decisions
    for name, committer in setup.participants.committers.items():
        # A sink that is not in the newest decision was added after it.
        scan_start = view.scan_start.get(name)
        if scan_start is not None and committer.lacks_decisions(scan_start):
            raise RefusedStartError(
                f"older store: decisions in {setup.log.name} (up to batch {view.highest_batch}) are missing from the store "
                f"of sink {name!r}. The store was restored from a backup, or a failover lost acknowledged writes, so the "
                "rows of these batches are lost. Continuing would leave an unnoticed gap in the output. Restore a newer "
                "state of the store, or restore the checkpoint and the query's other sinks to their states at the time of "
                "the backup. "
                f"To accept the gap instead, start with a new checkpoint and override=EndQuery({owners[name] or mine!r}). "
                "Nothing was written",
                case="older store",
            )


def require_newest(setup: Setup, owners: Owners, view: LogView, batch: Batch) -> None:
    """Refuse the start if a sink's store contains a decision that is missing from the log.

    The checkpoint is then outdated. ``owners`` was read before the sinks were acquired.

    Raises:
        RefusedStartError: a sink's store contains a decision that is missing from the log.
    """
    mine = batch.query_id
    for name, committer in setup.participants.committers.items():
        # A sink that is not in the newest decision was added after it. If such a sink's store contains a decision, that
        # decision is newer.
        if owners[name] == mine and committer.has_newer_decision(view.scan_start.get(name, {})):
            raise _older_copy(name, batch)


def require_known(setup: Setup, view: LogView, batch: Batch, *, is_swept: bool) -> None:
    """Refuse the start if a sink with a log contains a transaction that is missing from the checkpoint's decisions.

    This check is made only if the decisions are in the checkpoint. A sink with its own log then stores neither the
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
    highest = view.highest_batch_of(batch.query_id)
    if highest is None:  # the log's decisions, if any, are another query's
        first, decision, starts = batch.batch_id, None, {}
    elif (
        view.decision is None or batch.batch_id > highest + 1
    ):  # batches were abandoned, or skipped with the user's permission
        first, decision, starts = max(batch.batch_id, highest + 1), None, view.scan_start
    else:
        first, decision, starts = highest, view.decision, view.scan_start
    known = Known[Any](batch.query_id, first, (), is_swept)
    for name in setup.participants.with_unknown_commits(known, setup.participants.decode_decided(decision), starts):
        raise _older_copy(name, batch, has_fenced=is_swept)


def require_unwritten(setup: Setup, batch: Batch) -> None:
    """Reject a batch that the checkpoint's previous writer has made visible, but that Spark has not recorded.

    Raises:
        RefusedStartError: a sink's store contains the batch.
    """
    for name, committer in setup.participants.committers.items():
        newest = committer.newest_batch_of_others(batch.query_id)
        if newest is not None and newest >= batch.batch_id:
            raise RefusedStartError(
                f"written already: another writer of query {batch.query_id} has written batch {newest} to the store of sink "
                f"{name!r}, but the checkpoint is still at batch {batch.batch_id}. Writing the batch again would "
                "duplicate its rows. Nothing was written. Start the previous version of the query again with this checkpoint. "
                "That version records the batch without writing it again. Stop that version when it is idle, then start "
                "this one",
                case="written already",
            )


def _older_copy(name: str, batch: Batch, *, has_fenced: bool = False) -> RefusedStartError:
    fenced = ". This start has stopped the other run, so restart that run" if has_fenced else ""
    return RefusedStartError(
        f"older copy: sink {name!r} shows a decision that this checkpoint (at batch {batch.batch_id}) does not "
        "contain. The checkpoint was copied or restored, and another run continued from it. Continuing would write "
        "batches twice. Use the checkpoint of the run that wrote last, or start with a new checkpoint and "
        f"override=EndQuery({batch.query_id!r}). Nothing was written{fenced}",
        case="older copy",
    )
