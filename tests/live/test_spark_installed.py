"""Workers import another copy of the toolkit than the driver, as on hosts with a stale image."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import twopc
from tests.live.spark_support import BY_TASKS, Pipeline

if TYPE_CHECKING:
    from tests.live.services import KafkaService

pytestmark = pytest.mark.whole


def test_workers_with_other_code_than_the_drivers_write_nothing(kafka: KafkaService, tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    shutil.copytree(Path(twopc.__path__[0]), stale / "twopc", ignore=shutil.ignore_patterns("__pycache__"))
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings=BY_TASKS)
    pipeline.feed(20)
    try:
        same = pipeline.process(spark={"spark.executorEnv.PYTHONPATH": str(stale)})  # a copy of the same code
        assert same.ended() == 0, same.text[-3000:]
        pipeline.require_exactly_once()
        zones = stale / "twopc/integration/spark/zones.py"
        zones.write_text(zones.read_text() + "\n\n_ = 0\n")
        seen = pipeline.visible()
        pipeline.feed(20)
        other = pipeline.process(spark={"spark.executorEnv.PYTHONPATH": str(stale)})
        assert other.ended() != 0
        assert f"runs version {twopc.__version__} in {stale}/twopc (source code " in other.text, other.text[-3000:]
        assert "twopc.errors.ConfigurationError: task " in other.text, other.text[-3000:]
        assert pipeline.visible() == seen
        assert pipeline.process().ended() == 0
        pipeline.require_exactly_once()
    finally:
        pipeline.close()
