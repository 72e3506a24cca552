"""Rule 9: a decided transaction that is proven lost is written again, and only with the rows that were decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from twopc.attempt import TaskAttempt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from twopc.attempt import TaskKey
    from twopc.engine import StagedRows, Work
    from twopc.records import Decision, TaskReport
    from twopc.sink import TwoPhaseCommitSink


def match_rows(
    decision: Decision, replayed: Sequence[TaskReport], *, expected: Mapping[int, int]
) -> dict[int, int] | None:
    """Find, for each decided task, the task of the replay that has its rows.

    The replay must give the decided rows for *all* tasks; otherwise the lost rows may belong to other tasks now. It may
    give them in another order: Spark plans the tasks of a source with few partitions in another order when it reads
    their offsets back from the checkpoint.

    Args:
        decision: what was decided.
        replayed: a report of every task.
        expected: preferred where several fit, as returned by an earlier call; the same partition where absent.

    Returns:
        decided partition -> replayed partition; None when the replay gives other rows.
    """
    places: dict[tuple[str, int, int], list[int]] = {}
    for task in replayed:
        places.setdefault(_rows_of(task), []).append(task.partition)
    found: dict[int, int] = {}
    for wanted_place in (True, False):
        for task in decision.tasks:
            fitting = places.get(_rows_of(task), [])
            place = expected.get(task.partition, task.partition)
            if task.partition not in found and fitting and (place in fitting or not wanted_place):
                found[task.partition] = place if place in fitting else fitting[0]
                fitting.remove(found[task.partition])
    return found if len(found) == len(decision.tasks) == len(replayed) else None


def _rows_of(task: TaskReport) -> tuple[str, int, int]:
    # Equal rows of another DataFrame are for other sinks.
    return task.frame, task.rows, task.checksum


def as_decided(replayed: Sequence[TaskReport], found: Mapping[int, int]) -> tuple[TaskReport, ...]:
    """The replayed tasks under the partitions of the decided ones."""
    decided = {there: here for here, there in found.items()}
    renamed = (msgspec.structs.replace(task, partition=decided[task.partition]) for task in replayed)
    return tuple(sorted(renamed, key=lambda task: task.partition))


def all_staged(decision: Decision | None, lost: Collection[TaskKey], staging: StagedRows | None) -> bool:
    """Whether everything that was lost can be written from staged rows."""
    if decision is None or not lost or staging is None:
        return False
    partitions = {partition for _, partition in lost}
    return all(
        task.staged is not None and staging.has(task.staged) for task in decision.tasks if task.partition in partitions
    )


def publish(
    decision: Decision, work: Work, staging: StagedRows, sinks: Mapping[str, TwoPhaseCommitSink[Any]]
) -> tuple[TaskReport, ...]:
    """Pre-commit the wanted transactions of a decision again from the staged rows; returns the repaired tasks."""
    repaired = []
    for task in decision.tasks:
        handles = {}
        for name in sorted(name for name, partition in work.only_tasks or () if partition == task.partition):
            identity = TaskAttempt(
                query_id=decision.query_id,
                batch_id=decision.batch_id,
                attempt=work.attempt,
                partition=task.partition,
                driver_epoch=work.driver_epochs[name],
                committed_through=work.committed_through,
            )
            handles[name] = _publish_one(sinks[name], identity, staging.read(str(task.staged), name))
        if handles:
            repaired.append(msgspec.structs.replace(task, handles=handles))
    return tuple(repaired)


def _publish_one(
    sink: TwoPhaseCommitSink[Any], identity: TaskAttempt, rows: Iterator[pa.RecordBatch]
) -> dict[str, Any]:
    writer = sink.create_writer(identity)
    try:
        for batch in rows:
            writer.write_rows(batch)
        handle = writer.snapshot_state(identity.batch_id)
        writer.hand_over()
    finally:
        writer.close()
    return sink.encode_handle(handle)
