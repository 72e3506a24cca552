"""The cost of a batch for HBase, limited by bounds on its calls, which do not depend on the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.budget import PLANS, WRITERS, counting_method, require_within
from tests.live.hbase.support import sink_of, unique
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
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.connection import RegionServer
from twopc.sinks.hbase.mappings import Increment, Put

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.hbase.support import Store
    from twopc.attempt import TaskAttempt

__all__ = ["spark"]

SENT = RegionServer, "send_request"

CHUNK = 100
#: The calls of one task whose rows form one chunk.
BUDGET = {Put: {BEGIN: 3, STAGE: 3, CONFIRM: 3, APPLY: 14}, Increment: {BEGIN: 3, STAGE: 5, CONFIRM: 3, APPLY: 15}}
#: The calls that each further chunk adds.
EACH_CHUNK = {Put: {STAGE: 1, APPLY: 2}, Increment: {STAGE: 2, APPLY: 3}}

#: The number of calls under Spark: by a task, by the driver for a batch, and by the driver for each task. The rows form
#: one chunk.
OF_TASK, OF_DRIVER, OF_DRIVER_FOR_TASK = 3, 15, 5


@pytest.mark.parametrize("kind", BUDGET)
@pytest.mark.parametrize("rows", [1, CHUNK, 4 * CHUNK])
def test_a_batch_takes_a_few_calls_plus_a_few_per_chunk(
    store: Store, tmp_path: Path, kind: type[Put | Increment], rows: int
) -> None:
    sink = sink_of(store, kind(f"{store.prefix}:{{id}}", {"d:v": "n"}), chunk_rows=CHUNK, timeout_ms=30_000)
    with counting_method(*SENT) as sent:
        found = round_trips(sink, rows, sent, tmp_path)
    further = max(0, rows // CHUNK - 1)
    require_within(found, {step: some + further * EACH_CHUNK[kind].get(step, 0) for step, some in BUDGET[kind].items()})


@dataclass(frozen=True, kw_only=True)
class Counted(HBaseSink):
    """Its tasks add their calls to the file ``into``."""

    into: str

    def create_writer(self, task: TaskAttempt) -> Any:
        return counted_writer(super().create_writer, task, *SENT, self.into)


@pytest.mark.parametrize("partitions", PLANS)
def test_a_batch_of_many_partitions_takes_only_as_many_calls_as_its_few_writers_need(
    store: Store, spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    mapping = Put(f"{store.prefix}:{{id}}", {"d:v": "n"})
    sink = Counted(
        name=unique(), zookeeper=store.zookeeper, table=store.table, mapping=mapping, into=str(tmp_path / "sent")
    )
    batches = round_trips_of_spark(spark, sink, partitions, *SENT, tmp_path)
    writers = WRITERS[partitions]
    assert min(batches) == ([OF_TASK] * writers, OF_DRIVER + OF_DRIVER_FOR_TASK * writers)
