"""An exception that is not an ``Exception`` stops the query with an error, and a restart completes the batch.

py4j reports only an ``Exception`` to Spark. After any other one, Spark would wait for the call forever.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.file_query import BATCHES, Query, kafka_sink, values
from tests.live.spark_support import spark
from twopc.listeners import Listener
from twopc.testing import crash_points

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("point", ["driver.prepared", "driver.decided"])
@pytest.mark.timeout(120)
def test_an_exception_that_py4j_does_not_report_stops_the_query(
    kind: type[BaseException], point: str, spark: SparkSession, kafka: KafkaService, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,))
    query.feed(*BATCHES[0])

    def leave() -> None:
        raise kind("as planned")

    crash_points.arm(point, leave)
    try:
        said = query.refused()
    finally:
        crash_points.disarm()
    assert f"batch 0: code that ran for the batch raised {kind.__name__}(as planned)" in said
    query.run()
    assert Counter(values(sink)) == Counter(str(row["n"]) for row in BATCHES[0])


class Leaving(Listener):
    """A user's listener that calls ``sys.exit()``."""

    def entered(self, phase: object) -> None:
        raise SystemExit(f"at {phase}")


@pytest.mark.timeout(120)
def test_a_listener_that_exits_does_not_stop_the_query(
    spark: SparkSession, kafka: KafkaService, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), {"listeners": [Leaving()]})
    query.feed(*BATCHES[0])
    query.run()
    assert Counter(values(sink)) == Counter(str(row["n"]) for row in BATCHES[0])
