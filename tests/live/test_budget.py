"""The cost of a normal batch, limited by bounds: a regression shows as a count, on any machine, rather than as a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.budget import BYTES, JVM, PARTITIONS, PYTHON, CountingProxy, counting_calls, least, require_within
from tests.live.pipeline import Query, Tasks, create_topic, opened
from tests.live.spark_query import planned, source
from tests.live.spark_support import Pipeline, finish, spark
from tests.reader import committed
from twopc.coordinator import Coordinator
from twopc.files import LocalFiles
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink, producer_pool

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
#: What the driver asks of brokers for a batch of two tasks that write to so many sinks, in one decision, and its own calls.
DRIVER = {
    sinks: {
        "DESCRIBE_TRANSACTIONS": 3 * sinks,  # confirm, and visible: the coordinator may have to be asked twice
        PARTITIONS: 1,  # the decision
        "PRODUCE": 1,
        "END_TXN": 1 + TASKS * sinks,
        "LIST_TRANSACTIONS": sinks,  # the sweep
        "LIST_OFFSETS": sinks,  # the next batch's scan start
        BYTES: size,
        PYTHON: calls,
    }
    for sinks, size, calls in ((1, 2_500, 1_250), (2, 3_500, 2_100))
}
#: What each task asks: it writes two partitions of its output, and its marker. Its producer is made in the background, so this
#: is an average.
TASK = {
    "API_VERSIONS": 3.6,  # once for each connection
    "METADATA": 5.5,
    "FIND_COORDINATOR": 1.2,
    "INIT_PRODUCER_ID": 1.2,
    PARTITIONS: 3,
    "PRODUCE": 3,
    "api key 32": 0.05,  # DescribeConfigs: how large a batch of records may be, once for each process and topic
    BYTES: 1_800,
}
#: What ``exactly_once`` costs in the driver, for a batch that the tasks write and for one that the driver writes, with so many
#: DataFrames in one decision, each for another sink.
SPARK = {
    ("tasks", 1): {JVM: 67, PYTHON: 5_700},  # three of them for the number of writers, and to group partitions
    ("tasks", 2): {JVM: 140, PYTHON: 11_000},
    ("driver", 1): {JVM: 32, PYTHON: 2_700},
    ("driver", 2): {JVM: 94, PYTHON: 6_000},
}


def of_direct(sinks: int) -> dict[str, float]:
    """The requests to brokers for a batch that the driver writes: two partitions of each output, and the decision."""
    return {
        "DESCRIBE_TRANSACTIONS": 3 * sinks,
        PARTITIONS: 1 + 3 * sinks,
        "PRODUCE": 1 + 3 * sinks,
        "END_TXN": 1 + sinks,
        "LIST_TRANSACTIONS": sinks,
        "LIST_OFFSETS": sinks,
        # Of producers that are made meanwhile.
        "API_VERSIONS": 3 * sinks,
        "METADATA": 4 * sinks,
        "FIND_COORDINATOR": sinks,
        "INIT_PRODUCER_ID": sinks,
        BYTES: 3_000 * sinks,
    }


class CountedTasks(Tasks):
    """Their calls are not the driver's."""

    def prepare(self, work: Work) -> list[TaskReport]:
        with counting_calls():
            return super().prepare(work)


@pytest.mark.parametrize("count", DRIVER)
def test_a_batch_costs_driver_and_brokers_no_more_than_it_did(kafka: KafkaService, tmp_path: Path, count: int) -> None:
    batches: list[Counter[str]] = []
    with CountingProxy(kafka.bootstrap_servers) as of_driver, CountingProxy(kafka.bootstrap_servers) as of_tasks:
        queries = [Query(of_driver.bootstrap_servers, tmp_path, timeout_ms=30_000) for _ in range(count)]
        in_tasks = [replace(query.sink, bootstrap_servers=of_tasks.bootstrap_servers) for query in queries]
        driver = Coordinator([query.sink for query in queries], LocalFiles(tmp_path / "twopc"))
        opened.append(driver)
        for number in range(WARM_UP + BATCHES):
            before = of_driver.counted
            with counting_calls() as calls:
                rows = [["a", "b"], ["c", "d"]]
                driver.process(queries[0].batch(number), CountedTasks(queries[0], rows, sinks=in_tasks))
            batches.append(of_driver.counted - before + calls)
        driver.close()
        for query in queries:
            producer_pool._pools.pop(query.name, None)  # its producers would outlive the proxy
    require_within(least(batches[WARM_UP:]), DRIVER[count])
    tasks = TASKS * count * len(batches)
    require_within({kind: found / tasks for kind, found in of_tasks.counted.items()}, TASK)


@pytest.mark.parametrize(
    ("direct", "frames"),
    [pytest.param(*one, marks=[pytest.mark.whole] if one == ("tasks", 2) else []) for one in SPARK],
)
def test_a_batch_costs_spark_no_more_than_it_did(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, direct: str, frames: int
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=TASKS, max_offsets=4)
    pipeline.feed(4 * (WARM_UP + BATCHES))
    pipeline.flush()
    options = pipeline.options
    topics = [str(options.topic), create_topic(kafka.bootstrap_servers, f"{options.name}-second")][:frames]
    batches: list[Counter[str]] = []
    with CountingProxy(kafka.bootstrap_servers) as proxy:
        # Producers that wait in Spark's workers would outlive the proxy.
        servers = proxy.bootstrap_servers if direct == "driver" else kafka.bootstrap_servers
        sinks = [KafkaSink(name=topic, topic=topic, bootstrap_servers=servers) for topic in topics]
        each = exactly_once(*sinks, checkpoint_location=options.checkpoint, write_by=direct)  # type: ignore[arg-type]  # of SPARK

        def counted(frame: DataFrame, batch_id: int) -> None:
            given = {sink.name: frame.where("value IS NOT NULL") for sink in sinks} if frames > 1 else frame
            before = proxy.counted
            with counting_calls() as calls:
                each(given, batch_id)
            batches.append(calls + proxy.counted - before)

        writer = planned(source(spark, options), options).writeStream.foreachBatch(counted)
        query: Any = writer.option("checkpointLocation", options.checkpoint).trigger(availableNow=True).start()
        finish(query, each)
    assert len(batches) >= WARM_UP + BATCHES
    assert all(committed(kafka.bootstrap_servers, topic) == pipeline.given for topic in topics)
    bounds = {**SPARK[direct, frames], **(of_direct(frames) if direct == "driver" else {})}
    require_within(least(batches[WARM_UP:]), bounds)
