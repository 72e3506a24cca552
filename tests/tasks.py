"""One task attempt without Spark: the steps of ``twopc.integration.spark.task``, which needs a Spark task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.integration.spark.views import View
from twopc.testing.contract.drivers import attempt_of, is_wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from twopc.attempt import HandleT, TaskAttempt
    from twopc.engine import Work
    from twopc.sink import TwoPhaseCommitSink

__all__ = ["attempt_of", "is_wanted", "keyed_views", "prepare", "prepare_all"]


def keyed_views(*sinks: str) -> dict[str, View]:
    """The views for sinks that take a key and a value."""
    return {sink: View(columns=(("key", 0), ("value", 1))) for sink in sinks}


def prepare(sink: TwoPhaseCommitSink[HandleT], task: TaskAttempt, batches: Iterable[pa.RecordBatch]) -> HandleT | None:
    """Write the rows and hand over the handle; None if the task has no rows.

    Closes the writer even after an error, as a Spark worker does.
    """
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
    """Write the same rows into each wanted sink; returns the handles in the form that a task's report contains."""
    handles = {}
    for sink in sinks:
        if is_wanted(work, sink.name, partition):
            handle = prepare(sink, attempt_of(work, sink.name, partition), batches)
            if handle is not None:
                handles[sink.name] = sink.encode_handle(handle)
    return handles
