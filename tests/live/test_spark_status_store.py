"""What Spark reports about its stages. The driver's check for mixed rows relies on these reports (rule 6)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

from tests.live.spark_support import spark, wait_until
from twopc.integration.spark.status_store import StatusStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from twopc.integration.spark.reports import StageAttempt

__all__ = ["spark"]


def test_a_finished_stage_is_reported_with_its_start_and_its_end(spark: SparkSession) -> None:
    store = StatusStore(spark.sparkContext)
    number = store.end_of_jobs()
    spark.sparkContext._jsc.sc().range(0, 1, 1, 1).count()

    def is_over() -> bool:
        job = store.job(number)
        return job is not None and job.is_over

    wait_until(is_over, "the end of the job")
    job = store.job(number)
    assert job is not None
    [stage] = job.stages
    last, attempts = store.last_attempt(stage), store.attempts(stage)
    assert last is not None
    assert attempts == [last]
    assert last.submission_time is not None
    assert last.completion_time is not None
    assert 0 < last.submission_time <= last.completion_time


def test_a_stage_whose_limit_hides_what_it_has_read_counts_as_a_reader_in_both_kinds_of_reports(tmp_path: Path) -> None:
    """The pages of Spark's UI show the same as the status store, in a session of its own that has a UI."""
    command = [sys.executable, str(Path(__file__).with_name("hidden_reads.py"))]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": paths}
    ended = subprocess.run(
        command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False, timeout=500
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, list[tuple[bool, bool]]] = {}
    for kind, records, of_store, of_ui in json.loads(ended.stdout.splitlines()[-1]):
        assert of_store == of_ui, kind
        found.setdefault(kind, []).append((records > 0, of_store))
    hidden, seen, nothing = (False, True), (True, True), (False, False)
    assert found == {
        "shuffle": [nothing, seen],
        "limit": [nothing, hidden, hidden, seen],
        "on disk": [nothing, hidden, seen],
        "in memory": [hidden, hidden, seen],
    }


def test_a_retry_after_a_failed_stage_runs_only_the_tasks_that_had_not_succeeded(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The check adds up the tasks of both stages."""
    gate, is_repaired = tmp_path / "gate", tmp_path / "repaired"

    def rows(number: int, _: Iterable[int]) -> list[tuple[int, int]]:
        if number == 3 and not is_repaired.exists():
            while not gate.exists():
                time.sleep(0.01)
            raise ValueError("as planned")
        return [(number, row) for row in range(5)]

    store = StatusStore(spark.sparkContext)
    grouped = spark.sparkContext.parallelize(range(4), 4).mapPartitionsWithIndex(rows).groupByKey(2)

    def written(number: int) -> StageAttempt | None:
        job = store.job(number)
        return None if job is None else store.last_attempt(min(job.stages))

    def have_succeeded() -> bool:
        stage = written(first)
        return stage is not None and stage.num_complete_tasks == 3

    def repair() -> None:
        try:
            wait_until(have_succeeded, "the other tasks have succeeded")
        finally:
            gate.touch()

    first = store.end_of_jobs()
    repairing = threading.Thread(target=repair)
    repairing.start()
    with pytest.raises(Py4JJavaError, match="as planned"):
        grouped.collect()
    repairing.join()
    is_repaired.touch()
    second = store.end_of_jobs()
    assert len(grouped.collect()) == 4
    wait_until(lambda: store.is_over(second), "the end of the job")
    failed, later = written(first), written(second)
    assert failed is not None
    assert later is not None
    assert (failed.status, failed.num_tasks, failed.num_complete_tasks) == ("FAILED", 4, 3)
    assert (later.status, later.num_tasks, later.num_complete_tasks) == ("COMPLETE", 1, 1)
    assert failed.rdd_ids[0] == later.rdd_ids[0]
