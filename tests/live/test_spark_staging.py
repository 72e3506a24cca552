"""Where tasks keep their rows (``staging=True``): each query in its own place, and where the driver sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.spark import staging
from tests.live.spark_support import Pipeline, spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def test_two_queries_with_one_staging_location_leave_each_others_slices_alone(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    settings = {"staging": True, "staging_location": str(tmp_path / "shared")}
    stopped, other = (Pipeline(kafka.bootstrap_servers, tmp_path / name, settings=settings) for name in "ab")
    stopped.feed(8)
    stopped.fail_at(spark, "driver.decided@1")
    slices = set((tmp_path / "shared").rglob("*.arrow"))
    for _ in range(2):  # the second run has a higher driver epoch
        other.feed(8)
        other.run(spark)
    assert slices and all(file.exists() for file in slices)
    for pipeline in (stopped, other):
        pipeline.run(spark)
        pipeline.require_exactly_once()
    assert not set((tmp_path / "shared").rglob("*.arrow"))


def test_a_staging_location_that_the_workers_do_not_share_is_refused_before_the_decision_and_a_shared_one_works(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"staging": True, "staging_location": str(tmp_path / "shared")}
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings=settings)
    pipeline.feed(8)
    opened = staging.open_location
    with monkeypatch.context() as patch:  # in the driver only: the workers are processes of their own
        patch.setattr(staging, "open_location", lambda location: opened(f"{location}-of-another-host"))
        message = pipeline.fail(spark)
    assert "ConfigurationError: the driver does not see" in message
    assert not pipeline.visible()
    pipeline.run(spark)
    pipeline.require_exactly_once()
