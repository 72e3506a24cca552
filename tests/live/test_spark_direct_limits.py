"""Batches that the driver does not collect, or does not collect completely."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from tests.live.file_query import Query, kafka_sink, values
from tests.live.spark_support import Pipeline, spark
from tests.live.test_spark_direct import DIRECT, rows, ways
from twopc import DriverUpTo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_batch_within_the_limit_but_over_sparks_own_limit_for_results_is_written_by_the_tasks(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Seen: the query stopped with Spark's error, at every start, although its tasks could write the batch."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, spark={"spark.driver.maxResultSize": "1m"})
    try:
        for number in range(1500):
            value = f"{number}-{os.urandom(1000).hex()}"
            pipeline.give(value.encode(), key=b"k")
            pipeline.given[value] += 1
        run = pipeline.process()
        assert run.ended(400) == 0, run.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()


def _fail_in_the_last(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 2:
        raise RuntimeError("in each attempt")


@pytest.mark.whole
def test_a_task_that_fails_permanently_fails_the_batch_although_the_rows_of_others_have_arrived(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark ends the stream of rows as if it were complete, and reports the failure afterward."""
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), DIRECT)
    query.plan = lambda frame: frame.repartition(3, "id").mapInArrow(_fail_in_the_last, frame.schema)
    query.feed(*rows(200))
    assert "in each attempt" in query.refused()
    assert ways(sink) == []
    query.plan = lambda frame: frame.repartition(3, "id")
    query.run()
    assert values(sink) == Counter(map(str, range(200)))


def test_a_batch_that_a_stateful_plan_evaluates_twice_has_each_row_once(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), {"write_by": DriverUpTo(20_000)})
    query.plan = lambda frame: frame.dropDuplicates(["id"])
    for size in (10, 10, 4000, 4020):
        query.feed(*rows(size))
    query.run()
    assert [any(way) for way in ways(sink)][:3] == [False, True, False]
    assert values(sink) == Counter(map(str, range(4020)))
