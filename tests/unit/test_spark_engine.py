"""What the engine tells the check of rule 6 about the jobs of an attempt, and how many tasks it lets write."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, call, patch

import pytest

from twopc.engine import Write
from twopc.integration.spark import engine as engine_module
from twopc.integration.spark.engine import SparkEngine
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.redis import RedisSink

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(("count", "looks"), [(0, [call("tag", is_collected=False)]), (2, [])])
def test_the_check_waits_for_the_jobs_of_a_dataframe_without_tasks(
    count: int, looks: Sequence[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No result shows the job's stage. The driver did not collect any rows of the DataFrame."""
    results = [MagicMock(size_bytes=1)] * count
    monkeypatch.setattr(engine_module, "_run", lambda *_: results)
    engine: Any = MagicMock()
    engine._is_direct.return_value, engine._most_writers.return_value = False, None
    assert SparkEngine._results(engine, MagicMock(), MagicMock(), MagicMock(), "tag") == results
    assert engine.shuffles.look.mock_calls == looks


def coalesced(
    *, keeps_order: bool = False, is_sorted: bool = False, depends_on_task: bool = False, chosen: int | None = None
) -> tuple[int | None, list[str]]:
    """Return how many tasks the engine lets write a DataFrame of six partitions, and what it tells."""
    parts: dict[str, Any] = {field.name: MagicMock() for field in dataclasses.fields(SparkEngine)}
    engine: Any = SparkEngine(**parts | {"max_writers": chosen, "state": None})
    engine.slots.most_writers.return_value = 4
    engine.may_be_sorted.return_value, engine.depends_on_task.return_value = is_sorted, depends_on_task
    engine.way.is_direct.return_value = False
    rows, work = MagicMock(), MagicMock(mode=Write(), batch=MagicMock(batch_id=3))
    rows.name, rows.sinks = "", [MagicMock(keeps_task_order=False), MagicMock(keeps_task_order=keeps_order)]
    with patch.object(engine_module, "_run", return_value=[MagicMock(size_bytes=1)] * 6):
        engine._results(rows, MagicMock(), work, "tag")
    return rows.for_tasks.call_args.args[0], [str(one.args[0]) for one in engine.tell.mock_calls]


@pytest.mark.parametrize("chosen", [None, 3])
def test_partitions_are_merged_unless_their_order_matters_to_a_sink(chosen: int | None) -> None:
    [most, [told]] = coalesced(keeps_order=True, is_sorted=True, chosen=chosen)
    assert most is None
    assert told.startswith(f"6 tasks have written batch 3, although max_writers is {chosen or 4} (")
    assert "The DataFrame is sorted" in told
    assert coalesced(keeps_order=True, chosen=chosen) == (chosen or 4, [])
    assert coalesced(is_sorted=True, chosen=chosen) == (chosen or 4, [])


@pytest.mark.parametrize("chosen", [None, 3])
def test_partitions_are_not_merged_if_code_in_their_plan_asks_for_its_task(chosen: int | None) -> None:
    """Otherwise, TaskContext.partitionId() would be the same for several partitions, and ids built from it would collide."""
    [most, [told]] = coalesced(depends_on_task=True, chosen=chosen)
    assert most is None
    assert "spark_partition_id()" in told


def test_a_dataframe_with_few_partitions_is_not_reported() -> None:
    assert coalesced(depends_on_task=True, chosen=6) == (None, [])


@pytest.mark.parametrize("sink", [RedisSink, HBaseSink])
def test_the_tasks_order_matters_to_a_sink_whose_last_row_wins(sink: type[RedisSink | HBaseSink]) -> None:
    assert sink.keeps_task_order is True


def test_the_tasks_of_a_kafka_sink_have_no_order() -> None:
    assert not KafkaSink(name="orders", bootstrap_servers="h:1", topic="t").keeps_task_order


def test_no_plan_is_read_for_the_order_of_sinks_without_one() -> None:
    engine: Any = MagicMock()
    engine.depends_on_task.return_value = False
    assert SparkEngine._why_unmerged(engine, MagicMock(sinks=[MagicMock(keeps_task_order=False)]), 4) is None
    assert not engine.may_be_sorted.called
