"""Read a query's state sizes.

Spark reports the sizes after each batch. This report is too late for the batch's own record, but in time for the next
batch's record.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from twopc.integration.spark.overwritten import running_query
from twopc.progress import StateSize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

#: The state-store metrics that are sizes. RocksDB has ``rocksdbSstFileSize``, ``rocksdbBytesCopied`` and others.
_SIZE: Final = re.compile(r"Size|Bytes|Memory")


class StateSizes:
    """Reads the state sizes of one run of a query. A query without state is checked only once.

    Attributes:
        is_stateless: whether Spark has reported that the query has no state. False in a run's first batch, because Spark has
            not reported yet.
    """

    def __init__(self) -> None:
        self.is_stateless = False
        self._is_asked = True
        self._first_batch: int | None = None

    def before(self, session: SparkSession, query_id: str, batch_id: int) -> tuple[StateSize, ...]:
        """Return each operator's state size after the run's previous batch. Return () in the first batch."""
        if self._first_batch is None:
            self._first_batch = batch_id
        # Before a run's first batch, Spark may report triggers that found no data. These reports contain no operators, even if
        # the query is stateful.
        if not self._is_asked or batch_id == self._first_batch:
            return ()
        try:
            progress = running_query(session, query_id).lastProgress()
            if progress is None:
                return ()
            operators = [json.loads(one.json()) for one in progress.stateOperators()]
            self.is_stateless = not operators
            found = tuple(map(_size, operators))
        except Exception as error:  # noqa: BLE001 - a new version of Spark may return anything, and the sizes are optional
            logger.warning(
                "the history does not include the sizes of the query's state. No data is at risk. Cause: %s", error
            )
            found = ()
        self._is_asked = bool(found)
        return found


def _size(operator: dict[str, Any]) -> StateSize:
    custom = operator.get("customMetrics", {})
    return StateSize(
        operator=operator["operatorName"],
        rows=operator["numRowsTotal"],
        memory_bytes=operator["memoryUsedBytes"],
        commit_ms=operator["commitTimeMs"],
        sizes={name: value for name, value in sorted(custom.items()) if value and _SIZE.search(name)},
    )
