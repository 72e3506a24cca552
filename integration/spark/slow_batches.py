"""What to do about a batch that takes longer than its limit. In Spark, such a batch fails again after every restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.integration.spark.handed_over import was_begun

if TYPE_CHECKING:
    from twopc.batch import Batch
    from twopc.files import Files


def slow_batch_advice(location: str, own: Files, batch: Batch, *, is_undecided: bool) -> str:
    """Give advice on a batch that takes too long. The caller has already advised the user to raise the limit.

    Args:
        location: the checkpoint location.
        own: the directory ``<checkpoint>/twopc``.
        batch: the batch.
        is_undecided: whether the batch is undecided and every earlier batch is proven.
    """
    advice = (
        "Or give the query more cores. Smaller batches alone do not help, because Spark will first replay the batch "
        "that it has already planned"
    )
    if needed := _needs_offsets(own, batch, is_undecided=is_undecided):
        return f"{advice}. Do not delete the batch's offsets file, because {needed}"
    offsets = f"{location}/offsets/{batch.batch_id}"
    return (
        f"{advice}. If you cannot raise the limit and the source is Kafka, make Spark plan the batch again. No row is "
        f"lost, because the batch has not been decided. Stop the query, delete {offsets} (the newest file in that "
        f"directory) and {location}/offsets/.{batch.batch_id}.crc if it exists, set a smaller maxOffsetsPerTrigger, and "
        "restart"
    )


def _needs_offsets(own: Files, batch: Batch, *, is_undecided: bool) -> str:
    """Say why Spark must not plan the batch again, with fewer rows; empty if it may."""
    if not is_undecided:
        return "a decision depends on it"
    if was_begun(own, batch):
        return "another sink has written rows of the batch, and the hand-over depends on it"
    if batch.keeps_state():
        return "Spark may have written the query's state with these offsets"
    return ""
