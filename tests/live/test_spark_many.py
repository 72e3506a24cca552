"""Many queries run in one driver at the same time. Each keeps its guarantee, and releases everything that it holds."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.live.spark_support import Pipeline, spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

QUERIES = 50
#: Settings that the queries use in turn: the toolkit chooses for each batch, or the tasks or the driver write all
#: batches.
WAYS = ("auto", "tasks", "driver")


@pytest.mark.whole
@pytest.mark.timeout(1200)
def test_fifty_queries_in_one_driver_write_every_row_once(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """Each query reads its own topic in three batches.

    Then all queries restart with a different writer and an unfinished batch.
    """
    pipelines = [
        Pipeline(kafka.bootstrap_servers, tmp_path / str(number), partitions=1, max_offsets=10)
        for number in range(QUERIES)
    ]
    run_all(pipelines, spark, shift=0)
    before = held(kafka)
    for pipeline in pipelines:
        pipeline.feed(10)
        pipeline.fail_at(spark, "driver.decided")
    run_all(pipelines, spark, shift=1)
    for pipeline in pipelines:
        pipeline.require_exactly_once()
    # No connection that a run of a query opened is left, whether the run failed or ended normally.
    assert held(kafka) <= before


def held(kafka: KafkaService) -> int:
    """This process's connections to the broker; the pipelines' own producers also have some, which stay open."""
    gc.collect()
    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    return sum(bool(one.raddr) and one.raddr.port == port for one in psutil.Process().net_connections("tcp"))


def run_all(pipelines: list[Pipeline], spark: SparkSession, *, shift: int) -> None:
    """Feed all, start all, and wait for all."""
    started = []
    try:
        for number, pipeline in enumerate(pipelines):
            pipeline.feed(30)
            started.append(pipeline.start(spark, settings={"write_by": WAYS[(number + shift) % len(WAYS)]}))
        for query, _ in started:
            query.awaitTermination()
    finally:
        for query, each in started:
            query.stop()
            each.close()
