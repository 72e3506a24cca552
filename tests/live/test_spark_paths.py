"""A checkpoint is where Spark puts it, for every spelling of its path, even on shares without hard links."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.live import spark_query
from tests.live.operate.support import command
from tests.live.spark_support import Pipeline, finish, message_of, spark
from tests.without_links import run_without_links
from twopc.integration.spark import exactly_once
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

#: SPARK-26824: Spark itself mistook a path's escaped text for the path.
ALL = "a b%20c%#d[e]{f}+g&h=é~"
#: Names that look like a glob, a scheme, an escape, a query or a string.
QUOTED = """it's "q"?x=*:y\\z^|<>,;@$!`"""


def path_of(kind: str, spark: SparkSession, root: Path, name: str) -> str:
    """The same directory as a path, as URLs, and through another Hadoop file system."""
    if kind == "viewfs":
        table = f"t{uuid.uuid4().hex[:8]}"
        context: Any = spark.sparkContext
        context._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{table}.link./here", f"file://{root}")
        return f"viewfs://{table}/here/{name}"
    return {"path": "", "file:": "file:", "file://": "file://"}[kind] + f"{root}/{name}"


def require_same_directory(pipeline: Pipeline, spark: SparkSession, root: Path, name: str) -> None:
    """A second run reads what the first one wrote, and everything is in Spark's own directory."""
    for _ in range(2):
        pipeline.feed(4)
        pipeline.run(spark)
    pipeline.require_exactly_once()
    assert [path.name for path in root.iterdir()] == [name.rstrip("/")]
    assert {"metadata", "offsets", "commits", "twopc"} <= {path.name for path in (root / name).iterdir()}


def play(kafka: KafkaService, spark: SparkSession, tmp_path: Path, kind: str, name: str) -> None:
    root = tmp_path / "checkpoints"
    root.mkdir()
    location = path_of(kind, spark, root, name)
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, checkpoint=location)
    require_same_directory(pipeline, spark, root, name)
    if kind != "viewfs":
        assert command("status", location, "--json").facts["checkpoint"]["last_finished"] == 1
        assert command("history", location).status == 0


@pytest.mark.parametrize(("kind", "name"), [("path", ALL), ("viewfs", ALL)])
def test_every_character_of_a_checkpoints_path_is_taken_literally(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, kind: str, name: str
) -> None:
    """Fails if a path is made from a URI's escaped text."""
    play(kafka, spark, tmp_path, kind, name)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["path", "file:", "file://", "viewfs"])
@pytest.mark.parametrize("name", [ALL, QUOTED, "plain///"])
def test_every_spelling_of_a_checkpoints_path_refers_to_the_same_directory(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, kind: str, name: str
) -> None:
    """Hadoop's ``viewfs`` lists nothing below a mounted name with a colon. The error of the refused query mentions it."""
    play(kafka, spark, tmp_path, kind, name.replace(":", "") if kind == "viewfs" else name)


def test_a_view_of_a_file_system_without_an_atomic_rename_cannot_store_decisions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Fails if every ``viewfs`` counts as HDFS. With a Kafka sink, the same checkpoint works: see the test above."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"id": "a", "n": 1}\n')
    location = path_of("viewfs", spark, tmp_path, "checkpoint")
    sink = RedisSink(name="view", url="redis://127.0.0.1:1", mapping=IncrBy("view:{id}", by="n"))
    each = exactly_once(sink)
    rows = spark.readStream.schema("id STRING, n BIGINT").json(str(tmp_path / "in"))
    writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", location)
    with pytest.raises(StreamingQueryException) as refused:
        finish(writer.trigger(availableNow=True).start(), each)
    said = message_of(refused.value)
    assert location in said and "Add a Kafka sink" in said


def run_query(options: spark_query.Options) -> None:
    session = spark_query.session(Path(options.checkpoint).parent)
    finish(*spark_query.start(session, options))
    session.stop()


@pytest.mark.whole
def test_a_query_runs_on_a_share_without_hard_links_and_its_checkpoint_may_move(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """The query's Kafka ledger stores the decisions. Fails if the directory is not tried, or if its files still need links."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    for _ in range(2):
        pipeline.feed(4)
        pipeline.flush()
        run_without_links(errno.EOPNOTSUPP, run_query, pipeline.options)
    pipeline.feed(4)
    pipeline.run(spark)  # succeeds if the file system supports links
    pipeline.require_exactly_once()
