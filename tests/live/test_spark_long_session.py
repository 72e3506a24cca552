"""Spark forgets its oldest stages, but jobs of other queries must not make a long session refuse a query."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

from tests.live.file_query import BATCHES, VALUES, Query, kafka_sink, values
from tests.live.spark_support import spark, wait_until
from twopc.integration.spark.shared_history import history_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce
    from twopc.sinks.kafka import KafkaSink

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

#: More than the 1,000 stages that Spark keeps.
MORE_THAN_KEPT = 1100
#: More than a tenth of those stages: Spark drops at least a tenth of them at a time.
MORE_THAN_DROPPED = 110


def run_jobs(spark: SparkSession, count: int) -> None:
    for _ in range(count):
        spark.sparkContext._jsc.sc().range(0, 1, 1, 1).count()


def work(spark: SparkSession, jobs: int = MORE_THAN_KEPT) -> None:
    """Run jobs that have nothing to do with the query, and wait for a moment after them."""
    history = history_of(spark.sparkContext)
    run_jobs(spark, jobs)
    ended = history.store.end_of_jobs()
    wait_until(lambda: history.before(1 << 31).job >= ended, "a moment after the last job")


@pytest.fixture
def sink(kafka: KafkaService) -> KafkaSink:
    return kafka_sink(kafka.bootstrap_servers)


def shuffled(frame: DataFrame) -> DataFrame:
    return frame.repartition(2)


@pytest.fixture
def lookup(spark: SparkSession) -> Iterator[DataFrame]:
    """A table that the session caches before the query."""
    table = spark.createDataFrame([("odd",), ("even",)], "id STRING").repartition(2, "id").cache()
    table.count()
    yield table
    table.unpersist()


@pytest.mark.whole
def test_a_query_whose_batches_are_far_apart_is_not_refused(
    sink: KafkaSink, spark: SparkSession, tmp_path: Path
) -> None:
    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            each(batch, batch_id)
            if batch_id == 0:
                work(spark)

        return write

    query = Query(spark, tmp_path, (sink,), function=function, plan=shuffled)
    query.feed(*BATCHES[0])
    query.feed(*BATCHES[1], *BATCHES[2])
    query.run()
    assert values(sink) == VALUES


@pytest.mark.whole
def test_skipped_stages_do_not_stop_a_query_although_spark_drops_them_first(
    sink: KafkaSink, spark: SparkSession, tmp_path: Path
) -> None:
    """Adaptive execution runs a shuffle's stages in separate jobs, so the last job skips these stages."""
    work(spark)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            batch.sparkSession.conf.set("spark.sql.adaptive.enabled", "true")
            batch.groupBy("value").count().collect()
            run_jobs(spark, MORE_THAN_DROPPED)
            each(batch, batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=function, plan=shuffled)
    query.feed(*BATCHES[0], *BATCHES[1], *BATCHES[2])
    query.run()
    assert values(sink) == VALUES


@pytest.mark.whole
def test_an_object_created_before_the_oldest_job_that_spark_remembers_is_not_refused(
    sink: KafkaSink, spark: SparkSession, tmp_path: Path
) -> None:
    def function(each: ExactlyOnce) -> ExactlyOnce:
        work(spark)
        return each

    query = Query(spark, tmp_path, (sink,), function=function, plan=shuffled)
    query.feed(*BATCHES[0], *BATCHES[1], *BATCHES[2])
    query.run()
    assert values(sink) == VALUES


@pytest.mark.whole
def test_a_restarted_query_remembers_the_table_cached_by_its_session(
    sink: KafkaSink, spark: SparkSession, lookup: DataFrame, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, (sink,), plan=lambda frame: frame.join(lookup.hint("merge"), "id"))
    for batch in BATCHES:
        query.feed(*batch)
        query.run()
        work(spark, MORE_THAN_KEPT * 6 // 10)
    assert values(sink) == VALUES


def require_job_that_never_begins(spark: SparkSession) -> None:
    """Use up a job number: Spark refuses to run only some tasks of a barrier stage, and reports no job."""
    with pytest.raises(Py4JJavaError, match="SPARK-24820"):
        spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(lambda rows: rows).take(1)


@pytest.mark.whole
def test_a_job_that_never_began_does_not_stop_a_query_that_reads_an_older_cached_table(
    sink: KafkaSink, spark: SparkSession, lookup: DataFrame, tmp_path: Path
) -> None:
    """Also if Spark has forgotten other jobs since an earlier batch."""
    query = Query(spark, tmp_path, (sink,), plan=lambda frame: frame.join(lookup.hint("merge"), "id"))
    require_job_that_never_begins(spark)
    for batch in BATCHES:
        query.feed(*batch)
        query.run()
        work(spark, MORE_THAN_KEPT * 6 // 10)
        require_job_that_never_begins(spark)
    assert values(sink) == VALUES


@pytest.mark.whole
def test_a_recached_table_is_newer_than_a_job_that_never_began(
    sink: KafkaSink, spark: SparkSession, lookup: DataFrame, tmp_path: Path
) -> None:
    """The advice of the error, if Spark may have forgotten the job."""
    query = Query(spark, tmp_path, (sink,), plan=lambda frame: frame.join(lookup.hint("merge"), "id"))
    require_job_that_never_begins(spark)
    work(spark)
    query.feed(*BATCHES[0])
    message = query.refused()
    assert "does not contain job" in message
    assert re.search("UNCACHE TABLE.*cache (it|them) again", message)
    lookup.unpersist()
    lookup.cache().count()
    query.feed(*BATCHES[1], *BATCHES[2])
    query.run()
    assert values(sink) == VALUES
