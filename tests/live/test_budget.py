"""Limit the cost of a normal batch: on any machine, a regression appears as a higher count rather than a longer time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.budget import (
    BYTES,
    CONNECTIONS,
    JVM,
    PARTITIONS,
    PYTHON,
    WRITERS,
    CountingProxy,
    counting_calls,
    least,
    require_within,
)
from tests.live.pipeline import Query, Tasks, create_topic, opened
from tests.live.spark_query import planned, source
from tests.live.spark_support import Pipeline, finish, spark
from tests.live.test_spark_many_tasks import log_of
from tests.reader import committed
from twopc.coordinator import Coordinator
from twopc.files import LocalFiles
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink, producer_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from tests.live.spark_query import Options
    from twopc.engine import Work
    from twopc.integration.spark import ExactlyOnce
    from twopc.records import TaskReport

__all__ = ["spark"]

pytestmark = pytest.mark.calm

WARM_UP, BATCHES = 4, 8
TASKS = 2
#: The driver's requests and Python calls for a batch of two tasks, by the number of sinks in one decision.
DRIVER = {
    sinks: {
        "DESCRIBE_TRANSACTIONS": 4 * sinks,  # one to confirm, and one to three until the commit is visible
        "METADATA": 2 * sinks,  # the topics' ids: to confirm, and before the commit (rule 3)
        PARTITIONS: 1,  # the decision
        "PRODUCE": 1,
        "END_TXN": 1 + TASKS * sinks,
        "LIST_TRANSACTIONS": sinks,  # the sweep
        "LIST_OFFSETS": sinks,  # the next batch's scan start
        "FETCH": 3 * sinks,  # on a busy machine, a slow commit is read back
        BYTES: size,
        PYTHON: calls,
    }
    # We counted 1,256 calls with one sink, and 2,057 to 2,081 with two.
    for sinks, size, calls in ((1, 2_700, 1_340), (2, 4_420, 2_170))
}
#: The requests of each task, which writes to two partitions of its output and to one marker partition. The task's
#: producer is made in the background, so these are averages.
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
#: What ``exactly_once`` costs in the driver, by who writes the batch and by the number of DataFrames in one decision. Each
#: DataFrame goes to a different sink. With several DataFrames, ten calls for each of them pin the clock. The entries cost,
#: in this order: 6,491; 13,332; 3,218; and 7,884 Python calls. In earlier runs on an idle machine, the last count varied
#: by 170, and a wait for the status store added five calls of the JVM.
SPARK = {
    ("tasks", 1): {JVM: 75, PYTHON: 6_600},  # three group partitions, three ask whether code may ask for its task
    ("tasks", 2): {JVM: 195, PYTHON: 13_500},
    ("driver", 1): {JVM: 37, PYTHON: 3_380},
    ("driver", 2): {JVM: 142, PYTHON: 8_000},
}
#: The partitions of a pipeline's output.
OUTPUT = 4
ROWS, KEYS = 400, 200
#: A few batches are enough, because these counts do not vary. The first batch also starts the query.
FEW = 6
#: The requests of a query's run: at its start, and for each of its transactions.
RUN = {CONNECTIONS: (20, 3.6), "METADATA": (50, TASK["METADATA"]), "INIT_PRODUCER_ID": (5, TASK["INIT_PRODUCER_ID"])}


def of_direct(sinks: int) -> dict[str, float]:
    """The requests to brokers for a batch that the driver writes: two partitions of each output, and the decision."""
    return {
        "DESCRIBE_TRANSACTIONS": 4 * sinks,
        PARTITIONS: 1 + 3 * sinks,
        "PRODUCE": 1 + 3 * sinks,
        "END_TXN": 1 + sinks,
        "LIST_TRANSACTIONS": sinks,
        "LIST_OFFSETS": sinks,
        # The requests of producers that are made in the meantime.
        "API_VERSIONS": 3 * sinks,
        "METADATA": (4 + 2) * sinks,  # two of them for the topics' ids
        "FIND_COORDINATOR": sinks,
        "INIT_PRODUCER_ID": sinks,
        BYTES: 3_400 * sinks,  # a busy machine needed 3,320
    }


def of_writers(writers: int) -> dict[str, int]:
    """The exact number of requests for a batch that so many tasks write, however many partitions the plan has.

    Each task writes its marker, and writes to every partition of the output. The driver writes the decision and
    commits.
    """
    partitions = 1 + (OUTPUT + 1) * writers
    return {PARTITIONS: partitions, "PRODUCE": partitions, "END_TXN": 1 + writers, "LIST_TRANSACTIONS": 1}


class CountedTasks(Tasks):
    """Tasks whose calls do not count as the driver's calls."""

    def prepare(self, work: Work) -> list[TaskReport]:
        with counting_calls():
            return super().prepare(work)


@pytest.mark.parametrize("count", DRIVER)
def test_a_batch_costs_the_driver_and_the_brokers_no_more_than_the_recorded_bounds(
    kafka: KafkaService, tmp_path: Path, count: int
) -> None:
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
        for sink in in_tasks:
            producer_pool._pools.pop(sink.place, None)  # its producers would outlive the proxy
    require_within(least(batches[WARM_UP:]), DRIVER[count])
    tasks = TASKS * count * len(batches)
    require_within({kind: found / tasks for kind, found in of_tasks.counted.items()}, TASK)


