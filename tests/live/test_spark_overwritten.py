"""A batch whose offsets another driver has overwritten is noticed, on a store that allows it."""

from __future__ import annotations

import errno
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException

from tests.live import spark_query
from tests.live.pipeline import create_topic
from tests.live.spark_support import Pipeline, finish, message_of, spark
from tests.without_links import run_without_links
from twopc.errors import FatalError
from twopc.files import LocalFiles
from twopc.integration.spark import exactly_once
from twopc.integration.spark.overwritten import require_not_overwritten
from twopc.integration.spark.running import calling_query
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from tests.live.spark_query import Options

__all__ = ["spark"]


def test_a_batch_is_written_with_the_offsets_in_its_checkpoint_or_the_query_stops(
    spark: SparkSession, kafka: KafkaService, tmp_path: Path
) -> None:
    """A topic and a file as the sources. Fails if only the checkpoint is read.

    The query reads the file twice. Then the checkpoint contains the source's offset twice, and Spark's map of the sources
    contains it once.
    """
    topic = create_topic(kafka.bootstrap_servers, f"p{uuid.uuid4().hex[:10]}", 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"from the topic")
    producer.flush()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"value": "from the file"}\n')
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    rows = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    lines = spark.readStream.schema("value STRING").json(str(tmp_path / "in"))
    rows = rows.selectExpr("CAST(value AS STRING)").union(lines).union(lines)
    files = LocalFiles(tmp_path / "checkpoint")
    found: list[str] = []

    def batch(frame: DataFrame, number: int) -> None:
        query = calling_query(frame.sparkSession, None)
        require_not_overwritten(query, files, number)
        offsets = tmp_path / f"checkpoint/offsets/{number}"
        written = offsets.read_text()
        for ours, theirs in (('{"logOffset":0}', '{"logOffset":1}'), (f'"{topic}"', '"other"')):
            assert ours in written
            offsets.write_text(written.replace(ours, theirs))
            with pytest.raises(
                FatalError, match="another driver that uses this checkpoint has overwritten the offsets"
            ):
                require_not_overwritten(query, files, number)
            found.append(ours)
        offsets.write_text(written)

    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert len(found) == 2


def run_overwritten(spark: SparkSession, options: Options) -> str:
    """Run a query while another driver's late rename puts smaller offsets into the checkpoint. Return the query's error."""
    sink = KafkaSink(name=options.name, topic=options.topic, bootstrap_servers=options.bootstrap_servers)
    each = exactly_once(sink, checkpoint_location=options.checkpoint)

    def batch(frame: DataFrame, number: int) -> None:
        offsets = Path(options.checkpoint, f"offsets/{number}")
        *head, planned = offsets.read_text().splitlines()
        offsets.write_text("\n".join([*head, re.sub(r'":[0-9]+', '":0', planned)]))
        each(frame, number)

    writer = spark_query.source(spark, options).writeStream.foreachBatch(batch)
    query = writer.option("checkpointLocation", options.checkpoint).trigger(availableNow=True).start()
    try:
        finish(query, each)
    except StreamingQueryException as error:
        return message_of(error)
    return "no error"


def run_overwritten_in_its_own_session(options: Options) -> str:
    session = spark_query.session(Path(options.checkpoint).parent)
    try:
        return run_overwritten(session, options)
    finally:
        session.stop()


@pytest.mark.parametrize("has_links", [True, pytest.param(False, marks=pytest.mark.whole)])
def test_a_query_whose_offsets_were_overwritten_stops_before_it_writes_and_a_restart_continues(
    kafka: KafkaService,
    spark: SparkSession,
    tmp_path: Path,
    has_links: bool,  # noqa: FBT001
) -> None:
    """Fails if a local path counts as safe because its hard links are: Spark's own rename replaces the target."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(8)
    pipeline.flush()
    if has_links:
        said = run_overwritten(spark, pipeline.options)
    else:
        said = run_without_links(errno.EOPNOTSUPP, run_overwritten_in_its_own_session, pipeline.options)
    assert "another driver that uses this checkpoint has overwritten the offsets" in said
    assert not pipeline.visible()
    pipeline.run(spark)
    pipeline.require_exactly_once()
