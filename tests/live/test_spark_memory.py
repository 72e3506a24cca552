"""A worker's memory does not grow with the number of rows in its task.

``TWOPC_ROWS`` sets the smaller number of rows (200000); the larger number is ten times that.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.live.leftovers import workers_of
from tests.live.spark_support import Pipeline, spark
from tests.reader import consumer_of, read_to_end
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

_GROWTH_MIB = 100
#: How much of a batch the driver collects by default, and how many copies of this a JVM with two tasks may hold.
_LIMIT_MIB, _JVM_LIMITS = 16, 12
_ROWS = 3_000_000


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_a_worker_needs_no_more_memory_for_ten_times_the_rows(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    rows = int(os.environ.get("TWOPC_ROWS", "200000"))
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=1)
    sink = KafkaSink(
        name=pipeline.options.name, bootstrap_servers=kafka.bootstrap_servers, topic=pipeline.options.topic
    )
    each = exactly_once(sink, checkpoint_location=pipeline.options.checkpoint, write_by="tasks")
    peaks = {}
    environment = spark.sparkContext.environment
    environment["TWOPC_MEMORY"] = "workers of this test only"
    try:
        for count in (rows, 10 * rows):
            pipeline.feed(1)
            write(spark, pipeline, each, count)
            peaks[count] = max(map(peak_mib, workers_of(psutil.Process(), variable="TWOPC_MEMORY")))
    finally:
        del environment["TWOPC_MEMORY"]
        each.close()
    print(f"peak RSS of a worker in MiB, by number of rows: {peaks}")  # noqa: T201 - a figure to quote; run pytest with -s
    assert peaks[10 * rows] - peaks[rows] <= _GROWTH_MIB


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_a_batch_a_thousand_times_larger_than_expected_needs_little_more_memory_than_tasks(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """300 MB arrive although the driver expects 400 kB.

    The JVM may need more memory than Python, because it still holds the tasks' results as garbage.
    """
    peaks = {way: peaks_of(kafka, tmp_path / way, way, 400) for way in ("tasks", "auto")}
    print(f"peak RSS of driver, worker and JVM in MiB, by write_by: {peaks}")  # noqa: T201 - a figure to quote; run pytest with -s
    growths = [found - expected for expected, found in zip(peaks["tasks"], peaks["auto"], strict=True)]
    for growth, most in zip(growths, (_GROWTH_MIB, _GROWTH_MIB, _JVM_LIMITS * _LIMIT_MIB), strict=True):
        assert growth <= most


def peaks_of(kafka: KafkaService, directory: Path, way: str, records: int) -> tuple[int, int, int]:
    """Process one batch that grows. Return the peak memory of its driver, its largest worker and its JVM, in MiB."""
    directory.mkdir()
    growth = _ROWS // records  # rows of more than 100 bytes each
    pipeline = Pipeline(
        kafka.bootstrap_servers,
        directory,
        value=f"explode(transform(sequence(1, {growth}), n -> concat(CAST(value AS STRING), lpad(n, 100, '-'))))",
        partitions=2,
        settings={"write_by": way},
        spark={"spark.driver.memory": "512m"},
    )
    pipeline.feed(records)
    run = pipeline.process("driver.swept=stop")
    try:
        run.wait_stopped(600)
        driver = psutil.Process(run.driver)
        [jvm] = [process for process in driver.children() if process.name() == "java"]
        found = (peak_mib(driver.pid), max(map(peak_mib, workers_of(jvm))), peak_mib(jvm.pid))
        run.resume()
        assert run.ended(600) == 0, run.text[-3000:]
    finally:
        pipeline.close()
    consumer = consumer_of(kafka.bootstrap_servers)
    with contextlib.closing(consumer):
        seen = {message.value() for message in read_to_end(consumer, str(pipeline.options.topic))}
        assert len(seen) == _ROWS
    return found


def write(spark: SparkSession, pipeline: Pipeline, each: object, count: int) -> None:
    """Write one batch of ``count`` records of 100 bytes in two tasks. The content of the source does not matter."""

    def instead(frame: DataFrame, batch: int) -> None:
        made = frame.sparkSession.range(0, count, 1, 2)
        each(made.selectExpr("cast(id AS string) AS key", "lpad(cast(id AS string), 100, 'x') AS value"), batch)  # type: ignore[operator]

    pipeline.flush()
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", pipeline.bootstrap_servers)
    stream = stream.option("subscribe", pipeline.options.sources[0]).option("startingOffsets", "earliest")
    writer = stream.load().writeStream.foreachBatch(instead)
    query = writer.option("checkpointLocation", pipeline.options.checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def peak_mib(pid: int) -> int:
    """The highest resident size that the process ever had, according to the kernel."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError(f"/proc/{pid}/status contains no VmHWM")
