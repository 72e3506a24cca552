"""Implement the coordinator's engine for a batch's DataFrames, through Spark Connect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twopc.integration.spark.engine import SparkEngine
from twopc.integration.spark.jobs import cancelled_after

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from twopc.engine import Work
    from twopc.integration.spark.frame import Rows
    from twopc.records import TaskReport


@dataclass(frozen=True, kw_only=True)
class ConnectEngine(SparkEngine):
    """See :class:`twopc.engine.Engine`. Cancels operations by tag, and collects only DataFrames that certainly fit in memory.

    Attributes:
        require_sound: checks the batch's plan before Spark runs it.
    """

    require_sound: Callable[[], None]

    def prepare(self, work: Work) -> list[TaskReport]:
        """See :class:`Engine`. Recovery runs before this check, so a rejected plan does not delay a decided batch."""
        self.require_sound()
        return super().prepare(work)

    def _cancelled_after(self, tag: str, timeout_ms: float | None) -> AbstractContextManager[Callable[[], bool]]:
        session: Any = self._session
        return cancelled_after(
            timeout_ms, tag, add=session.addTag, remove=session.removeTag, cancel=session.interruptTag
        )

    def _is_direct(self, frame_name: str) -> bool:
        # Under Spark Connect, a plan cannot enforce a budget, so the rows must fit even if the estimate is too small.
        is_sure = self.way.max_bytes is None or not self.way.needs_bound(frame_name)
        return is_sure and self.way.is_direct(frame_name)

    def _collect(self, rows: Rows, max_bytes: int | None, tag: str) -> list[pa.RecordBatch] | None:
        del max_bytes, tag
        table: pa.Table = rows.frame().toArrow()
        return table.to_batches()
