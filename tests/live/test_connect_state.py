"""Queries that keep state under Spark Connect: all of a batch's state is written before the batch is decided."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.connect_calls import OUTCOME
from tests.live.spark_support import spark_ui
from tests.live.test_connect import _TIMEOUT_S, outcome_of, pipeline_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

pytestmark = [pytest.mark.whole, pytest.mark.calm, pytest.mark.timeout(900)]

_DETERMINISTIC = {"checkpoints": {"deterministic_plan": True}}
_ROCKS_DB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


@pytest.mark.parametrize("store", [{}, _ROCKS_DB], ids=["hdfs", "rocksdb"])
def test_counts_continue_across_kills_of_the_function(
    store: dict[str, str], kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path, plan="update", settings=_DETERMINISTIC, spark=store)
    counts: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    try:
        for point in ("driver.prepared", "driver.decided", "driver.committed", ""):
            fed = Counter(value.partition("-")[0] for value in pipeline.feed(20, keys=4))
            counts += fed
            expected.update(f"{key}:{counts[key]}" for key in fed)
            if point:
                run = pipeline.process(f"{point}=kill")
                assert run.ended(_TIMEOUT_S) == 1, f"{point}: {run.text[-3000:]}"
            again = pipeline.process()
            assert again.ended(_TIMEOUT_S) == 0, f"{point}: {again.text[-3000:]}"
            assert pipeline.visible() == expected, point
    finally:
        pipeline.close()


def test_a_stateful_query_is_rejected_unless_sparks_ui_is_available(kafka: KafkaService, tmp_path: Path) -> None:
    ui, config = spark_ui()
    pipeline = pipeline_of(kafka, tmp_path, plan="update")
    try:
        counts = Counter(value.partition("-")[0] for value in pipeline.feed(20))
        run = pipeline.process()
        assert run.ended(_TIMEOUT_S) == 1, run.text[-3000:]
        assert "may shuffle the batch's rows" in run.text and "deterministic_plan=True" in run.text, run.text[-3000:]
        assert not pipeline.visible()
        again = pipeline.process(spark=ui, settings=config)
        assert again.ended(_TIMEOUT_S) == 0, again.text[-3000:]
        assert pipeline.visible() == Counter(f"{key}:{count}" for key, count in counts.items())
    finally:
        pipeline.close()


def test_a_batch_limited_by_the_function_is_evaluated_again_to_write_its_state(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=_DETERMINISTIC)
    for _ in range(4):
        pipeline.feed(20, keys=8)
        pipeline.flush()
    assert outcome_of("a_limit_of_a_stateful_batch", pipeline.options, tmp_path) == f"{OUTCOME} no error"
    assert sum(pipeline.visible().values()) == 8 + 1 + 8 + 1


def test_a_plan_that_itself_omits_state_is_refused_before_the_decision(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=_DETERMINISTIC)
    pipeline.feed(20, keys=8)
    pipeline.flush()
    outcome = outcome_of("a_stateful_plan_that_is_cut", pipeline.options, tmp_path)
    assert "of its state, so the next batch" in outcome, outcome
    assert not pipeline.visible()


@pytest.mark.parametrize(("scenario", "rows"), [("a_count_of_all_rows", 2), ("a_limit_of_the_stream", 30)])
def test_state_in_a_single_partition_is_known_to_be_complete(
    scenario: str, rows: int, kafka: KafkaService, tmp_path: Path
) -> None:
    """Spark's metadata says three partitions, as for any other operator of the query."""
    pipeline = pipeline_of(kafka, tmp_path, settings=_DETERMINISTIC)
    for _ in range(2):
        pipeline.feed(20)
        pipeline.flush()
    assert outcome_of(scenario, pipeline.options, tmp_path) == f"{OUTCOME} no error"
    assert sum(pipeline.visible().values()) == rows
