"""Define the rules about slow checkpoints."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.integration.history.window import LEAST_MS, Evidence, Rule, slow_phase
from twopc.progress import seconds

if TYPE_CHECKING:
    from twopc.integration.history.window import Window
    from twopc.progress import Checkpoint, StateSize

#: A task is behind if it takes at least this multiple of the median time of all tasks.
_BEHIND: Final = 3.0
#: If a task that is behind has at least this multiple of the mean number of rows, it counts as having more rows than the others.
_MORE_ROWS: Final = 2.0
_LEAST_TASKS: Final = 3
_MANY_TASKS: Final = 32
_FEW_ROWS: Final = 1_000
#: A checkpoint is near its time limit if it takes at least this share of the limit.
_NEAR: Final = 0.5
#: A state is large if its commit takes at least this share of the tasks' time.
_STATE: Final = 0.3
#: The number of checkpoints needed to detect growth.
_TREND: Final = 9
_GROWTH: Final = 1.5


def _between_phases(window: Window) -> Evidence | None:
    """Check whether the checkpoint's files are slow to read.

    None of a batch's phases includes the time spent reading these files. Skip retried batches.
    """
    judged = [one for one in window.written if not one.failed_attempts]
    taken = [one.took_ms - sum(one.phases.values()) for one in judged]
    shares = [lost / max(1.0, one.took_ms) for lost, one in zip(taken, judged, strict=True)]
    if not taken or median(shares) < 0.3 or median(taken) < LEAST_MS:  # noqa: PLR2004 - a third of the checkpoint's time
        return None
    share = median(shares)  # not the mean, because a run's first checkpoint takes longer for other reasons
    return Evidence(0.7 * share, f"{share:.0%} of a checkpoint's time; the median is {seconds(median(taken))}")


def _flush(window: Window) -> Evidence | None:
    taken = [one.slowest[0].flush_ms for one in window.written if one.slowest]
    prepare = sum(one.phases.get("prepare", 0.0) for one in window.written if one.slowest)
    if not taken or not prepare or sum(taken) / prepare < 0.5 or median(taken) < LEAST_MS:  # noqa: PLR2004 - half of the prepare phase
        return None
    share = sum(taken) / prepare
    return Evidence(
        0.7 * min(1.0, share),
        f"the slowest task waits a median of {seconds(median(taken))} for the brokers; in total, {share:.0%} of the prepare "
        "phase",
    )


def _reading(window: Window) -> Evidence | None:
    """Detect slow evaluation. In a direct batch, Spark evaluates the rows while the driver waits without writing."""
    taken, prepare = [], 0.0
    for one in window.written:
        if one.slowest:
            slowest, whole = one.slowest[0], one.phases.get("prepare", 0.0)
            taken.append(
                slowest.read_ms if one.way != "direct" else max(0.0, whole - slowest.took_ms + slowest.read_ms)
            )
            prepare += whole
    if not taken or not prepare or sum(taken) / prepare < 0.6 or median(taken) < 2 * LEAST_MS:  # noqa: PLR2004 - most of the prepare phase
        return None
    share = sum(taken) / prepare
    text = f"a median of {seconds(median(taken))}; in total, {share:.0%} of the prepare phase"
    return Evidence(0.6 * min(1.0, share), text)


def _behind(window: Window, *, has_more_rows: bool) -> Evidence | None:
    """Check whether, in most checkpoints, one task is far behind the other tasks.

    The task may have received more rows than the other tasks.
    """
    judged = [one for one in window.by_tasks if one.tasks >= _LEAST_TASKS]
    found = []
    for one in judged:
        slowest = one.slowest[0]
        late = slowest.took_ms - one.median_ms
        more = slowest.rows >= _MORE_ROWS * one.rows / one.tasks
        if slowest.took_ms >= _BEHIND * one.median_ms and late >= LEAST_MS and more is has_more_rows:
            found.append((slowest, late / max(1.0, one.took_ms)))
    if not found or len(found) * 2 < len(judged):
        return None
    last, weight = found[-1][0], 0.75 * min(1.0, mean([share for _, share in found]))
    if has_more_rows:
        partition, times = Counter(slowest.partition for slowest, _ in found).most_common(1)[0]
        text = (
            f"in {len(found)} of {counted(len(judged), 'checkpoint')}, most often task {partition} ({counted(times, 'time')}), "
            f"most recently {counted(last.rows, 'row')}"
        )
        return Evidence(weight, f"{text} in {seconds(last.took_ms)}")
    host, times = Counter(slowest.host for slowest, _ in found).most_common(1)[0]
    return Evidence(
        weight,
        f"in {len(found)} of {counted(len(judged), 'checkpoint')}, most often on {host or 'one host'} ({counted(times, 'time')})",
    )


def _many_tasks(window: Window) -> Evidence | None:
    judged = window.by_tasks
    if not judged:
        return None
    tasks, rows = median([one.tasks for one in judged]), median([one.rows / one.tasks for one in judged])
    _, prepare = window.phase("prepare")
    if tasks < _MANY_TASKS or rows >= _FEW_ROWS or prepare < LEAST_MS:
        return None
    return Evidence(0.5, f"{tasks:.0f} tasks with {rows:.0f} rows each take {seconds(prepare)} to prepare")


def _near(window: Window) -> Evidence | None:
    shares = [
        (sum(one.phases.get(name, 0.0) for name in ("prepare", "confirm", "decide")) / one.limit_ms, one)
        for one in window.written
        if one.limit_ms
    ]
    share, worst = max(shares, key=lambda found: found[0], default=(0.0, None))
    if worst is None or share < _NEAR:
        return None
    limit = f"{seconds(worst.limit_ms or 0.0)} ({worst.limited_by})"
    return Evidence(0.4 + share / 3, f"checkpoint {worst.batch_id} needed {share:.0%} of its limit of {limit}")


def _large_state(window: Window) -> Evidence | None:
    """Detect a large state. A batch's record contains the state size at the end of the previous batch."""
    judged = [
        (one, after.state)
        for one, after in pairwise(window.checkpoints)
        if after.state and after.run_id == one.run_id and one in window.by_tasks
    ]
    if not judged:
        return None
    share = median([_state_share(one, state) for one, state in judged])
    if share < _STATE or share * median([one.phases.get("prepare", 0.0) for one, _ in judged]) < LEAST_MS:
        return None
    largest = max(judged[-1][1], key=lambda size: size.commit_ms)
    size = max(largest.memory_bytes, largest.sizes.get("rocksdbSstFileSize", 0))
    held = f"{largest.operator} holds {counted(largest.rows, 'row')}, {size / 1e6:,.0f} MB"
    return Evidence(0.55 + 0.4 * share, f"committing the state takes {share:.0%} of the prepare phase; {held}")


