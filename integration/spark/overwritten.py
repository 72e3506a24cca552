"""Check a batch against its checkpoint, if the checkpoint's store lets another driver overwrite ``offsets/N``.

Spark's offset log relies on an atomic rename (``CheckpointFileManager.createAtomic``). Without an atomic rename, a driver that
is paused in the middle of a write may later replace the offsets of a batch that another driver has planned. Then a decision's
offsets would not match the rows that it commits, and a restart would lose or duplicate the rows that differ.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from twopc.errors import ConfigurationError, FatalError
from twopc.integration.spark import checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twopc.files import Files


def require_not_overwritten(session: SparkSession, files: Files, query_id: str, batch_id: int) -> None:
    """Check that the batch's offsets in the checkpoint match the offsets in the running query's memory.

    Raises:
        FatalError: the offsets differ.
        ConfigurationError: this version of Spark does not expose the running query's offsets.
    """
    written = checkpoint.offsets_by_source(files, batch_id) or {}
    try:
        running = _running_offsets(session, query_id)
    except Py4JError as error:
        raise ConfigurationError(
            f"another driver could overwrite a batch's offsets in {files.location}, and this version of Spark does "
            f"not show the running query's offsets ({error}). This run has written no part of the batch. Use a "
            "checkpoint on a POSIX path or on HDFS, or Spark 3.5 or 4.0"
        ) from error
    if sorted(map(_canonical, running)) != sorted(_canonical(line) for line in written.values() if line != "-"):
        raise FatalError(
            f"{files.location}/offsets/{batch_id} contains the offsets {', '.join(written.values())}, but this run "
            f"planned the batch with {', '.join(running)}. So another driver that uses this checkpoint has overwritten "
            "the offsets. This run has written no part of the batch. Make sure that only one driver is running. Then "
            "restart that driver, which will use the offsets in the checkpoint"
        )


def running_query(session: SparkSession, query_id: str) -> Any:
    """Find Spark's object for a running query.

    The public API exposes only the finished batches, and only to the session that started the query.

    A batch has its own session, but all sessions share the running queries.
    """
    session_of_batch: Any = session._jsparkSession  # noqa: SLF001 - see above
    key = session.sparkContext._jvm.java.util.UUID.fromString(query_id)  # type: ignore[union-attr]  # noqa: SLF001 - see above
    return session_of_batch.sharedState().activeStreamingQueries().get(key)


def _running_offsets(session: SparkSession, query_id: str) -> list[str]:
    """Read the end offsets, in no particular order, of the batch that a query is processing."""
    offsets = running_query(session, query_id).availableOffsets().values().iterator()
    found = []
    while offsets.hasNext():
        found.append(str(offsets.next().json()))
    return found


def _canonical(offset: str) -> str:
    try:
        return json.dumps(json.loads(offset), sort_keys=True)
    except ValueError:
        return offset
