"""Rows that a function collects and gives back to Spark may come from two writes of a shuffle (rule 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests.live.spark_support import spark
from tests.live.test_spark_direct_frame import arranged, sink
from twopc.integration.spark.kept_data import Unused, unused, uses_kept_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

ARROW = "spark.sql.execution.arrow.pyspark.enabled"
BOTH_WAYS = pytest.mark.parametrize("arrow", ["true", "false"])


@pytest.fixture(autouse=True)
def _without_cached_tables(spark: SparkSession) -> Iterator[None]:
    yield
    spark.catalog.clearCache()
    spark.conf.unset(ARROW)


@pytest.fixture
def since(spark: SparkSession) -> Unused:
    """Numbers from before Spark planned the batch."""
    return unused(spark.sparkContext)


@pytest.fixture
def batch(spark: SparkSession, since: Unused) -> DataFrame:
    del since  # the batch is younger
    return batch_of(spark)


def batch_of(spark: SparkSession) -> DataFrame:
    """A DataFrame that reads an RDD, as a batch does."""
    return spark.createDataFrame([("a",), ("b",)], "value STRING")


def given(spark: SparkSession, arrow: str) -> DataFrame:
    """A table of rows that the driver has, through Arrow (the plan contains the rows) or not (the plan reads an RDD)."""
    spark.conf.set(ARROW, arrow)
    return spark.createDataFrame(pd.DataFrame({"value": ["a", "b"]}, dtype="object"), "value STRING")


def cached(frame: DataFrame) -> DataFrame:
    frame = frame.cache()
    frame.count()
    return frame


def is_examined(batch: DataFrame, frame: DataFrame, since: Unused) -> bool:
    """Whether the jobs since Spark planned the batch are examined, if the function passes on this DataFrame."""
    plan = batch._jdf.queryExecution().analyzed()

    class Execution:
        """The plan of the batch itself."""

        @staticmethod
        def toRdd() -> Any:  # noqa: N802 - Spark's name
            return plan.rdd()

        @staticmethod
        def executedPlan() -> Any:  # noqa: N802 - Spark's name
            return plan

    return uses_kept_data(Execution(), [arranged(frame.hint("merge"), sink(topic="t"))], since)


USES = pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda rows, _batch: rows, id="alone"),
        pytest.param(lambda rows, batch: batch.join(rows.hint("merge"), "value"), id="joined with the batch"),
        pytest.param(lambda rows, _batch: cached(rows.select("value")), id="cached"),
        pytest.param(lambda rows, batch: batch.unionByName(cached(rows.distinct())), id="cached with a shuffle"),
    ],
)


@BOTH_WAYS
@USES
def test_the_jobs_behind_rows_that_the_function_collected_and_passes_back_are_examined(
    use: Callable[[DataFrame, DataFrame], DataFrame], arrow: str, since: Unused, batch: DataFrame, spark: SparkSession
) -> None:
    assert is_examined(batch, use(given(spark, arrow), batch), since)


@BOTH_WAYS
@USES
def test_the_jobs_behind_rows_that_the_function_collected_before_it_made_the_object_are_examined(
    use: Callable[[DataFrame, DataFrame], DataFrame], arrow: str, batch: DataFrame, spark: SparkSession
) -> None:
    """Such an object is younger than the rows. The numbers of an object from an earlier context are just as high."""
    rows = use(given(spark, arrow), batch)
    assert is_examined(batch, rows, unused(spark.sparkContext))


@BOTH_WAYS
def test_rows_in_a_subquery_count_as_kept_data(
    arrow: str, since: Unused, batch: DataFrame, spark: SparkSession
) -> None:
    found = spark.sql(
        "SELECT * FROM {batch} WHERE value IN (SELECT value FROM {rows})", batch=batch, rows=given(spark, arrow)
    )
    plan = arranged(found.selectExpr("value", "1 AS other"), sink(topic="t"))
    assert not plan.is_run_unchanged
    assert is_examined(batch, plan.source, since)


@BOTH_WAYS
def test_a_small_table_from_before_the_query_is_no_reason_to_examine_other_jobs(
    arrow: str, spark: SparkSession
) -> None:
    tables = [given(spark, arrow), cached(given(spark, arrow).select("value"))]
    since = unused(spark.sparkContext)
    batch = batch_of(spark)
    for table in tables:
        assert not is_examined(batch, batch.join(table.hint("merge"), "value"), since)


def test_neither_the_batch_nor_its_cache_is_a_reason_to_examine_other_jobs(batch: DataFrame) -> None:
    for frame in (batch, cached(batch.select("value"))):
        assert not is_examined(batch, frame, Unused())
