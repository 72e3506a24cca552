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
from twopc.attempt import Evidence
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.connection import RegionServer
from twopc.sinks.hbase.fence import Fence
from twopc.sinks.hbase.mappings import Increment, Put
from twopc.sinks.hbase.staging import remove_slice
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import Driver, Query

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.hbase.support import Store
    from twopc.attempt import TaskAttempt
    from twopc.sinks.hbase.fence import Progress

__all__ = ["spark"]

SENT = RegionServer, "send_request"

CHUNK = 100
#: The calls of one task whose rows form one chunk.
BUDGET = {Put: {BEGIN: 3, STAGE: 3, CONFIRM: 3, APPLY: 16}, Increment: {BEGIN: 3, STAGE: 5, CONFIRM: 3, APPLY: 17}}
#: The calls that each further chunk adds.
EACH_CHUNK = {Put: {STAGE: 1, APPLY: 2}, Increment: {STAGE: 2, APPLY: 3}}

#: The number of calls under Spark: by a task, by the driver for a batch, and by the driver for each task. The rows form
#: one chunk.
OF_TASK, OF_DRIVER, OF_DRIVER_FOR_TASK = 3, 17, 5


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


def test_a_batch_does_not_read_past_the_slices_of_earlier_batches(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their columns stay in the progress row until HBase flushes the table, and a read of the row passes all of them."""
    query = Query(Case(sink_of(store, put_values(store), timeout_ms=30_000), numbers, list), tmp_path)
    query.run(0)
    found = reads_of_the_fence(monkeypatch)
    query.run(1, 2)
    # At a start, the row may contain the tombstones of the last decision.
    assert found.count(None) == 1 and len(found) > 4


def test_after_a_loss_the_complete_row_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a slice that replaces a lost slice have later timestamps than the lost slice's."""
    sink = sink_of(store, put_values(store), timeout_ms=30_000)
    driver = Driver(sink)
    scan_start = driver.begin()
    lost, kept = driver.prepare(numbers([1])), driver.prepare(numbers([2]))
    store.client.execute([remove_slice(sink.staging_table, lost.row(sink.name))])
    assert driver.committer.commit([lost, kept], scan_start) == {lost: Evidence.ABORTED, kept: Evidence.COMMITTED}
    found = reads_of_the_fence(monkeypatch)
    driver.begin()
    assert found == [None]
    again = driver.prepare(numbers([1]))
    assert driver.committer.commit([kept, again], scan_start)[again] is Evidence.COMMITTED
    assert found.count(None) > 1


def put_values(store: Store) -> Put:
    return Put(f"{store.prefix}:{{value}}", {"d:v": "value"})


def reads_of_the_fence(monkeypatch: pytest.MonkeyPatch) -> list[list[str] | None]:
    """The slices that each later read of the progress row asks for; None for the complete row."""
    read = Fence.read
    found: list[list[str] | None] = []

    def noted(self: Fence, uuids: Iterable[str] | None = None) -> Progress:
        found.append(None if uuids is None else list(uuids))
        return read(self, found[-1])

    monkeypatch.setattr(Fence, "read", noted)
    return found


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
