"""One attempt at a task, for engines without Spark: the steps of ``integration.spark.task``, which needs Spark's context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from integration.spark.views import View
from twopc.sink import TaskAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from twopc.engine import Work
    from twopc.sink import HandleT, TwoPhaseCommitSink


def attempt_of(work: Work, sink: str, partition: int) -> TaskAttempt:
    """What the sink of that name is told of one task of ``work``."""
    return TaskAttempt(
        lineage=work.checkpoint.lineage,
        checkpoint_id=work.checkpoint.batch,
        attempt=work.attempt,
        partition=partition,
        incarnation=work.incarnations[sink],
        settled_through=work.settled_through,
    )


def is_wanted(work: Work, sink: str, partition: int) -> bool:
    """Whether the task is to write into the sink of that name; it is evaluated and reported in any case (rule 9)."""
    return work.only is None or (sink, partition) in work.only


def keyed_views(*sinks: str) -> dict[str, View]:
    """What sinks are given of rows that have a key and a value."""
    return {sink: View(columns=(("key", 0), ("value", 1))) for sink in sinks}


def prepare(sink: TwoPhaseCommitSink[HandleT], task: TaskAttempt, batches: Iterable[pa.RecordBatch]) -> HandleT | None:
    """Write and hand over, as a worker that outlives its errors: the writer is closed. None for a task without rows."""
    writer = sink.create_writer(task)
    try:
        for rows in batches:
            writer.write_rows(rows)
        handle = writer.snapshot_state(task.checkpoint_id)
        writer.hand_over()
    finally:
        writer.close()
    return handle


def prepare_all(
    sinks: Iterable[TwoPhaseCommitSink[Any]], work: Work, partition: int, batches: Sequence[pa.RecordBatch]
) -> dict[str, dict[str, Any]]:
    """The same rows into each sink that is wanted: the handles as a task's report carries them."""
    handles = {}
    for sink in sinks:
        if is_wanted(work, sink.name, partition):
            handle = prepare(sink, attempt_of(work, sink.name, partition), batches)
            if handle is not None:
                handles[sink.name] = sink.encode_handle(handle)
    return handles
