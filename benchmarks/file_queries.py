"""Run streaming queries that read Parquet files, two files per batch."""

from __future__ import annotations

import statistics
import uuid
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.counting import WrongCountError
from benchmarks.durations import durations_ms
from twopc.integration.spark import exactly_once
from twopc.integration.spark.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from benchmarks.outputs import Output

COLUMNS: Final = "id BIGINT, key STRING, value STRING"
_WARM_UP_BATCHES: Final = 2
_TASKS: Final = 2
_VALUE_BYTES: Final = 100


class FileQueries:
    """Runs queries over the same files. Counts each output's rows, and then removes the output.

    Args:
        spark: the session.
        directory: the directory for the files and the checkpoints.
        rows: the number of rows in a batch.
        batches: the number of measured batches.
    """

    def __init__(self, spark: SparkSession, directory: Path, rows: int, batches: int) -> None:
        self._spark, self._directory, self.rows = spark, directory, rows
        self.expected = rows * (_WARM_UP_BATCHES + batches)
        self._files = directory / f"rows-{uuid.uuid4().hex}"
        self._files.mkdir()
        first, half = 0, rows // _TASKS
        for number in range((_WARM_UP_BATCHES + batches) * _TASKS):
            count = half if number % _TASKS else rows - half * (_TASKS - 1)
            pq.write_table(_rows(first, count), self._files / f"{number:06}.parquet")
            first += count

    def exactly_once(self, output: Output, settings: dict[str, Any], *, partitions: int | None = None) -> float:
        """Write to a new output with this project; return the median of ``addBatch`` in ms.

        Args:
            output: the store for the rows.
            settings: settings for ``exactly_once()``.
            partitions: the number of partitions into which the query shuffles its rows by key; None for no shuffle.
        """
        name, checkpoint = f"b{uuid.uuid4().hex[:8]}", self._checkpoint()
        output.create(name)
        each = exactly_once(output.sink(name), checkpoint_location=checkpoint, **settings)
        try:
            return self._run(
                output,
                name,
                lambda rows: rows.foreachBatch(each).option("checkpointLocation", checkpoint).start(),
                partitions,
            )
        finally:
            each.close()

    def other(self, output: Output, start: Callable[[DataStreamWriter, str], StreamingQuery]) -> float:
        """Write to a new output with another writer; return the median of ``addBatch`` in ms.

        Args:
            output: the store for the rows.
            start: starts a query that writes to the output with the given name.
        """
        name = f"b{uuid.uuid4().hex[:8]}"
        output.create(name)
        return self._run(
            output, name, lambda rows: start(rows.option("checkpointLocation", self._checkpoint()), name), None
        )

    @property
    def slots(self) -> int:
        """The number of tasks that the session runs at the same time."""
        return self._spark.sparkContext.defaultParallelism

    def counting(self, partitions: int, *, tasks: int | None = None) -> float:
        """Count the rows, and write nothing; see :meth:`exactly_once`.

        Args:
            partitions: the number of partitions into which the query shuffles its rows by key.
            tasks: the maximum number of tasks that count; None: as many as a sink has writers.
        """
        writers = tasks or Slots(self._spark.sparkContext).most_writers() or partitions

        def count(rows: DataFrame, _batch: int) -> None:
            rows.coalesce(writers).mapInArrow(_count, "rows BIGINT").collect()

        query = self._ended(
            lambda rows: rows.foreachBatch(count).option("checkpointLocation", self._checkpoint()).start(), partitions
        )
        return _median_ms(query)

    def _checkpoint(self) -> str:
        return str(self._directory / uuid.uuid4().hex)

    def _ended(self, start: Callable[[DataStreamWriter], StreamingQuery], partitions: int | None) -> StreamingQuery:
        source = self._spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", _TASKS)
        rows: DataFrame = source.parquet(str(self._files))
        if partitions is not None:
            rows = rows.repartition(partitions, "key")
        query = start(rows.writeStream.trigger(availableNow=True))
        query.awaitTermination()
        return query

    def _run(
        self, output: Output, name: str, start: Callable[[DataStreamWriter], StreamingQuery], partitions: int | None
    ) -> float:
        query = self._ended(start, partitions)
        counted = output.count(name)
        if counted != self.expected:
            raise WrongCountError(f"{output.title} has {counted} different rows instead of {self.expected}")
        output.drop(name)
        return _median_ms(query)


def _median_ms(query: StreamingQuery) -> float:
    return float(statistics.median(durations_ms(query, "addBatch", warm_up=_WARM_UP_BATCHES)))


def _count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"rows": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})


def _rows(first: int, count: int) -> pa.Table:
    """Make rows whose values compress poorly."""
    ids = pa.array(range(first, first + count), pa.int64())
    letters = np.random.default_rng(first).integers(ord("a"), ord("z") + 1, count * _VALUE_BYTES, dtype=np.uint8)
    offsets = np.arange(0, (count + 1) * _VALUE_BYTES, _VALUE_BYTES, dtype=np.int32)
    values = pa.StringArray.from_buffers(count, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters.tobytes()))
    return pa.table({"id": ids, "key": ids.cast(pa.string()), "value": values})
