"""What the engine tells the check of rule 6 about the jobs of an attempt, and how many tasks it lets write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, call

import pytest

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
    engine._is_direct.return_value, engine.max_writers = False, None
    assert SparkEngine._results(engine, MagicMock(), MagicMock(), MagicMock(), "tag") == results
    assert engine.shuffles.look.mock_calls == looks


def most_writers(*, keeps_order: bool, is_sorted: bool, chosen: int | None) -> int | None:
    engine: Any = MagicMock(max_writers=chosen)
    engine.may_be_sorted.return_value, engine.slots.most_writers.return_value = is_sorted, 4
    sinks = [MagicMock(keeps_task_order=False), MagicMock(keeps_task_order=keeps_order)]
    return SparkEngine._most_writers(engine, MagicMock(sinks=sinks))


@pytest.mark.parametrize("chosen", [None, 3])
def test_partitions_are_merged_unless_their_order_matters_to_a_sink(chosen: int | None) -> None:
    assert most_writers(keeps_order=True, is_sorted=True, chosen=chosen) is None
    assert most_writers(keeps_order=True, is_sorted=False, chosen=chosen) == (chosen or 4)
    assert most_writers(keeps_order=False, is_sorted=True, chosen=chosen) == (chosen or 4)


@pytest.mark.parametrize("sink", [RedisSink, HBaseSink])
def test_the_tasks_order_matters_to_a_sink_whose_last_row_wins(sink: type[RedisSink | HBaseSink]) -> None:
    assert sink.keeps_task_order is True


def test_the_tasks_of_a_kafka_sink_have_no_order() -> None:
    assert not KafkaSink(name="orders", bootstrap_servers="h:1", topic="t").keeps_task_order


def test_no_plan_is_read_for_sinks_without_an_order() -> None:
    engine: Any = MagicMock()
    SparkEngine._most_writers(engine, MagicMock(sinks=[MagicMock(keeps_task_order=False)]))
    assert not engine.may_be_sorted.called
