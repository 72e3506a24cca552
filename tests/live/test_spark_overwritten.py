"""A batch whose offsets another driver has overwritten is noticed, on a store that allows it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.live.file_query import Query, kafka_sink, values
from tests.live.pipeline import create_topic
from tests.live.spark_support import spark
from twopc.errors import FatalError
from twopc.files import LocalFiles
from twopc.integration.spark import checkpoint
from twopc.integration.spark.overwritten import require_not_overwritten

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

__all__ = ["spark"]


def test_a_batch_is_written_with_the_offsets_in_its_checkpoint_or_the_query_stops(
    spark: SparkSession, kafka: KafkaService, tmp_path: Path
) -> None:
    """A file and a topic as the sources. Fails if only the checkpoint is read."""
    topic = create_topic(kafka.bootstrap_servers, f"p{uuid.uuid4().hex[:10]}", 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"from the topic")
    producer.flush()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"value": "from the file"}\n')
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    rows = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    rows = rows.selectExpr("CAST(value AS STRING)").union(
        spark.readStream.schema("value STRING").json(str(tmp_path / "in"))
    )
    files = LocalFiles(tmp_path / "checkpoint")
    found: list[str] = []

    def batch(frame: DataFrame, number: int) -> None:
        query_id = checkpoint.query_id(files)
        require_not_overwritten(frame.sparkSession, files, query_id, number)
        offsets = tmp_path / f"checkpoint/offsets/{number}"
        written = offsets.read_text()
        for ours, theirs in (('{"logOffset":0}', '{"logOffset":1}'), (f'"{topic}"', '"other"')):
            assert ours in written
            offsets.write_text(written.replace(ours, theirs))
            with pytest.raises(
                FatalError, match="another driver that uses this checkpoint has overwritten the offsets"
            ):
                require_not_overwritten(frame.sparkSession, files, query_id, number)
            found.append(ours)
        offsets.write_text(written)

    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert len(found) == 2


def test_a_query_whose_offsets_were_overwritten_stops_before_it_writes_and_a_restart_continues(
    spark: SparkSession, kafka: KafkaService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if ``exactly_once`` does not ask a store without an atomic rename.

    Here, a local store takes the place of such a store.
    """
    monkeypatch.setattr(LocalFiles, "is_atomic", False)

    def overwriting(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def batch(frame: DataFrame, number: int) -> None:
            offsets = tmp_path / f"checkpoint/offsets/{number}"
            written = offsets.read_text()
            offsets.write_text(written.replace('{"logOffset":0}', '{"logOffset":1}'))
            try:
                each(frame, number)
            finally:
                offsets.write_text(written)

        return batch

    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), function=overwriting)
    query.feed({"id": "a", "n": 1})
    assert "another driver that uses this checkpoint has overwritten the offsets" in query.refused()
    assert not values(sink)
    query.function = lambda each: each
    query.run()
    query.feed({"id": "a", "n": 2})
    query.run()
    assert values(sink) == {"1": 1, "2": 1}
