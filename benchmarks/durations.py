"""Read a query's batch times from Spark's own progress reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def durations_ms(query: StreamingQuery, what: str, *, warm_up: int) -> list[float]:
    """Return one kind of time for each batch, in ms.

    Args:
        query: a query that has ended.
        what: Spark's name for the time, such as ``addBatch``.
        warm_up: how many batches at the start do not count.
    """
    durations: list[dict[str, Any]] = [entry["durationMs"] for entry in query.recentProgress]
    return [each[what] for each in durations if "addBatch" in each][warm_up:]
