"""A sorted DataFrame reaches Redis in the order of the sort, wherever Spark has put the rows before the tasks write them.

If Spark knows where a partition's rows are, ``coalesce`` no longer merges neighbors: it merges partitions in an order that
looks random.
"""

from __future__ import annotations

import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.file_query import Query, redis_client
from tests.live.redis.support import sink_of, unique
from tests.live.spark_support import BY_TASKS, spark
from twopc import CheckpointConfig
from twopc.sinks.redis.mappings import ListPush, Set

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.redis.services import RedisService
    from twopc.integration.spark import ExactlyOnce
    from twopc.sinks.redis import RedisSink

__all__ = ["spark"]

#: More than the ten numbers of one digit, and three times the number of tasks that write a batch by default.
PARTITIONS = 12
KEYS = 7
ROWS: list[dict[str, Any]] = [{"id": f"k{n % KEYS}", "n": n} for n in range(240)]
random.Random(5).shuffle(ROWS)


def adaptive(batch: DataFrame) -> DataFrame:
    """Spark runs the shuffle first, so it knows where the rows are when it merges partitions."""
    batch.sparkSession.conf.set("spark.sql.adaptive.enabled", "true")
    batch.sparkSession.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    return batch


def evaluated(frame: DataFrame) -> DataFrame:
    """After this job, Spark knows where a kept DataFrame's rows are."""
    frame.count()
    return frame


PLANS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "sorted": lambda batch: batch.orderBy("n"),
    "adaptive": lambda batch: adaptive(batch).orderBy("n"),
    "ranges": lambda batch: (
        adaptive(batch).repartitionByRange(PARTITIONS, "n").sortWithinPartitions("n").where("n >= 0")
    ),
    "cached": lambda batch: evaluated(batch.orderBy("n").persist()),
    "cached and adaptive": lambda batch: evaluated(adaptive(batch).orderBy("n").persist()),
    "checkpointed": lambda batch: evaluated(batch.orderBy("n").localCheckpoint()),
    "checkpointed and adaptive": lambda batch: evaluated(adaptive(batch).orderBy("n").localCheckpoint()),
    "cached checkpoint": lambda batch: evaluated(adaptive(batch).orderBy("n").localCheckpoint().persist()),
}


class Written:
    """A query that writes each row's value to its key, and all values to a list."""

    def __init__(self, spark: SparkSession, directory: Path, redis_server: RedisService, **settings: Any) -> None:
        self.prefix, self._server = unique(), redis_server
        self.sinks: tuple[RedisSink, ...] = (
            sink_of(redis_server.url, Set(f"{self.prefix}:{{id}}", "n"), timeout_ms=20_000),
            sink_of(redis_server.url, ListPush(f"{self.prefix}:all", "n"), timeout_ms=20_000),
        )
        self.query = Query(spark, directory, self.sinks, {**BY_TASKS, **settings})
        self.query.feed(*ROWS)

    def run(self, plan: Callable[[DataFrame], DataFrame]) -> None:
        def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
            def write(batch: DataFrame, batch_id: int) -> None:
                batch.sparkSession.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
                each(plan(batch), batch_id)

            return write

        self.query.function = function
        self.query.run()

    def require_order(self, batches: int = 1) -> None:
        with contextlib.closing(redis_client(self._server)) as client:
            newest = {f"k{key}": int(client.get(f"{self.prefix}:k{key}")) for key in range(KEYS)}
            pushed = [int(one) for one in client.lrange(f"{self.prefix}:all", 0, -1)]
        assert pushed == batches * sorted(row["n"] for row in ROWS)
        assert newest == {row["id"]: row["n"] for row in sorted(ROWS, key=lambda row: row["n"])[-KEYS:]}


@pytest.mark.parametrize("name", PLANS)
def test_the_newest_value_of_a_key_wins(
    name: str, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    written = Written(spark, tmp_path, redis_server)
    written.run(PLANS[name])
    written.require_order()


def test_a_query_that_sorts_its_batches_itself_keeps_the_order(
    redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    """The function evaluates the batch before it writes it, so Spark knows where the rows are."""
    written = Written(spark, tmp_path, redis_server)
    written.query.plan = lambda frame: frame.groupBy("id", "n").count().orderBy("n")
    written.query.output_mode = "complete"
    spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    try:
        written.run(evaluated)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "3")
    written.require_order()


def test_the_order_comes_before_the_maximum_number_of_tasks_and_one_warning_says_so(
    redis_server: RedisService, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = Written(spark, tmp_path, redis_server, checkpoints=CheckpointConfig(max_writers=5))
    written.query.feed(*ROWS)
    with caplog.at_level(logging.WARNING):
        written.run(PLANS["adaptive"])
    written.require_order(batches=2)
    [warning] = [one.getMessage() for one in caplog.records if "max_writers" in one.getMessage()]
    assert warning.startswith(
        f"{PARTITIONS} tasks have written batch 0, although max_writers is 5 (by default, twice the number of task slots). "
        "The DataFrame is sorted"
    )
