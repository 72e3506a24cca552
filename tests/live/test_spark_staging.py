"""Where tasks store their rows (``staging=True``): each query in its own place, which the driver must be able to read."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.live.spark_support import BY_TASKS, Pipeline, spark
from tests.live.test_spark_recovery import decide_and_lose
from twopc.integration.spark import staging
from twopc.integration.spark.staging_location import open_location
from twopc.records import Repair
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.mark.whole
def test_two_queries_with_the_same_staging_location_leave_each_others_staged_files_alone(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    settings = {"staging": str(tmp_path / "shared")}
    stopped, other = (Pipeline(kafka.bootstrap_servers, tmp_path / name, settings=settings) for name in "ab")
    stopped.feed(8)
    stopped.fail_at(spark, "driver.decided@1")
    staged_files = set((tmp_path / "shared").rglob("*.arrow"))
    for _ in range(2):  # the second run has a higher driver epoch
        other.feed(8)
        other.run(spark)
    assert staged_files and all(file.exists() for file in staged_files)
    for pipeline in (stopped, other):
        pipeline.run(spark)
        pipeline.require_exactly_once()
    assert not set((tmp_path / "shared").rglob("*.arrow"))


def test_an_unshared_staging_location_is_refused_before_the_decision_and_a_shared_one_works(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**BY_TASKS, "staging": str(tmp_path / "shared")}
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings=settings)
    pipeline.feed(8)
    opened = open_location
    with monkeypatch.context() as patch:  # in the driver only, because the workers are separate processes
        patch.setattr(staging, "open_location", lambda location: opened(f"{location}-of-another-host"))
        patch.setattr(staging, "_STALE_S", 0)
        message = pipeline.fail(spark)
    assert "ConfigurationError: the driver cannot see" in message
    assert not pipeline.visible()
    pipeline.run(spark)
    pipeline.require_exactly_once()


@pytest.mark.whole
@pytest.mark.parametrize("write_by", ["driver", "tasks"])
def test_a_staging_location_that_refuses_rows_causes_an_error_that_names_it_and_the_restart_continues(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, write_by: str
) -> None:
    settings = {"write_by": write_by, "staging": str(tmp_path / "shared")}
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings=settings)
    pipeline.feed(8)
    (tmp_path / "shared").touch()  # in place of the directory
    message = pipeline.fail(spark)
    assert f"UnavailableError: staging: {tmp_path}/shared" in message
    assert not pipeline.visible()
    (tmp_path / "shared").unlink()
    pipeline.run(spark)
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_lost_batch_is_published_by_tasks_in_parallel_like_any_other_batch(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """One process would need longer than the transactions live, at every start, where the batch is large."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="unstable", settings={**BY_TASKS, "staging": True})
    pipeline.feed(60)
    decide_and_lose(pipeline, spark, but=0)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    options = pipeline.options
    with closing(
        KafkaSink(name=options.name, bootstrap_servers=options.bootstrap_servers).create_decision_log()
    ) as ledger:
        (repair,) = [record for _, record in ledger.inspect().entries if isinstance(record, Repair)]
    ids = [str(task.handles[options.name]["transactional_id"]) for task in repair.tasks]
    assert len(ids) == options.partitions
    workers = {name.split(".")[2] for name in ids}
    assert len(workers) > 1, "both tasks ran in the same worker"


def test_an_altered_staged_file_is_not_published_and_the_batch_is_evaluated_again_once_the_file_is_deleted(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings={"staging": True, "write_by": "driver"})
    pipeline.feed(8)
    pipeline.run(spark)
    pipeline.feed(8)
    decide_and_lose(pipeline, spark, but=0)
    (file,) = tmp_path.rglob("*.arrow")
    altered = bytearray(file.read_bytes())
    altered[len(altered) // 2] ^= 1
    file.write_bytes(altered)
    assert "the file is torn or was altered. No staged row was written" in pipeline.fail(spark)
    assert sum(pipeline.visible().values()) == 8
    file.unlink()
    pipeline.run(spark)
    pipeline.require_exactly_once()
