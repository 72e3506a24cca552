"""A checkpoint is where Spark has it, however its path is spelled."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tests.live.spark_support import Pipeline, spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

#: SPARK-26824: Spark itself has taken a path's escaped text for the path.
ALL = "a b%20c%#d[e]{f}+g&h=é~"


def through_another_file_system(spark: SparkSession, root: Path, name: str) -> str:
    """The same directory by a URL of Hadoop's, whose files are not taken for local ones."""
    table = f"t{uuid.uuid4().hex[:8]}"
    context: Any = spark.sparkContext
    context._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{table}.link./here", f"file://{root}")
    return f"viewfs://{table}/here/{name}"


def require_same_directory(pipeline: Pipeline, spark: SparkSession, root: Path, name: str) -> None:
    """A second run reads what the first one wrote, and all of it is in Spark's own directory."""
    for _ in range(2):
        pipeline.feed(4)
        pipeline.run(spark)
    pipeline.require_exactly_once()
    assert [path.name for path in root.iterdir()] == [name.rstrip("/")]
    assert {"metadata", "offsets", "commits", "twopc"} <= {path.name for path in (root / name).iterdir()}


def test_every_character_of_a_checkpoints_path_means_itself(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """Fails if a path is made from a URI's escaped text."""
    root = tmp_path / "checkpoints"
    root.mkdir()
    location = through_another_file_system(spark, root, ALL)
    require_same_directory(Pipeline(kafka.bootstrap_servers, tmp_path, checkpoint=location), spark, root, ALL)