def _state_share(one: Checkpoint, state: tuple[StateSize, ...]) -> float:
    """Estimate the state commit's share of the checkpoint's time.

    If all tasks run in parallel, the share is at least a task's commit time divided by the duration of the prepare phase. If the
    tasks run one after another, the share is the time that a task waits for the commit, divided by the task's time. A short
    commit ends before a task's Python process is ready, so no task waits.
    """
    each = sum(size.commit_ms for size in state) / one.tasks
    at_once = each / max(1.0, one.phases.get("prepare", 0.0))
    in_turns = min(each, one.slowest[0].read_ms) / max(1.0, one.median_ms)
    return min(1.0, max(at_once, in_turns))


def _backpressure(window: Window) -> Evidence | None:
    """Detect batches that keep growing and follow each other without a pause."""
    judged = [one for one in window.written if one.planned is not None and one.pause_ms is not None]
    if len(judged) < _TREND:
        return None
    idle = sum((one.pause_ms or 0.0) > one.took_ms for one in judged)
    third = len(judged) // 3
    first, last = (median([one.planned or 0 for one in part]) for part in (judged[:third], judged[-third:]))
    if idle * 5 > len(judged) or last < _GROWTH * first or last <= first:
        return None
    return Evidence(0.65, f"batches grew from {first:.0f} to {last:.0f} records within {len(judged)} checkpoints")


