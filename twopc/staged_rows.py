"""Rows that tasks keep until their transactions are proven (``staging=True``), as the driver sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


class StagedRows(Protocol):
    """The slices of every task attempt, by the names in the task reports."""

    def has(self, name: str) -> bool:
        """Whether the slice is there, whole."""

    def read(self, name: str, sink: str) -> Iterator[pa.RecordBatch]:
        """Its rows, as that sink's writer takes them. Memory does not grow with the slice."""

    def release(self, driver_epoch: int, batch_id: int) -> None:
        """Drop what this driver and earlier ones staged up to ``batch_id``: it is proven. Best effort, raises nothing."""
