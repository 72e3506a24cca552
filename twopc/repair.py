"""Rule 9: a decided transaction that is proven lost is repaired, and only with the rows that were decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from twopc.attempt import TaskAttempt
from twopc.errors import InDoubtError
from twopc.handle import Evidence
from twopc.records import TaskReport

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from twopc.attempt import Attempt, TaskKey
    from twopc.log_view import LogView
    from twopc.records import Decision
    from twopc.sink import TwoPhaseCommitSink


class StagedRows(Protocol):
    """Rows kept by tasks until their transactions are proven (``staging=True``), as the driver sees them."""

    def has(self, name: str) -> bool:
        """Whether the slice is there, whole."""

    def read(self, name: str, sink: str) -> Iterator[pa.RecordBatch]:
        """Its rows, as that sink's writer takes them; memory does not grow with the slice."""

    def release(self, driver_epoch: int, batch: int) -> None:
        """Drop what this driver and earlier ones staged up to ``batch``: it is proven. Best effort, raises nothing."""


def match_rows(
    view: LogView,
    replayed: Sequence[TaskReport],
    evidence: Mapping[TaskKey, Evidence],
    name_of: Callable[[TaskKey], str],
    *,
    expected: Mapping[int, int],
) -> dict[int, int]:
    """Which task of the replay has the rows of which decided task.

    The replay must give the decided rows for *all* tasks: else the lost rows are not those of the same tasks today. It
    need not give them in the same order: Spark plans the tasks of a source with few partitions in another order when it
    reads their offsets back from the checkpoint.

    Args:
        view: holds the decision.
        replayed: a report of every task.
        evidence: for the error.
        name_of: for the error.
        expected: decided partition -> replayed partition, taken where several fit; the same where absent.

    Returns:
        decided partition -> replayed partition.

    Raises:
        InDoubtError: it does not; names what is in and what is lost.
    """
    if view.decision is None:
        raise AssertionError("a repair needs a decision")
    places: dict[tuple[int, int], list[int]] = {}
    for task in replayed:
        places.setdefault((task.rows, task.checksum), []).append(task.partition)
    found: dict[int, int] = {}
    for wanted_place in (True, False):
        for task in view.decision.tasks:
            fitting = places.get((task.rows, task.checksum), [])
            place = expected.get(task.partition, task.partition)
            if task.partition not in found and fitting and (place in fitting or not wanted_place):
                found[task.partition] = place if place in fitting else fitting[0]
                fitting.remove(found[task.partition])
    if len(found) != len(view.decision.tasks) or len(found) != len(replayed):
        raise in_doubt(
            view.decision,
            evidence,
            name_of,
            "the replay does not give the same rows task by task (a shuffle, AQE, changed partitions or a "
            "non-deterministic expression), so the lost ones cannot be told from those that are in. staging=True keeps "
            "the rows and prevents this",
        )
    return found


def as_decided(replayed: Sequence[TaskReport], found: Mapping[int, int]) -> tuple[TaskReport, ...]:
    """The replayed tasks under the partitions of the decided ones."""
    decided = {there: here for here, there in found.items()}
    renamed = (msgspec.structs.replace(task, partition=decided[task.partition]) for task in replayed)
    return tuple(sorted(renamed, key=lambda task: task.partition))


def in_doubt(
    decision: Decision, evidence: Mapping[TaskKey, Evidence], name_of: Callable[[TaskKey], str], why: str
) -> InDoubtError:
    """The error that names every transaction of the decision by what became of it."""

    def named(what: Evidence) -> list[str]:
        return [name_of(slot) for slot, found in sorted(evidence.items()) if found is what]

    return InDoubtError(
        f"batch {decision.batch_id} is decided and some of its transactions are lost: {why}. Nothing more was written",
        committed=named(Evidence.COMMITTED),
        lost=named(Evidence.ABORTED),
        unknown=named(Evidence.UNKNOWN),
    )


def all_staged(decision: Decision | None, lost: Collection[TaskKey], staging: StagedRows) -> bool:
    """Whether everything that was lost can be written from staged rows."""
    if decision is None or not lost:
        return False
    partitions = {partition for _, partition in lost}
    return all(
        task.staged is not None and staging.has(task.staged) for task in decision.tasks if task.partition in partitions
    )


def publish(  # noqa: PLR0913 - all that names a transaction
    decision: Decision,
    lost: Collection[TaskKey],
    staging: StagedRows,
    *,
    sinks: Mapping[str, TwoPhaseCommitSink[Any]],
    attempt: Attempt,
    driver_epochs: Mapping[str, int],
    committed_through: int,
) -> tuple[TaskReport, ...]:
    """Pre-commit the lost transactions again, from the staged rows, in this process."""
    repaired = []
    for task in decision.tasks:
        handles = {}
        for name in sorted(name for name, partition in lost if partition == task.partition):
            identity = TaskAttempt(
                query_id=decision.query_id,
                batch_id=decision.batch_id,
                attempt=attempt,
                partition=task.partition,
                driver_epoch=driver_epochs[name],
                committed_through=committed_through,
            )
            handles[name] = _publish_one(sinks[name], identity, staging.read(str(task.staged), name))
        if handles:
            repaired.append(
                TaskReport(
                    partition=task.partition,
                    rows=task.rows,
                    checksum=task.checksum,
                    handles=handles,
                    staged=task.staged,
                )
            )
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
