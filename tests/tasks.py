"""One attempt at a task, for engines without Spark: the steps of ``integration.spark.task``, which needs a Spark task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from integration.spark.views import View
from twopc.testing.contract.drivers import attempt_of, is_wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.engine import Work
    from twopc.handle import HandleT
    from twopc.sink import TwoPhaseCommitSink

__all__ = ["attempt_of", "is_wanted", "keyed_views", "prepare", "prepare_all"]


def keyed_views(*sinks: str) -> dict[str, View]:
    """The views of sinks that take a key and a value."""
    return {sink: View(columns=(("key", 0), ("value", 1))) for sink in sinks}


def prepare(sink: TwoPhaseCommitSink[HandleT], task: TaskAttempt, batches: Iterable[pa.RecordBatch]) -> HandleT | None:
    """Write and hand over. Closes the writer even after an error, as a Spark worker does. None for a task without rows."""
    writer = sink.create_writer(task)
    try:
        for rows in batches:
            writer.write_rows(rows)
        handle = writer.snapshot_state(task.batch_id)
        writer.hand_over()
    finally:
        writer.close()
    return handle


def prepare_all(
    sinks: Iterable[TwoPhaseCommitSink[Any]], work: Work, partition: int, batches: Sequence[pa.RecordBatch]
) -> dict[str, dict[str, Any]]:
    """Write the same rows into each sink that is wanted; returns the handles as a task's report carries them."""
    handles = {}
    for sink in sinks:
        if is_wanted(work, sink.name, partition):
            handle = prepare(sink, attempt_of(work, sink.name, partition), batches)
            if handle is not None:
                handles[sink.name] = sink.encode_handle(handle)
    return handles
