"""The old sink on a real 0.10 broker. A reader that shares no code with the sink counts what a crash duplicates."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.live.migrate.support import FOR_OLD_BROKERS, OldPipeline
from tests.live.pipeline import create_topic
from tests.reader import committed
from twopc.integration.migrate.rehearsal.topics import OldTopic
from twopc.integration.services.jars import spark_kafka_jars
from twopc.sinks.kafka_legacy import AtLeastOnceKafkaSink
from twopc.testing.kill_loop import Moment, kill_loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from twopc.integration.services.old_kafka import LocalOldKafka

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.mark.whole
def test_a_checkpoint_failing_after_the_flush_duplicates_exactly_the_records_of_its_batch(
    old_kafka: LocalOldKafka, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = OldPipeline(old_kafka.bootstrap_servers, tmp_path)
    sink = pipeline.sink()
    pipeline.feed(100)

    def write(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        if batch_id == 1:  # Spark cannot write commits/1: a directory is in the way
            pipeline.commit_file(1).mkdir()

    with pytest.raises(StreamingQueryException, match="CONCURRENT_STREAM_LOG_UPDATE"):
        pipeline.run(spark, write, max_offsets=40)
    assert pipeline.visible() == {
        value: 1 for values in (pipeline.of_batch(0), pipeline.of_batch(1)) for value in values
    }
    pipeline.commit_file(1).rmdir()
    pipeline.run(spark, sink, max_offsets=40)
    doubled = pipeline.of_batch(1)
    assert doubled
    assert pipeline.visible() == Counter(pipeline.given) + Counter(doubled)


@pytest.mark.whole
def test_random_kills_duplicate_records_and_lose_none(
    old_kafka: LocalOldKafka, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    servers, name = old_kafka.bootstrap_servers, f"k{uuid.uuid4().hex[:10]}"
    given, output = (create_topic(servers, f"{name}-{end}", 2) for end in ("in", "out"))

    def query(frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        del checkpoint
        sink = AtLeastOnceKafkaSink(bootstrap_servers=servers, topic=output)
        return frame.select("key", "value").writeStream.foreachBatch(sink)

    outcome = kill_loop(
        lambda: committed(servers, output).elements(),
        query=query,
        source=OldTopic(servers, given),
        directory=tmp_path / "loop",
        rows=96,
        kills=2,
        moments=(Moment.AFTER, Moment.RANDOM),
        spark={**FOR_OLD_BROKERS, "spark.jars": ",".join(map(str, spark_kafka_jars()))},
    )
    add_summary(str(outcome))
    assert outcome.lost == ()
    assert len(outcome.duplicated) >= 96 // 4 // 2  # the kill after the flush duplicates a whole batch
    with pytest.raises(AssertionError, match="duplicated"):
        outcome.require_exactly_once()
