"""Stages whose tasks read a shuffle or a cache, as a script: which of them may have read a shuffle, by both kinds of reports.

The last line is a JSON list: for each stage that has run, its kind, the records that Spark reports, and the two answers.
"""

# ruff: noqa: T201 - read by the parent process

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from tests.live.spark_query import session
from twopc.integration.connect.spark_ui import SparkUi
from twopc.integration.connect.ui_reports import UiReports
from twopc.integration.spark.status_store import StatusStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 20_000


def main() -> None:
    """Run the jobs, and print what Spark reports about their stages."""
    settings = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.sql.adaptive.enabled": "false"}
    spark = session(Path.cwd(), settings=settings)
    shuffled = spark.range(0, _ROWS, 1, 2).repartition(2)
    on_disk = shuffled.selectExpr("id + 1 AS id").persist(StorageLevel.MEMORY_AND_DISK)
    in_memory = shuffled.selectExpr("id + 2 AS id").persist(StorageLevel.MEMORY_ONLY)
    for cached in (on_disk, in_memory):
        cached.count()
    jobs: dict[str, DataFrame] = {
        "shuffle": shuffled,
        "limit": shuffled.limit(10),
        "on disk": on_disk.limit(10),
        "in memory": in_memory.limit(10),
    }
    print(json.dumps([one for name, frame in jobs.items() for one in _stages(spark, name, frame)]), flush=True)
    spark.stop()


def _stages(spark: SparkSession, name: str, frame: DataFrame) -> list[Any]:
    context: Any = spark.sparkContext
    store = StatusStore(context)
    ui = UiReports(SparkUi(context.uiWebUrl, context.applicationId), spark)
    number = store.end_of_jobs()
    frame.repartition(3).write.format("noop").mode("overwrite").save()
    context._jsc.sc().listenerBus().waitUntilEmpty()
    job = store.job(number)
    assert job is not None
    ran = [last for stage in job.stages if (last := store.last_attempt(stage)) is not None and last.has_run]
    return [
        (name, one.shuffle_read_records, store.may_read(one.stage_id), ui.may_read(one.stage_id))
        for one in sorted(ran, key=lambda one: one.stage_id)
    ]


if __name__ == "__main__":
    main()
