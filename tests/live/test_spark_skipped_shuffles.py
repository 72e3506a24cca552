"""Rule 6: a batch is decided even if Spark has not written one of its shuffles, because no task reads the shuffle."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from tests.live.file_query import Query, kafka_sink, values
from tests.live.spark_support import spark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

__all__ = ["spark"]

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"), pytest.mark.timeout(900)]

GROUPS = 3
#: The watermark is the newest time so far.
TIMED = "timestamp_seconds(n) AS at"


def _crossed(frame: DataFrame) -> DataFrame:
    """Each row's time, with each group of a table. Spark computes the groups with a shuffle, and does not broadcast them."""
    groups = frame.sparkSession.range(100).groupBy((sf.col("id") % GROUPS).alias("part")).count()
    rows = frame.selectExpr(TIMED).withWatermark("at", "0 seconds")
    return rows.crossJoin(groups.select("part").hint("shuffle_replicate_nl")).select("at")


def _counted(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(sf.window("at", "10 seconds")).count()
    return counts.selectExpr("'k' AS key", "concat(unix_timestamp(window.end), ':', count) AS value")


def _numbered(numbers: list[int]) -> Callable[[ExactlyOnce], Callable[[DataFrame, int], None]]:
    """A function that records the batches' numbers."""

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            each(batch, number)
            numbers.append(number)

        return write

    return function


def test_a_batch_without_new_data_is_decided_although_spark_does_not_write_a_shuffle_behind_a_product(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """The product of no partitions and the table's partitions has no partitions, so no task reads the table's shuffle."""
    sink, numbers = kafka_sink(kafka.bootstrap_servers), list[int]()
    query = Query(spark, tmp_path, (sink,), function=_numbered(numbers), plan=lambda frame: _counted(_crossed(frame)))
    query.feed({"id": "a", "n": 5}, {"id": "b", "n": 6})
    query.feed({"id": "c", "n": 15})
    query.run()
    assert len(numbers) > 2  # the third batch has no new data, and closes the first window
    assert values(sink) == Counter([f"10:{2 * GROUPS}"])
