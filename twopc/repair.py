"""Implement rule 9: if a decided transaction is proven lost, write exactly its decided rows again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from twopc.records import Part, added_up

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from twopc.attempt import Place, TaskKey
    from twopc.engine import StagedRows
    from twopc.records import Decision, TaskReport


def match_rows(
    decision: Decision, replayed: Sequence[TaskReport], *, expected: Mapping[Place, Place]
) -> dict[Place, Place] | None:
    """For each decided partition of the plan, find the partition of the replay that contains the same rows.

    The replay must yield the decided rows in *all* partitions. Otherwise, the lost rows may now be in other partitions.
    A partition may move to a different task, and the order of the partitions may change. If a source has few
    partitions, Spark plans them in a different order when it reads their offsets from the checkpoint.

    Args:
        decision: the decision.
        replayed: the reports from all tasks of the replay.
        expected: the result of an earlier call. If several replayed places contain the rows of one decided place, this result
            determines which of them is preferred. If the result does not contain the decided place, the decided place itself is
            preferred.

    Returns:
        the replayed place for each decided place; None if the replay yields different rows.
    """
    fitting: dict[tuple[str, int, int], list[Place]] = {}
    for place, rows in _rows_by_place(replayed).items():
        fitting.setdefault(rows, []).append(place)
    decided = _rows_by_place(decision.tasks)
    found: dict[Place, Place] = {}
    for wanted_place in (True, False):
        for place, rows in decided.items():
            places, wanted = fitting.get(rows, []), expected.get(place, place)
            if place not in found and places and (wanted in places or not wanted_place):
                found[place] = wanted if wanted in places else places[0]
                places.remove(found[place])
    return found if len(found) == len(decided) and not any(fitting.values()) else None


def _rows_by_place(tasks: Iterable[TaskReport]) -> dict[Place, tuple[str, int, int]]:
    # Compare the DataFrame's name, too, because equal rows in another DataFrame are for other sinks. A repair keeps the
    # places of the decided rows.
    return {
        (task.frame_name, part.index): (task.frame_name, part.rows, part.checksum)
        for task in tasks
        for part in task.by_part
    }


def _places(task: TaskReport) -> list[Place]:
    return [(task.frame_name, part.index) for part in task.by_part]


def lost_places(
    decision: Decision, lost: Collection[TaskKey], found: Mapping[Place, Place]
) -> dict[str, frozenset[Place]]:
    """For each sink, find the places in the replay whose rows were in lost transactions.

    Args:
        decision: the decision.
        lost: the lost transactions.
        found: the replayed place for each decided place. A decided place without an entry has not moved.
    """
    places: dict[str, set[Place]] = {}
    for task in decision.tasks:
        for sink in task.handles:
            if (sink, task.partition) in lost:
                places.setdefault(sink, set()).update(found.get(place, place) for place in _places(task))
    return {sink: frozenset(some) for sink, some in places.items()}


def first_task(decision: Decision) -> int:
    """Return the lowest number that is higher than every task number in the decision."""
    return max((task.partition for task in decision.tasks), default=-1) + 1


def as_decided(
    decision: Decision, lost: Collection[TaskKey], replayed: Sequence[TaskReport], found: Mapping[Place, Place]
) -> tuple[TaskReport, ...] | None:
    """Convert a replay's tasks into tasks for the decision.

    Returns:
        one task for each new transaction, with that transaction's decided partitions. None if a lost transaction is not
        replaced, because the sink now takes none of its rows.
    """
    decided = {there: here for here, there in found.items()}
    first, places = first_task(decision), lost_places(decision, lost, {})
    made = [
        _as_repair(task, sink, first + task.partition, places.get(sink, frozenset()), decided)
        for task in replayed
        for sink in task.handles
    ]
    written = {(sink, place) for task in made for sink in task.handles for place in _places(task)}
    for task in decision.tasks:
        for sink in task.handles:
            if (sink, task.partition) in lost and written.isdisjoint((sink, place) for place in _places(task)):
                return None
    return tuple(made)


def _as_repair(
    task: TaskReport, sink: str, number: int, places: Collection[Place], decided: Mapping[Place, Place]
) -> TaskReport:
    here = [(decided[task.frame_name, part.index], part) for part in task.by_part]
    parts = tuple(Part(place[1], part.rows, part.checksum) for place, part in here if place in places)
    if not parts:
        raise AssertionError("a repair must write exactly the lost rows")
    rows, checksum = added_up(parts)
    return msgspec.structs.replace(
        task,
        partition=number,
        rows=rows,
        checksum=checksum,
        handles={sink: task.handles[sink]},
        staged=None,  # the file also contains the task's other rows
        parts=parts,
        is_repair=True,
    )


def lost_tasks(decision: Decision, lost: Collection[TaskKey]) -> tuple[TaskReport, ...]:
    """Return the decided tasks whose transactions were lost, leaving out their handles."""
    partitions = {partition for _, partition in lost}
    return tuple(msgspec.structs.replace(task, handles={}) for task in decision.tasks if task.partition in partitions)


def unseen_files(decision: Decision, lost: Collection[TaskKey], staging: StagedRows | None) -> list[str]:
    """List the lost rows' staged files that this start does not find. The user may have changed ``staging`` in the meantime."""
    names = [task.staged for task in lost_tasks(decision, lost) if task.staged is not None]
    return [name for name in names if staging is None or not staging.has(name)]


def all_staged(decision: Decision | None, lost: Collection[TaskKey], staging: StagedRows | None) -> bool:
    """Whether all lost rows can be written again from staged rows."""
    if decision is None or not lost or staging is None:
        return False
    return all(task.staged is not None and staging.has(task.staged) for task in lost_tasks(decision, lost))
