"""What Spark reports about its stages. The driver's check for mixed rows relies on these reports (rule 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.live.spark_support import spark, wait_until
from twopc.integration.spark.status_store import StatusStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]


def test_a_finished_stage_is_reported_with_its_start_and_its_end(spark: SparkSession) -> None:
    store = StatusStore(spark.sparkContext)
    number = store.end_of_jobs()
    spark.sparkContext._jsc.sc().range(0, 1, 1, 1).count()

    def is_over() -> bool:
        job = store.job(number)
        return job is not None and job.is_over

    wait_until(is_over, "the end of the job")
    job = store.job(number)
    assert job is not None
    [stage] = job.stages
    last, attempts = store.last_attempt(stage), store.attempts(stage)
    assert last is not None
    assert attempts == [last]
    assert last.submission_time is not None
    assert last.completion_time is not None
    assert 0 < last.submission_time <= last.completion_time