@pytest.mark.parametrize(("count", "transactions"), [(1, 1), (2, 3)])
def test_a_start_writes_one_record_per_sink_and_proves_ownership_once_if_there_are_several_sinks(
    kafka: KafkaService, tmp_path: Path, count: int, transactions: int
) -> None:
    """With one sink, the acquisition itself is the proof."""
    starts: list[Counter[str]] = []
    for number in range(3):  # a slow broker makes a client repeat a request
        with CountingProxy(kafka.bootstrap_servers) as proxy:
            queries = [Query(proxy.bootstrap_servers, tmp_path, timeout_ms=30_000) for _ in range(count)]
            driver = Coordinator([query.sink for query in queries], LocalFiles(tmp_path / f"{number}"))
            opened.append(driver)
            driver.recover(queries[0].batch(0))
            driver.close()
            starts.append(proxy.counted)
    cost = least(starts)
    assert (cost["PRODUCE"], cost["END_TXN"]) == (transactions, transactions)


def counted_batches(
    spark: SparkSession,
    options: Options,
    each: ExactlyOnce,
    proxy: CountingProxy,
    given: Callable[[DataFrame], Any] = lambda frame: frame,
) -> list[Counter[str]]:
    """Run a query to its end. Return the counts of each of its batches."""
    batches: list[Counter[str]] = []

    def counted(frame: DataFrame, batch_id: int) -> None:
        before = proxy.counted
        with counting_calls() as calls:
            each(given(frame), batch_id)
        batches.append(calls + proxy.counted - before)

    mode = "update" if options.plan == "update" else "append"
    writer = planned(source(spark, options), options).writeStream.outputMode(mode).foreachBatch(counted)
    query: Any = writer.option("checkpointLocation", options.checkpoint).trigger(availableNow=True).start()
    finish(query, each)
    return batches


@pytest.mark.parametrize(
    ("direct", "frames"),
    [pytest.param(*one, marks=[pytest.mark.whole] if one[1] > 1 else []) for one in SPARK],
)
def test_a_batch_costs_spark_no_more_than_the_recorded_bounds(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, direct: str, frames: int
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=TASKS, max_offsets=4)
    pipeline.feed(4 * (WARM_UP + BATCHES))
    pipeline.flush()
    options = pipeline.options
    topics = [str(options.topic), create_topic(kafka.bootstrap_servers, f"{options.name}-second")][:frames]
    with CountingProxy(kafka.bootstrap_servers) as proxy:
        # Producers that wait in Spark's workers would outlive the proxy.
        servers = proxy.bootstrap_servers if direct == "driver" else kafka.bootstrap_servers
        sinks = [KafkaSink(name=topic, topic=topic, bootstrap_servers=servers) for topic in topics]
        each = exactly_once(*sinks, checkpoint_location=options.checkpoint, write_by=direct)  # type: ignore[arg-type]  # of SPARK

        def given(frame: DataFrame) -> Any:
            return {sink.name: frame.where("value IS NOT NULL") for sink in sinks} if frames > 1 else frame

        batches = counted_batches(spark, options, each, proxy, given)
    assert len(batches) >= WARM_UP + BATCHES
    assert all(committed(kafka.bootstrap_servers, topic) == pipeline.given for topic in topics)
    bounds = {**SPARK[direct, frames], **(of_direct(frames) if direct == "driver" else {})}
    require_within(least(batches[WARM_UP:]), bounds)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("plan", "partitions"),
    [
        ("shuffle", 64),
        *(pytest.param("shuffle", count, marks=pytest.mark.whole) for count in (2, 200)),
        *(pytest.param("update", count, marks=pytest.mark.whole) for count in WRITERS),
    ],
)
def test_a_batch_of_many_partitions_costs_brokers_as_much_as_a_batch_of_few_partitions(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, plan: str, partitions: int
) -> None:
    """The exact counts depend on the writers: they are the same for 64 and for 200 partitions, with and without state."""
    writers = WRITERS[partitions]
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, partitions=TASKS, max_offsets=ROWS)
    pipeline.change(partitions=partitions)
    pipeline.feed(ROWS * FEW, keys=KEYS)
    pipeline.flush()
    options = pipeline.options
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    with CountingProxy(kafka.bootstrap_servers) as proxy:
        sink = KafkaSink(name=options.name, topic=options.topic, bootstrap_servers=proxy.bootstrap_servers)
        each = exactly_once(sink, checkpoint_location=options.checkpoint, write_by="tasks")
        batches = counted_batches(spark, options, each, proxy)
        of_run = proxy.counted + Counter({CONNECTIONS: proxy.connections})
        spark.range(0, 8, 1, 8).mapInArrow(forget_producers, "id long").collect()
    assert [len(one.tasks) for one in log_of(pipeline)] == [writers] * len(batches)
    found, exactly = least(batches[1:]), of_writers(writers)
    assert {kind: found[kind] for kind in exactly} == exactly, f"a batch costs {found}"
    # The decision names each of the plan's partitions that has rows.
    most = {"DESCRIBE_TRANSACTIONS": 4, "LIST_OFFSETS": 1, BYTES: 10_000 + 2_500 * writers + 40 * partitions}
    # The offsets are requested without waiting, so a busy machine may send the request in the next batch.
    require_within({kind: found.get(kind, 0) for kind in most}, most)
    transactions = writers * len(batches)
    bounds = {kind: of_start + each_one * transactions for kind, (of_start, each_one) in RUN.items()}
    require_within({kind: of_run[kind] for kind in bounds}, bounds)


def forget_producers(rows: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Drop the producers that wait in a worker, because they would outlive the proxy."""
    producer_pool._pools.clear()
    yield from rows
