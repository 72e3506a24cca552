"""Limit the round trips to Redis that a batch may take. Unlike a duration, their number does not depend on the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from redis.connection import AbstractConnection

from tests.budget import PLANS, WRITERS, counting_method, require_within
from tests.live.redis.support import sink_of, unique
from tests.live.spark_support import spark
from tests.live.staged_budget import (
    APPLY,
    BEGIN,
    CONFIRM,
    STAGE,
    counted_writer,
    round_trips,
    round_trips_of_spark,
)
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy, Set

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.redis.services import RedisService
    from twopc.attempt import TaskAttempt

__all__ = ["spark"]

SENT = AbstractConnection, "send_packed_command"
CHUNK = 1_000
#: The requests of one task. The writer reconnects, as a Python worker does after a long idle time.
BUDGET = {BEGIN: 2, STAGE: 6, CONFIRM: 2, APPLY: 9}

#: The number of round trips under Spark: by a task, by the driver for a batch, and by the driver for each task. The
#: rows form one chunk.
OF_TASK, OF_DRIVER, OF_DRIVER_FOR_TASK = 6, 12, 1


@pytest.mark.parametrize("kind", [Set, IncrBy])
@pytest.mark.parametrize("rows", [1, CHUNK, 4 * CHUNK])
def test_a_batch_takes_the_same_few_round_trips_for_any_number_of_rows(
    redis_server: RedisService, tmp_path: Path, kind: type[Set | IncrBy], rows: int
) -> None:
    sink = sink_of(redis_server.url, kind(f"{unique()}:{{id}}", "n"), chunk_rows=CHUNK, timeout_ms=30_000)
    with counting_method(*SENT) as sent:
        found = round_trips(sink, rows, sent, tmp_path)
    require_within(found, BUDGET)


@dataclass(frozen=True, kw_only=True)
class Counted(RedisSink):
    """Its tasks add their round trips to the file ``into``."""

    into: str

    def create_writer(self, task: TaskAttempt) -> Any:
        return counted_writer(super().create_writer, task, *SENT, self.into)


@pytest.mark.whole
@pytest.mark.parametrize("partitions", PLANS)
def test_a_batch_of_many_partitions_takes_only_as_many_round_trips_as_its_few_writers_need(
    redis_server: RedisService, spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    mapping = Set(f"{unique()}:{{id}}", "n")
    sink = Counted(name=unique(), url=redis_server.url, mapping=mapping, into=str(tmp_path / "sent"))
    batches = round_trips_of_spark(spark, sink, partitions, *SENT, tmp_path)
    writers = WRITERS[partitions]
    assert min(batches) == ([OF_TASK] * writers, OF_DRIVER + OF_DRIVER_FOR_TASK * writers)
