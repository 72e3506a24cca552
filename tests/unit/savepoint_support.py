"""A query that takes savepoints, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.integration.operate.boundary import Savepoints
from twopc.integration.spark.interceptors import InterceptedBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def saving(function: Callable[[Any, int], object], checkpoint: Path | str, **settings: Any) -> Callable[[int], None]:
    """One run of a query whose function is behind :class:`Savepoints`; takes the numbers of its batches."""
    savepoints, frames = Savepoints(**settings), None

    def write(batch_id: int) -> None:
        batch = InterceptedBatch(frames, batch_id, str(checkpoint), "run")  # type: ignore[arg-type]
        savepoints.intercept(batch, lambda passed: function(passed, batch_id))  # type: ignore[arg-type]

    return write
