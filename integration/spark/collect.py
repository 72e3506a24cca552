"""Collect a small DataFrame as Arrow batches in the driver.

A limit ensures that a large DataFrame does not fill a process's memory. Spark's public ``toArrow`` has no limit except
``spark.driver.maxResultSize`` (1 GiB), and Spark 3.5 does not provide ``toArrow``. So this module reads the stream that
``toArrow`` reads (``Dataset.collectAsArrowToPython``).
"""

from __future__ import annotations

import contextlib
import logging
import struct
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql.pandas import conversion

from twopc.integration.spark.budget import spent_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.integration.spark.budget import Budget
    from twopc.integration.spark.frame import Rows

logger = logging.getLogger(__name__)

#: The setting for Spark's limit, as Spark's error names it. The limit applies to all of a job's results as they arrive
#: from the executors.
_SPARKS_LIMIT: Final = "spark.driver.maxResultSize"


def collect(
    rows: Rows, *, max_bytes: int | None, budget: Budget | None, cancel: Callable[[], None]
) -> list[pa.RecordBatch] | None:
    """Evaluate a DataFrame once and collect its rows, in the order of its partitions.

    Args:
        rows: the DataFrame.
        max_bytes: the limit in bytes; None for no limit.
        budget: also keeps each task within the limit; None if the tasks may send all rows.
        cancel: ends the DataFrame's jobs. This function calls ``cancel`` as soon as the limit is exceeded.

    Returns:
        the rows; None if their size exceeds the limit, or if ``budget`` cannot be applied to the tasks. With a budget,
        no task has sent more than the limit plus one row. Without a budget, this process has dropped the rows over the limit,
        and only Spark's own limit applies to the other processes.

    Raises:
        Exception: the evaluation failed. Any other Spark action would raise the same exception.
    """
    try:
        return _collect(rows, max_bytes, budget, cancel)
    except Exception:
        if max_bytes is None:  # neither an error in the JVM nor a broken connection to it names a setting
            logger.error(  # noqa: TRY400 - the error itself is raised again
                "the driver could not collect the rows of a batch. No data is lost. If the error is about memory "
                "(OutOfMemoryError, spark.driver.maxResultSize), set write_by='auto'. The tasks then write every batch "
                "that is too large for the driver. Or raise the driver's memory: spark.driver.memory, "
                "spark.driver.maxResultSize"
            )
        raise


def _collect(
    rows: Rows, max_bytes: int | None, budget: Budget | None, cancel: Callable[[], None]
) -> list[pa.RecordBatch] | None:
    stream = Stream(max_bytes, cancel)
    frame, arranged = rows.for_driver()
    dataset: Any = frame._jdf  # noqa: SLF001 - see above
    if max_bytes is not None and budget is not None:
        dataset = budget.bounded(frame, max_bytes)
    if dataset is None:
        return None
    connection, secret, server = dataset.collectAsArrowToPython()
    load: Any = conversion._load_from_socket  # type: ignore[attr-defined] # noqa: SLF001 - see above
    try:
        loaded: Any = load((connection, secret), stream)
        # In Spark 4.1 and newer, leaving this block closes the connection.
        with loaded if hasattr(loaded, "__enter__") else contextlib.nullcontext(loaded):
            pass
    finally:
        try:
            with unwrap_spark_exception():
                server.getResult()  # raises the evaluation's error
        except Exception as error:
            if max_bytes is None or not stream.is_void(error):
                raise
    has_held_back = max_bytes is not None and budget is not None and spent_bytes(stream.batches) > max_bytes
    return None if stream.is_over or has_held_back else arranged(stream.batches)


class Stream:
    """Reads Arrow batches in the order of their arrival, and then the indices that restore the original order.

    Attributes:
        batches: the Arrow batches in their original order; empty if they exceed the limit.
        size_bytes: the total size of all batches that arrived.
    """

    def __init__(self, max_bytes: int | None, cancel: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._cancel = cancel
        self._arrived: list[pa.RecordBatch] = []
        self.batches: list[pa.RecordBatch] = []
        self.size_bytes = 0
        self.is_over = False

    def is_void(self, error: Exception) -> bool:
        """Whether the job failed because its result exceeds ``max_bytes`` or Spark's own limit."""
        self.is_over |= _SPARKS_LIMIT in str(error)
        return self.is_over

    def load_stream(self, stream: Any) -> Stream:
        """Read the stream. PySpark calls this method with the connection; see ``ArrowCollectSerializer``."""
        try:
            return self._load(stream)
        except BaseException:
            # Spark's scheduler sends the rows, so it would wait until somebody reads them, and every query would stop.
            with contextlib.suppress(OSError):
                stream.close()  # nothing else keeps the connection open (pyspark/util.py, `_create_local_socket`)
            raise

    def _load(self, stream: Any) -> Stream:
        with pa.ipc.open_stream(stream) as reader:
            for batch in reader:
                self.size_bytes += batch.nbytes
                if self._max_bytes is not None and self.size_bytes > self._max_bytes and not self.is_over:
                    self.is_over = True
                    self._arrived.clear()
                    self._cancel()
                if not self.is_over:  # the rest must be read, because the JVM waits for it
                    self._arrived.append(batch)
        if not self.is_over:
            (count,) = struct.unpack("!i", stream.read(4))
            indices = struct.unpack(f"!{count}i", stream.read(4 * count)) if count > 0 else ()
            self.batches = [self._arrived[index] for index in indices]
        return self
