"""Incidents made on purpose in real queries: ``twopc diagnose`` names the cause first."""

from __future__ import annotations

import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from tests.live.file_query import Query, kafka_sink, unique
from tests.live.pipeline import create_topic
from tests.live.spark_support import BY_TASKS, spark
from twopc.integration.alerts import Alert, Alerts, ConsecutiveFailures
from twopc.integration.history.diagnose import Diagnosis, diagnose
from twopc.integration.history.reader import read
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]


def _found(query: Query) -> list[Diagnosis]:
    return diagnose(read(query.directory / "checkpoint"))


def _rows(count: int) -> list[dict[str, object]]:
    return [{"id": str(number), "n": number} for number in range(count)]


def _slow_by_the_row(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        time.sleep(rows.num_rows * 0.005)
        yield rows


@pytest.mark.whole
def test_a_skewed_task_is_reported_with_its_number(kafka: KafkaService, spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),), BY_TASKS)
    # All but 30 of the 1,000 rows have the same key.
    query.plan = lambda frame: frame.repartition(4, "skewed").mapInArrow(_slow_by_the_row, frame.schema).drop("skewed")
    for _ in range(3):
        query.feed(*_rows(1_000))
    query.run("*", "id AS key", "CAST(n AS STRING) AS value", "CASE WHEN n < 30 THEN n ELSE 0 END AS skewed")
    found = _found(query)
    assert found[0].rule == "skew", found
    slowest = read(query.directory / "checkpoint").checkpoints[-1].slowest[0]
    assert f"most often task {slowest.partition} (" in found[0].evidence
    assert slowest.read_ms > slowest.flush_ms


def _raise(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    yield from batches
    raise ValueError("no such country: 'XX'")


@pytest.mark.whole
def test_an_error_of_user_code_is_distinguished_from_the_sinks_refusals(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    told: SimpleQueue[Alert] = SimpleQueue()
    place = tmp_path / "checkpoint"
    settings = {
        **BY_TASKS,
        "listeners": [Alerts([ConsecutiveFailures("broken", 2)], [told.put], checkpoint_location=place)],
    }
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),), settings)
    query.plan = lambda frame: frame.mapInArrow(_raise, frame.schema)
    query.feed(*_rows(10))
    assert "no such country" in query.refused()
    query.refused()
    alert = told.get(timeout=60)
    assert (alert.rule, alert.status, "2 checkpoints failed in a row" in alert.text) == ("broken", "firing", True)
    found = _found(query)
    assert [one.rule for one in found] == ["user code"], found


@pytest.mark.whole
def test_an_unavailable_broker_is_reported_as_the_cause(spark: SparkSession, tmp_path: Path) -> None:
    with LocalKafka() as kafka:
        topic = create_topic(kafka.bootstrap_servers, unique(), 2)
        sink = KafkaSink(name=unique(), bootstrap_servers=kafka.bootstrap_servers, topic=topic, timeout_ms=10_000)
        query = Query(spark, tmp_path, (sink,), BY_TASKS)
        query.feed(*_rows(10))
        query.run()
        assert _found(query) == []
        kafka.kill()
        query.feed(*_rows(10))
        query.refused()
    found = _found(query)
    assert found[0].rule == "unavailable", found
