"""Read the query id and batch id that Spark's own streaming writer records in the summary of each Iceberg snapshot.

Source: ``SparkWrite.java`` in Iceberg (``QUERY_ID_PROPERTY``, ``EPOCH_ID_PROPERTY``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table.metadata import TableMetadata

_QUERY: Final = "spark.sql.streaming.queryId"
_BATCH: Final = "spark.sql.streaming.epochId"
#: Other programs also write summaries.
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def newest_batch(metadata: TableMetadata, query_id: str) -> int | None:
    """Find the query's newest batch that Spark's own writer recorded in an unexpired snapshot."""
    return max((batch for batch, _ in _batches(metadata, query_id)), default=None)


def committed_ms(metadata: TableMetadata, query_id: str, batch_id: int) -> int | None:
    """Return when Spark's own writer committed one of the query's batches, according to the clock of the writer's driver."""
    return max((at_ms for batch, at_ms in _batches(metadata, query_id) if batch == batch_id), default=None)


def _batches(metadata: TableMetadata, query_id: str) -> Iterator[tuple[int, int]]:
    """Yield each recorded batch, and the time of its snapshot."""
    for found in metadata.snapshots:
        summary = {} if found.summary is None else found.summary.additional_properties
        if summary.get(_QUERY) == query_id and _NUMBER.fullmatch(batch := summary.get(_BATCH, "")):
            yield int(batch), found.timestamp_ms
