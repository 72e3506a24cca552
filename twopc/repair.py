"""Rule 9: a decided transaction that is proven lost is written again, with only the rows that were decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from twopc.attempt import TaskKey
    from twopc.engine import StagedRows
    from twopc.records import Decision, TaskReport


def match_rows(
    decision: Decision, replayed: Sequence[TaskReport], *, expected: Mapping[int, int]
) -> dict[int, int] | None:
    """Find, for each decided task, the task of the replay that has its rows.

    The replay must yield the decided rows for *all* tasks; otherwise the lost rows may now belong to other tasks. The order may
    differ: Spark plans the tasks of a source with few partitions in another order when it reads their offsets back from the
    checkpoint.

    Args:
        decision: what was decided.
        replayed: a report of every task.
        expected: the result of an earlier call, preferred where several tasks fit; without it, the same partition is preferred.

    Returns:
        decided partition -> replayed partition; None if the replay yields other rows.
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
    # Equal rows in another DataFrame are for other sinks.
    return task.frame_name, task.rows, task.checksum


def as_decided(replayed: Sequence[TaskReport], found: Mapping[int, int]) -> tuple[TaskReport, ...]:
    """Renumber the replayed tasks with the partitions of the decided ones."""
    decided = {there: here for here, there in found.items()}
    renamed = (msgspec.structs.replace(task, partition=decided[task.partition]) for task in replayed)
    return tuple(sorted(renamed, key=lambda task: task.partition))


def lost_tasks(decision: Decision, lost: Collection[TaskKey]) -> tuple[TaskReport, ...]:
    """The decided tasks with lost transactions, without their handles."""
    partitions = {partition for _, partition in lost}
    return tuple(msgspec.structs.replace(task, handles={}) for task in decision.tasks if task.partition in partitions)


def all_staged(decision: Decision | None, lost: Collection[TaskKey], staging: StagedRows | None) -> bool:
    """Whether all lost rows can be written again from staged rows."""
    if decision is None or not lost or staging is None:
        return False
    return all(task.staged is not None and staging.has(task.staged) for task in lost_tasks(decision, lost))
