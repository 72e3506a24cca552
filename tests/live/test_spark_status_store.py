"""What Spark reports about its stages. The driver's check for mixed rows relies on these reports (rule 6)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.live.spark_support import spark, wait_until
from twopc.integration.spark.status_store import StatusStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    ended = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False, timeout=500)
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
