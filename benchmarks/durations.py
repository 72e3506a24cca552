"""Read the times of a query's batches from Spark's own progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def durations_ms(query: StreamingQuery, what: str, *, warm_up: int) -> list[float]:
    """Return one of the times of each batch in ms.

    Args:
        query: a query that has ended.
        what: Spark's name for the time, such as ``addBatch``.
        warm_up: the number of batches at the start that do not count.
    """
    durations: list[dict[str, Any]] = [entry["durationMs"] for entry in query.recentProgress]
    return [each[what] for each in durations if "addBatch" in each][warm_up:]
