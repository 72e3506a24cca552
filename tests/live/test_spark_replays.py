"""The replay of a decided batch: its rows are visible already, so it must neither stop the query nor let its function wait."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from tests.live.file_query import Query, kafka_sink, values
from tests.live.spark_support import spark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

__all__ = ["spark"]

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"), pytest.mark.timeout(120)]

_MOST_S = 30.0
ROWS = [{"id": "a", "n": 1}, {"id": "b", "n": 2}]
WRITTEN = {"1": 1, "2": 1}


def passing(change: Callable[[DataFrame], DataFrame]) -> Callable[[ExactlyOnce], Callable[[DataFrame, int], None]]:
    return lambda each: lambda batch, number: each(change(batch), number)


def test_a_replay_computes_no_column_that_the_first_attempt_did_not_compute(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def with_unused_fault(batch: DataFrame) -> DataFrame:
        return batch.withColumn("bad", sf.expr("raise_error('this column is not used')"))

    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),), function=passing(with_unused_fault))
    query.feed(*ROWS)
    query.fail_at("driver.decided")
    with caplog.at_level(logging.WARNING, "twopc.integration.spark.engine"):
        query.run()
    assert values(query.sinks[0]) == WRITTEN
    assert not [record for record in caplog.records if record.name == "twopc.integration.spark.engine"]


def test_a_replay_succeeds_although_its_input_is_gone(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The table stands for every input that Spark can no longer read."""
    table, is_gone = tmp_path / "table", False
    spark.range(1).write.parquet(str(table))

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            frame = batch.crossJoin(spark.read.parquet(str(table)).select(sf.lit(1).alias("one")))
            for file in table.glob("*.parquet") if is_gone else ():
                file.unlink()
            each(frame, number)

        return write

    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),), function=function)
    query.feed(*ROWS)
    query.fail_at("driver.decided")
    is_gone = True
    with caplog.at_level(logging.WARNING, "twopc.integration.spark.engine"):
        query.run()
    assert values(query.sinks[0]) == WRITTEN
    [text] = [record.getMessage() for record in caplog.records if record.name == "twopc.integration.spark.engine"]
    assert "visible" in text


@pytest.mark.parametrize("is_stateful", [True, False])
def test_a_replay_lets_the_function_read_its_observations(
    *, is_stateful: bool, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    found: list[dict[str, Any]] = []

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            seen = Observation()
            each(batch.observe(seen, sf.count(sf.lit(1)).alias("rows")), number)
            reader = threading.Thread(
                target=lambda: found.append(seen.get), daemon=True
            )  # the function could wait forever
            reader.start()
            reader.join(_MOST_S)
            assert not reader.is_alive(), "the observation did not receive a value"

        return write

    def plan(frame: DataFrame) -> DataFrame:
        return frame.dropDuplicates(["id"]) if is_stateful else frame

    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),), function=function, plan=plan)
    query.feed(*ROWS)
    query.fail_at("driver.decided")
    query.feed({"id": "a", "n": 3}, {"id": "c", "n": 4})
    query.run()
    assert found == [{"rows": 2}, {"rows": 1 if is_stateful else 2}]
    assert values(query.sinks[0]) == WRITTEN | ({"4": 1} if is_stateful else {"3": 1, "4": 1})
