"""Record a checkpoint's outcome and describe it in words. The terms are Flink's, but here each batch is one checkpoint.

A checkpoint is *triggered*, its tasks *acknowledge* it, and it is *completed*. A checkpoint that is not completed was
*declined* by a task, *expired*, or *failed* for another reason. ``twopc.pending`` records the events until the checkpoint ends.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from twopc.counted import counted

#: A record's format. A new field with a default does not change the number; any other change does.
FORMAT: Final = "twopc-history/1"

COMPLETED: Final = "completed"
#: Why a checkpoint, or one attempt at it, failed.
DECLINED: Final = "declined"
EXPIRED: Final = "expired"
FAILED: Final = "failed"


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task's vote. All durations are in ms, on the task's clock.

    Attributes:
        partition: the task number in the batch.
        attempt: Spark's number for the task attempt; the first is 0.
        took_ms: the time from the task's first action until it reported its handles.
        read_ms: the part of ``took_ms`` spent waiting for rows from the source, the shuffle and the user's functions.
        flush_ms: the part of ``took_ms`` spent waiting until the sinks had the rows. The task spent the rest of the
            time converting rows.
        host: the host where the task ran; empty if it ran in the driver.
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
    """The size of an operator's state in the engine's state store, summed over all tasks.

    Attributes:
        operator: the engine's name for the operator.
        memory_bytes: the memory that the store uses, as the engine reports it.
        commit_ms: how long the tasks took in total to commit the last version.
        sizes: other sizes, under the store's own names for them, such as the size of RocksDB's files.
    """

    operator: str
    rows: int
    memory_bytes: int
    commit_ms: int = 0
    sizes: dict[str, int] = {}


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt or a checkpoint failed.

    Attributes:
        reason: ``declined`` if a task failed; ``expired`` if time ran out before the pre-commit ended; ``failed`` otherwise.
        phase: the phase in which the failure happened.
        error: the error's class name.
        late: the number of acknowledgements that arrived after the time limit. The transactions of these late tasks were
            aborted.
    """

    reason: str
    phase: str
    error: str
    message: str
    late: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=FORMAT, tag_field="format"):
    """A checkpoint that has ended. Each line of the history contains one checkpoint.

    Attributes:
        batch_id: the batch id, which is also the checkpoint id.
        status: ``completed`` or ``failed``.
        triggered_ms: the Unix time at which the checkpoint was triggered, in milliseconds.
        took_ms: the time from the trigger to the end.
        pause_ms: the time from the end of the run's previous checkpoint to this trigger; None if there was none.
        failed_before: how many checkpoints of this batch had failed and been tolerated before this checkpoint.
        way: who wrote the rows: ``direct`` (the driver), ``tasks`` or ``both``; empty if no rows were written.
        steps: the steps from the recovery table, such as ``write`` or ``repair``; empty if a replay had no rows to
            write.
        phases: the ms spent in each phase, in order. If a phase occurred twice, its times are added up.
        tasks: the number of tasks that acknowledged the checkpoint.
        transactions: the number of transactions that were decided.
        orphans_ended: how many open, undecided transactions the sweeps have ended since the last checkpoint. Some sinks
            do not count these transactions.
        planned: how much input Spark had planned, in the source's unit; None if the source does not report it.
        limit_ms: the time limit for preparing; None means no limit.
        limited_by: the settings that change ``limit_ms``.
        median_ms: the median task duration.
        slowest: the slowest tasks, slowest first.
        retried: among the acknowledged tasks that the engine had retried, the slowest ones.
        failed_attempts: the last few attempts that failed and were retried in this process.
        state: the state size at the trigger, that is, after the previous batch. The state is empty in a run's first
            checkpoint.
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
        """``completed``, or the reason for the failure: ``declined``, ``expired`` or ``failed``."""
        return self.status if self.cause is None else self.cause.reason


def describe(checkpoint: Checkpoint) -> str:
    """Describe a failed checkpoint in sentences, with its times, phases, slowest task and time limit."""
    ended_ms = checkpoint.triggered_ms + checkpoint.took_ms
    phases = ", ".join(f"{phase} {seconds(ms)}" for phase, ms in checkpoint.phases.items())
    triggered = (
        f"Checkpoint {checkpoint.batch_id} was triggered at {utc(checkpoint.triggered_ms)} and {checkpoint.outcome} at "
        f"{utc(ended_ms)}, after {seconds(checkpoint.took_ms)}{f' ({phases})' if phases else ''}"
    )
    sentences = [triggered]
    if checkpoint.failed_before:
        sentences.append(
            f"This batch had already failed {counted(checkpoint.failed_before, 'time')} "
            "(CheckpointConfig.tolerable_failures)"
        )
    if checkpoint.slowest:
        slowest = checkpoint.slowest[0]
        where = f" on {slowest.host}" if slowest.host else ""
        sentences.append(
            f"The slowest of {counted(checkpoint.tasks, 'task')} that acknowledged the checkpoint was task "
            f"{slowest.partition}{where}. It took {seconds(slowest.took_ms)} for {counted(slowest.rows, 'row')}, "
            f"including {seconds(slowest.read_ms)} waiting for rows and {seconds(slowest.flush_ms)} flushing"
        )
    if checkpoint.limit_ms is not None:
        sentences.append(
            f"The checkpoint's time limit was {seconds(checkpoint.limit_ms)}, set by {checkpoint.limited_by}"
        )
    if checkpoint.cause is not None and checkpoint.cause.late:
        sentences.append(
            f"{counted(checkpoint.cause.late, 'acknowledgement')} arrived late, so "
            f"{'its' if checkpoint.cause.late == 1 else 'their'} transactions were aborted"
        )
    return ". ".join(sentences)


def seconds(ms: float) -> str:
    """Format a duration in ms for a message."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"  # noqa: PLR2004 - one second


def utc(ms: float) -> str:
    """Format a Unix time in ms as UTC, to the second, for a message."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))
