"""Read the query id and batch id that Spark's own streaming writer records in the summary of each Iceberg snapshot.

Source: ``SparkWrite.java`` in Iceberg (``QUERY_ID_PROPERTY``, ``EPOCH_ID_PROPERTY``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_QUERY: Final = "spark.sql.streaming.queryId"
_BATCH: Final = "spark.sql.streaming.epochId"
#: Other programs also write summaries.
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def newest_batch(metadata: TableMetadata, query_id: str) -> int | None:
    """Find the newest of the query's batches that Spark's own writer recorded in unexpired snapshots."""
    summaries = [found.summary.additional_properties for found in metadata.snapshots if found.summary is not None]
    batches = [one.get(_BATCH, "") for one in summaries if one.get(_QUERY) == query_id]
    return max((int(batch) for batch in batches if _NUMBER.fullmatch(batch)), default=None)