SLOW: Final = (
    Rule(
        "slow decision",
        "Writing the decision is slow because the storage of the decision log is slow.",
        "Check the disks and the replicas of the brokers that store the ledger (its partition 0, and "
        "__transaction_state). If the decisions are stored as files in the checkpoint, check the checkpoint's file "
        "system.",
        slow_phase("decide", share=0.3),
    ),
    Rule(
        "slow checkpoint directory",
        "Reading the checkpoint directory is slow.",
        "Check the load on the disk or file system that contains checkpointLocation, and find out which other programs "
        "use it. Spark also writes to this directory for each batch. Stop the query, and move the checkpoint to a "
        "faster file system.",
        _between_phases,
    ),
    Rule(
        "slow commit",
        "Committing is slow, because the transaction coordinators are slow, or because a lock in the store blocks the "
        "commit.",
        "Check the brokers that store __transaction_state. To reduce the number of transactions, set "
        "CheckpointConfig(max_writers=…).",
        slow_phase("commit", share=0.3),
    ),
    Rule(
        "slow confirmation",
        "Confirming the votes is slow, because the transaction coordinators are slow to respond.",
        "Check the brokers that store __transaction_state, and the network between the driver and these brokers.",
        slow_phase("confirm", share=0.3),
    ),
    Rule(
        "slow flush",
        "Tasks wait for the brokers to accept their rows.",
        "Raise kafka.batch.size and kafka.linger.ms (fewer, larger requests), and set kafka.compression.type. Check the "
        "brokers' disks and the topic's min.insync.replicas. The flush must take less time than the sink's timeout_ms and "
        "kafka.transaction.timeout.ms, which is also the sink's delivery.timeout.ms.",
        _flush,
    ),
    Rule(
        "slow plan",
        "Most of the time is spent producing the rows, in the source, in a shuffle, or in the query's functions.",
        "The sink is not the cause. Examine the stage in the Spark UI. Add cores, or make the query do less.",
        _reading,
    ),
    Rule(
        "large state",
        "The query writes a large state at every checkpoint.",
        "Write only the changes: set spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled, and use "
        "RocksDB (spark.sql.streaming.stateStore.providerClass). You cannot change the provider of an existing "
        "checkpoint. Alternatively, keep less state (use a watermark, a shorter window, or fewer keys), or put the "
        "checkpoint on a faster file system.",
        _large_state,
    ),
    Rule(
        "skew",
        "One task processes more rows than the other tasks, and the batch waits for this task.",
        "Spread that task's key over several tasks: repartition by another column, or add a salt. If the source's "
        "partitions are uneven, lower spark.sql.files.maxPartitionBytes, or set minPartitions.",
        lambda window: _behind(window, has_more_rows=True),
    ),
    Rule(
        "slow host",
        "One task is slow, although it processes no more rows than the other tasks. The task's host, or a partition's "
        "leader, is slow.",
        "Check that host (disk, other processes, swap) and the leader of the partitions that the task writes to. "
        "spark.excludeOnFailure.enabled does not detect slowness.",
        lambda window: _behind(window, has_more_rows=False),
    ),
    Rule(
        "too many tasks",
        "Many tasks write only a few rows each, and each task uses its own transaction.",
        "Set CheckpointConfig(max_writers=…), so that fewer tasks write. Or raise write_by=DriverUpTo(…), so that the driver "
        "writes the batch in one transaction.",
        _many_tasks,
    ),
    Rule(
        "limit near",
        "Pre-commit uses a large part of its time limit. If a batch exceeds the limit, its checkpoint expires.",
        "Raise the limit now: CheckpointConfig.timeout_ms, or kafka.transaction.timeout.ms with transaction.max.timeout.ms.",
        _near,
    ),
    Rule(
        "falling behind",
        "The source grows faster than the query can read it. Batches run back to back and become larger.",
        "Give the query more cores, or make it faster, as the other findings suggest. In the meantime, set "
        "maxOffsetsPerTrigger to keep batches small. The backlog then waits in the source.",
        _backpressure,
    ),
)
