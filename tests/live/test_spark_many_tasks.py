"""A plan of many partitions has few writers, and rule 9 can still tell which rows each transaction contains."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.spark_support import Pipeline, spark
from tests.live.test_spark_recovery import client_of, decide_and_lose, open_transactions
from twopc import CheckpointConfig
from twopc.records import Decision, Repair
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

PARTITIONS = 24


def writers(most: int | None) -> dict[str, Any]:
    return {"write_by": "tasks", "checkpoints": CheckpointConfig(max_writers=most)}


def log_of(pipeline: Pipeline) -> list[Decision | Repair]:
    servers, options = pipeline.bootstrap_servers, pipeline.options
    sink = KafkaSink(name=options.name, bootstrap_servers=servers, topic=options.topic)
    with closing(sink.create_decision_log()) as log:
        return [entry.record for entry in log.inspect().entries if isinstance(entry.record, (Decision, Repair))]


@pytest.mark.whole
def test_a_plan_of_many_partitions_is_written_by_as_many_tasks_as_the_cluster_can_use(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """`local[2]` runs two tasks at a time. A plan with fewer partitions has as many tasks as partitions."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="shuffle")
    for partitions, most in ((PARTITIONS, None), (3, None), (PARTITIONS, 7), (PARTITIONS, 100)):
        pipeline.change(partitions=partitions)
        pipeline.feed(200, keys=100)
        pipeline.run(spark, settings=writers(most))
    pipeline.require_exactly_once()
    pipeline.require_order()
    decisions = log_of(pipeline)
    assert [len(one.tasks) for one in decisions] == [4, 3, 7, PARTITIONS]
    for one in decisions:
        indices = [part.index for task in one.tasks for part in task.parts]
        assert len(indices) == len(set(indices))
        assert all(task.rows == sum(part.rows for part in task.parts) for task in one.tasks)


@pytest.mark.parametrize(
    ("plan", "before", "after"),
    [
        ("shuffle", 5, 4),
        pytest.param("shuffle", 4, PARTITIONS, marks=pytest.mark.whole),
        pytest.param("shuffle", PARTITIONS, 3, marks=pytest.mark.whole),
        pytest.param("rows", 3, 2, marks=pytest.mark.whole),
    ],
)
def test_a_lost_transaction_is_repaired_from_a_replay_grouped_differently(
    plan: str, before: int, after: int, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, partitions=6 if plan == "rows" else 4)
    pipeline.feed(300, keys=100)
    pipeline.change(settings=writers(before), partitions=PARTITIONS)
    kept, _ = decide_and_lose(pipeline, spark, but=before // 2)
    pipeline.run(spark, settings=writers(after))
    pipeline.require_exactly_once()
    decision, *repairs = log_of(pipeline)
    assert isinstance(decision, Decision)
    assert sum(len(one.tasks) for one in repairs) <= after
    with closing(client_of(pipeline)) as client:
        assert not open_transactions(client, pipeline)
    assert len(kept) == before // 2


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_third_of_sixty_transactions_over_a_thousand_partitions_is_repaired(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """The replay has seven writers: each receives partitions from many of the lost transactions."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="shuffle")
    pipeline.feed(5_000, keys=2_500)
    pipeline.change(settings=writers(60), partitions=1_000)
    decide_and_lose(pipeline, spark, but=40)
    pipeline.run(spark, settings=writers(7))
    pipeline.require_exactly_once()
    decision, repair = log_of(pipeline)
    assert isinstance(decision, Decision)
    assert isinstance(repair, Repair)
    assert (len(decision.tasks), len(repair.replaces)) == (60, 20)
    assert 1 < len(repair.tasks) <= 7  # Spark groups the partitions, and may leave a writer without any lost partition


@pytest.mark.whole
@pytest.mark.parametrize("store", ["", "RocksDBStateStoreProvider"])
def test_a_stateful_query_keeps_its_counts_even_if_its_partitions_are_grouped_differently(
    store: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """State is read and written for each of the plan's partitions, whichever task processes the partition."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="update")
    pipeline.change(partitions=PARTITIONS)
    counts, expected = Counter[str](), Counter[str]()
    if store:
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass", f"org.apache.spark.sql.execution.streaming.state.{store}"
        )
    try:
        for number, crash in enumerate(("", "driver.prepared", "driver.decided", "driver.committed", "")):
            fed = Counter(value.partition("-")[0] for value in pipeline.feed(50, keys=40))
            counts += fed
            expected += Counter(f"{key}:{counts[key]}" for key in fed)
            if crash:
                pipeline.fail_at(spark, crash, settings=writers(2 + number))
            pipeline.run(spark, settings=writers(3 + number % 2))
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert pipeline.visible() == expected
