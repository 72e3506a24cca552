"""A restart with other columns, or with the sinks in another order: a decided batch is completed all the same."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.file_query import BATCHES, Query, kafka_sink, values
from tests.live.spark_support import spark
from tests.live.test_spark_ways_out import expire

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]


def values_of(*batches: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(str(row["n"]) for rows in batches for row in rows)


@pytest.mark.parametrize("point", ["driver.decided", "driver.confirmed"])
def test_rejected_columns_delay_no_decided_batch_and_are_not_written(
    point: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """Fails if the decided transactions stay open until they expire, which would lose their rows."""
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,))
    query.feed(*BATCHES[0])
    query.fail_at(point)
    query.feed(*BATCHES[1])
    decided = values_of(BATCHES[0]) if point == "driver.decided" else Counter[str]()
    assert not values(sink)
    assert "SchemaError" in query.refused("id", "n")  # the sink needs the column "value"
    assert values(sink) == decided
    query.settings = {"select": {sink.name: ["missing AS value"]}}
    assert "missing" in query.refused()
    assert values(sink) == decided
    query.settings = {}
    query.run()
    assert values(sink) == values_of(*BATCHES[:2])


def test_a_lost_transaction_is_repaired_although_the_sinks_are_passed_in_another_order(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    first, second = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)
    select = {second.name: ["CONCAT('x', n) AS value"]}
    query = Query(spark, tmp_path, (first, second), {"select": select})
    query.feed(*BATCHES[0])
    query.fail_at("driver.decided")
    expire(first)
    query.sinks = (second, first)
    query.run()
    assert values(first) == values_of(BATCHES[0])
    assert values(second) == Counter(f"x{row['n']}" for row in BATCHES[0])
