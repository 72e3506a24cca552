"""Executors die under Spark Connect, which does not show the driver what Spark then runs again (rule 6)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.live.spark_support import BY_TASKS, Pipeline, spark_ui
from tests.live.test_spark_checksums import CHECKSUMS
from tests.live.test_spark_executors import (
    CLUSTER,
    MANY_ROWS,
    executor_of,
    kill_workers,
    let_go,
    lose_executor,
    stopped,
)

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService

pytestmark = [pytest.mark.whole, pytest.mark.calm, pytest.mark.timeout(900)]

#: In Spark's own log: a part of the shuffle was lost with its executor.
_FETCH_FAILED = "FetchFailed("
#: In the toolkit's error.
_RAN_AGAIN = "again, because some of that stage's output was lost"
_DETERMINISTIC = {**BY_TASKS, "checkpoints": {"deterministic_plan": True}}


def seen() -> dict[str, Any]:
    """Options for a query whose stages are checked with Spark's UI."""
    ui, config = spark_ui()
    return {"spark": CLUSTER | ui, "settings": BY_TASKS | config}


@contextlib.contextmanager
def unchecked(kafka: KafkaService, root: Path, rows: int = 60, keys: int = 10, **options: Any) -> Iterator[Pipeline]:
    """A query over some rows on two executors, whose processes end with it."""
    pipeline = Pipeline(
        kafka.bootstrap_servers,
        root,
        **{"max_offsets": 20, "is_connect": True, "settings": BY_TASKS, "spark": CLUSTER, **options},
    )
    try:
        pipeline.feed(rows, keys=keys)
        yield pipeline
    finally:
        kill_workers(pipeline)


@contextlib.contextmanager
def query(kafka: KafkaService, root: Path, **options: Any) -> Iterator[Pipeline]:
    """Run the query of `unchecked`, and require each row exactly once in its output."""
    with unchecked(kafka, root, **options) as pipeline:
        yield pipeline
    pipeline.require_exactly_once()


def test_a_killed_executors_task_is_repeated_and_its_transaction_swept(kafka: KafkaService, tmp_path: Path) -> None:
    with query(kafka, tmp_path) as pipeline:
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=1)[0]).kill()
        let_go(run)
        assert run.ended() == 0, run.text[-3000:]
    pipeline.require_order()


def test_the_lost_part_of_a_deterministic_shuffle_is_written_again_and_each_row_is_visible_once(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with query(kafka, tmp_path, plan="shuffle", partitions=4, settings=_DETERMINISTIC, **MANY_ROWS) as pipeline:
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=2)[0]).kill()
        let_go(run)
        assert run.ended() == 0, run.text[-3000:]
        assert _FETCH_FAILED in run.text


def test_a_false_promise_that_a_random_shuffle_is_deterministic_loses_and_duplicates_rows(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """This is why the toolkit requires the user's promise.

    The surviving task has read the first version of the lost part.
    """
    options: dict[str, Any] = {"plan": "scattered", "partitions": 4, "max_offsets": None, "settings": _DETERMINISTIC}
    not_compared = CLUSTER | dict.fromkeys(CHECKSUMS, "false")
    with unchecked(kafka, tmp_path, spark=not_compared, **{**MANY_ROWS, **options}) as pipeline:
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=2)[0]).kill()
        let_go(run)
        assert run.ended() == 0, run.text[-3000:]
        assert _FETCH_FAILED in run.text
    seen = pipeline.visible()
    assert pipeline.given - seen
    assert seen - pipeline.given


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark compares the rows of a shuffle from 4.1 on")
def test_a_batch_shuffled_by_random_numbers_is_not_decided_unless_spark_has_compared_its_rows(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Either Spark reruns every reader of the shuffle, or it ends the job and a restart recomputes the batch."""
    with query(
        kafka, tmp_path, plan="scattered", partitions=4, max_offsets=None, spark=CLUSTER | CHECKSUMS
    ) as pipeline:
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=2)[0]).kill()
        let_go(run)
        ended = run.ended()
        assert _FETCH_FAILED in run.text
        if ended != 0:
            assert not pipeline.visible()
            again = pipeline.process()
            assert again.ended() == 0, again.text[-3000:]


def test_spark_ui_shows_a_result_stage_that_ran_again_and_its_rows_are_written_once(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """A new attempt writes them; but if an earlier job wrote the shuffle, as in Spark 4.1, a restart computes the batch again."""
    with query(kafka, tmp_path, plan="scattered", partitions=4, max_offsets=None, **seen()) as pipeline:
        run = pipeline.process("task.prepared=stop")
        executor_of(stopped(run, count=2)[0]).kill()
        let_go(run)
        ended = run.ended()
        assert _FETCH_FAILED in run.text
        if ended == 0:
            assert "was rerun (attempt 1)" in run.text
        else:
            assert _RAN_AGAIN in run.text, run.text[-3000:]
            assert not pipeline.visible()
            again = pipeline.process()
            assert again.ended() == 0, again.text[-3000:]


def test_spark_ui_shows_that_a_stage_between_two_shuffles_ran_again(kafka: KafkaService, tmp_path: Path) -> None:
    """The result stage is in its first attempt, so its own reports do not show that its rows are mixed.

    A restart writes them once.
    """
    with query(kafka, tmp_path, plan="two_shuffles", partitions=4, max_offsets=None, **seen()) as pipeline:
        pipeline.feed(140)
        run = pipeline.process()
        executor_of(stopped(run, count=2)[0]).kill()
        let_go(run)
        assert run.ended() != 0
        assert _RAN_AGAIN in run.text, run.text[-3000:]
        assert "failed. Retrying" not in run.text
        assert not pipeline.visible()
        again = pipeline.process()
        let_go(again)
        assert again.ended() == 0, again.text[-3000:]


def test_spark_ui_shows_that_state_and_rows_were_computed_from_different_shuffles(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """The batch is evaluated once more after the driver has written its rows. An executor dies in between.

    A restart writes both.
    """
    ui, config = spark_ui()
    options: dict[str, Any] = {"spark": CLUSTER | ui, "settings": {"write_by": "driver"} | config}
    with unchecked(kafka, tmp_path, rows=200, plan="again", max_offsets=None, **options) as pipeline:
        run = pipeline.process("task.prepared=stop")
        [driver] = stopped(run, count=1)
        lose_executor(run)
        driver.resume()
        assert run.ended() != 0, "it was decided"
        assert _RAN_AGAIN in run.text, run.text[-3000:]
        assert not pipeline.visible()
        again = pipeline.process()
        assert again.ended() == 0, again.text[-3000:]
        assert sum(int(value) for value in pipeline.visible().elements()) == 200
