"""The record of a checkpoint's outcome, and a readable description. The terms are Flink's; here a checkpoint is a batch.

A checkpoint is *triggered*, its tasks *acknowledge* it, and it is *completed*; or a task *declines* it, or it *expires*, or it
*fails* otherwise. ``twopc.pending`` records the events until then.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from twopc.counted import counted

#: The format of a record. A new field with a default keeps the number; any other change needs a new number.
FORMAT: Final = "twopc-history/1"

COMPLETED: Final = "completed"
#: Why a checkpoint, or one attempt at it, failed.
DECLINED: Final = "declined"
EXPIRED: Final = "expired"
FAILED: Final = "failed"


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task's vote. The task's own clock measured all durations, in ms.

    Attributes:
        partition: the task's number in the batch.
        attempt: Spark's number of the task attempt; 0 is the first one.
        took_ms: the time from the task's first action to the hand-over of its handles.
        read_ms: the part of ``took_ms`` spent waiting for rows from the source, the shuffle and the user's own functions.
        flush_ms: the part of ``took_ms`` spent waiting until the sinks had the rows. The rest is the conversion of rows.
        host: the host where the task ran; empty in the driver.
    """

    partition: int
    attempt: int = 0
    rows: int = 0
    size_bytes: int = 0
    took_ms: float = 0.0
    read_ms: float = 0.0
    flush_ms: float = 0.0
    host: str = ""


class StateSize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The size of an operator's state in the engine's state store, over all of its tasks.

    Attributes:
        operator: the engine's name for the operator.
        memory_bytes: the store's memory, as the engine counts it.
        commit_ms: how long the tasks took in total to commit the last version.
        sizes: further sizes under the store's own names, such as RocksDB's files.
    """

    operator: str
    rows: int
    memory_bytes: int
    commit_ms: int = 0
    sizes: dict[str, int] = {}


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt or a checkpoint failed.

    Attributes:
        reason: ``declined`` if a task voted no; ``expired`` if the time was up before the pre-commit; ``failed`` otherwise.
        phase: the phase in which it failed.
        error: the name of the error's class.
        late: the number of acknowledgements that arrived after the time limit. Their transactions were aborted.
    """

    reason: str
    phase: str
    error: str
    message: str
    late: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=FORMAT, tag_field="format"):
    """A checkpoint that has ended: one line of the history. New fields have a default.

    Attributes:
        batch_id: the batch's id, which is also the checkpoint's.
        status: ``completed`` or ``failed``.
        triggered_ms: the time of the trigger, in ms since 1970 UTC.
        took_ms: the time from the trigger to the end.
        pause_ms: the time from the end of the run's last checkpoint to this trigger; None for the first checkpoint of a run.
        failed_before: how many checkpoints of this batch failed directly before this one and were tolerated.
        way: who wrote the rows: ``direct`` (the driver), ``tasks``, ``both``; empty if nothing was written.
        steps: the steps of the recovery table, such as ``write`` or ``repair``; empty for a replay that had nothing to write.
        phases: the ms spent in each phase, in order. The times of a phase that occurred twice are added up.
        tasks: the number of tasks that acknowledged.
        transactions: the number of transactions that were decided.
        orphans_ended: open undecided transactions that the sweeps have ended since the last checkpoint, in the sinks that
            count them.
        planned: how much input Spark had planned, in the source's own unit; None if the source does not report it.
        limit_ms: the time limit for preparing; None: no limit.
        limited_by: the settings that change ``limit_ms``.
        median_ms: the median of the tasks' durations.
        slowest: the tasks that took longest, the longest first.
        retried: the slowest of the acknowledged tasks that the engine had retried.
        failed_attempts: the last few attempts that failed and were retried in this process.
        state: the size of the state at the trigger, as the previous batch left it. Empty in the first checkpoint of a run.
        cause: why the checkpoint failed; None if it completed.
    """

    batch_id: int
    query_id: str
    run_id: str
    status: str
    triggered_ms: int
    took_ms: float
    pause_ms: float | None = None
    failed_before: int = 0
    way: str = ""
    steps: tuple[str, ...] = ()
    phases: dict[str, float] = {}
    tasks: int = 0
    transactions: int = 0
    rows: int = 0
    size_bytes: int = 0
    orphans_ended: int = 0
    planned: int | None = None
    limit_ms: float | None = None
    limited_by: str = ""
    median_ms: float = 0.0
    slowest: tuple[Acknowledgement, ...] = ()
    retried: tuple[Acknowledgement, ...] = ()
    state: tuple[StateSize, ...] = ()
    failed_attempts: tuple[Cause, ...] = ()
    cause: Cause | None = None

    @property
    def outcome(self) -> str:
        """``completed``, or the reason why not: ``declined``, ``expired``, ``failed``."""
        return self.status if self.cause is None else self.cause.reason


def describe(checkpoint: Checkpoint) -> str:
    """Describe a failed checkpoint in sentences: when, for how long, in which phase, the slowest task, the limit."""
    ended_ms = checkpoint.triggered_ms + checkpoint.took_ms
    phases = ", ".join(f"{phase} {seconds(ms)}" for phase, ms in checkpoint.phases.items())
    triggered = (
        f"Checkpoint {checkpoint.batch_id} was triggered at {utc(checkpoint.triggered_ms)} and {checkpoint.outcome} at "
        f"{utc(ended_ms)}, after {seconds(checkpoint.took_ms)}{f' ({phases})' if phases else ''}"
    )
    sentences = [triggered]
    if checkpoint.failed_before:
        sentences.append(
            f"Earlier failures of this batch: {checkpoint.failed_before}, see CheckpointConfig.tolerable_failures"
        )
    if checkpoint.slowest:
        slowest = checkpoint.slowest[0]
        where = f" on {slowest.host}" if slowest.host else ""
        sentences.append(
            f"The slowest of {counted(checkpoint.tasks, 'task')} that acknowledged: {slowest.partition}{where}, "
            f"{counted(slowest.rows, 'row')} in "
            f"{seconds(slowest.took_ms)}, {seconds(slowest.read_ms)} of it waiting for rows, {seconds(slowest.flush_ms)} "
            "flushing"
        )
    if checkpoint.limit_ms is not None:
        sentences.append(f"Its limit was {seconds(checkpoint.limit_ms)}, set by {checkpoint.limited_by}")
    if checkpoint.cause is not None and checkpoint.cause.late:
        sentences.append(
            f"{counted(checkpoint.cause.late, 'acknowledgement')} came late; "
            f"{'its' if checkpoint.cause.late == 1 else 'their'} transactions were aborted"
        )
    return ". ".join(sentences)


def seconds(ms: float) -> str:
    """Format a duration, given in ms, for people."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"  # noqa: PLR2004 - a second


def utc(ms: float) -> str:
    """Format a time, given in ms since 1970, for people: in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))
