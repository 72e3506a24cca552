"""What a normal batch costs, held by bounds: a regression shows as a count, on any machine, rather than as a time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from integration.spark import exactly_once
from sinks.kafka import KafkaSink
from tests.budget import BYTES, JVM, PYTHON, CountingProxy, counting_calls, least, require_within
from tests.live.pipeline import Query, Tasks
from tests.live.spark_query import planned, source
from tests.live.spark_support import Pipeline, spark

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.engine import Work
    from twopc.records import TaskReport

__all__ = ["spark"]

WARM_UP, BATCHES = 4, 8
TASKS = 2
#: What the driver asks of brokers for a batch of two tasks, and its own calls.
DRIVER = {
    "DESCRIBE_TRANSACTIONS": 3,  # confirm, and visible: the coordinator may have to be asked twice
    "ADD_PARTITIONS_TO_TXN": 1,  # the decision
    "PRODUCE": 1,
    "END_TXN": 1 + TASKS,
    "LIST_TRANSACTIONS": 1,  # the sweep
    "LIST_OFFSETS": 1,  # the next batch's scan start
    BYTES: 2_500,
    PYTHON: 1_250,
}
#: What each task asks: it writes two partitions of its output, and its marker. Its producer is made in the background, so this
#: is an average.
TASK = {
    "API_VERSIONS": 3.6,  # once for each connection
    "METADATA": 5.5,
    "FIND_COORDINATOR": 1.2,
    "INIT_PRODUCER_ID": 1.2,
    "ADD_PARTITIONS_TO_TXN": 2.5,
    "PRODUCE": 3,
    BYTES: 1_800,
}
#: The calls of ``exactly_once`` in the driver, for a batch that the tasks write, and for one that the driver writes.
SPARK = {"never": {JVM: 66, PYTHON: 5_700}, "always": {JVM: 54, PYTHON: 4_300}}


class CountedTasks(Tasks):
    """Their calls are not the driver's."""

    def prepare(self, work: Work) -> list[TaskReport]:
        with counting_calls():
            return super().prepare(work)


def test_a_batch_costs_driver_and_brokers_no_more_than_it_did(kafka: KafkaService, tmp_path: Path) -> None:
    batches: list[Counter[str]] = []
    with CountingProxy(kafka.bootstrap_servers) as of_driver, CountingProxy(kafka.bootstrap_servers) as of_tasks:
        query = Query(of_driver.bootstrap_servers, tmp_path, timeout_ms=30_000)
        sink = dataclasses.replace(query.sink, bootstrap_servers=of_tasks.bootstrap_servers)
        driver = query.driver()
        for number in range(WARM_UP + BATCHES):
            before = of_driver.counted
            with counting_calls() as calls:
                rows = [["a", "b"], ["c", "d"]]
                driver.process(query.batch(number), CountedTasks(query, rows, sinks=[sink]))
            batches.append(of_driver.counted - before + calls)
        driver.close()
    require_within(least(batches[WARM_UP:]), DRIVER)
    count = TASKS * len(batches)
    require_within({kind: found / count for kind, found in of_tasks.counted.items()}, TASK)


@pytest.mark.parametrize("direct", SPARK)
def test_a_batch_costs_spark_no_more_than_it_did(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, direct: str
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=TASKS, max_offsets=4)
    pipeline.feed(4 * (WARM_UP + BATCHES))
    pipeline.flush()
    options = pipeline.options
    sink = KafkaSink(name=options.name, topic=options.topic, bootstrap_servers=options.bootstrap_servers)
    each = exactly_once(sink, checkpoint_location=options.checkpoint, direct=direct)
    batches: list[Counter[str]] = []

    def counted(frame: DataFrame, batch_id: int) -> None:
        with counting_calls() as calls:
            each(frame, batch_id)
        batches.append(calls)

    writer = planned(source(spark, options), options).writeStream.foreachBatch(counted)
    query: Any = writer.option("checkpointLocation", options.checkpoint).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
        each.close()
    assert len(batches) >= WARM_UP + BATCHES
    pipeline.require_exactly_once()
    require_within(least(batches[WARM_UP:]), SPARK[direct])
