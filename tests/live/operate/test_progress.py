"""A query's progress as a consumer group: what a lag tool sees."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.live import spark_query
from tests.live.spark_support import Pipeline, finish, spark, wait_until
from twopc.errors import ConfigurationError
from twopc.integration.operate import SourceProgress, progress
from twopc.integration.operate.progress import kafka_offsets
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark.interceptors import InterceptedBatch

__all__ = ["spark"]


def lagless(pipeline: Pipeline, group: str) -> int:
    """The number of records that the group has consumed."""
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap_servers, "log_level": 0})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    return sum(max(0, where.offset) for where in found.topic_partitions)


def run(
    spark: SparkSession, pipeline: Pipeline, group: str, *, servers: str | None = None, is_read_twice: bool = False
) -> None:
    pipeline.flush()
    options = pipeline.options
    sink = KafkaSink(
        name=options.name, topic=options.topic, bootstrap_servers=options.bootstrap_servers, timeout_ms=20_000
    )
    shown = SourceProgress(
        bootstrap_servers=servers or pipeline.bootstrap_servers,
        group=group,
        options={"kafka.log_level": 0} if servers else {},
    )
    each = exactly_once(sink, interceptors=[shown])
    rows = spark_query.source(spark, options).select("key", "value")
    if is_read_twice:
        rows = rows.union(spark_query.source(spark, options).select("key", "value").where("false"))
    writer = rows.writeStream.foreachBatch(each)
    query = writer.option("checkpointLocation", options.checkpoint).trigger(availableNow=True).start()
    finish(query, each)


def test_a_consumer_group_shows_the_querys_progress_and_its_offsets_are_never_read(
    spark: SparkSession, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=30)
    group = f"{pipeline.options.name}-progress"
    pipeline.feed(100)
    run(spark, pipeline, group)
    wait_until(lambda: lagless(pipeline, group) == 100, "the group has no lag")
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap_servers, "log_level": 0})
    admin.delete_consumer_groups([group])[group].result()
    pipeline.feed(20)
    run(spark, pipeline, group)  # continues from the checkpoint
    wait_until(lambda: lagless(pipeline, group) == 120, "the group has no lag")
    pipeline.require_exactly_once()


def test_the_query_continues_if_offsets_cannot_be_committed_to_the_group(
    spark: SparkSession, kafka: KafkaService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(20)
    with caplog.at_level(logging.WARNING):
        run(spark, pipeline, "g", servers="127.0.0.1:1")
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_query_that_reads_a_topic_twice_reports_its_progress(
    spark: SparkSession, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    group = f"{pipeline.options.name}-progress"
    pipeline.feed(20)
    run(spark, pipeline, group, is_read_twice=True)
    wait_until(lambda: lagless(pipeline, group) == 20, "the group has no lag")
    pipeline.require_exactly_once()


@pytest.mark.parametrize(
    "error", [OSError("no route"), ValueError("Duplicate partitions"), RuntimeError("from the JVM")]
)
def test_an_error_does_not_fail_a_batch_that_is_already_visible(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(progress, "open_files", fail)
    written: list[object] = []
    batch = SimpleNamespace(frames="frames", batch_id=7, context=None, checkpoint_location="")
    source = SourceProgress(bootstrap_servers="127.0.0.1:1", group="g", options={"kafka.log_level": 0})
    source.intercept(cast("InterceptedBatch", batch), written.append)
    assert written == ["frames"]
    said = (
        "the consumer group g does not show the progress of batch 7. The next batch will update it. No data is at risk"
    )
    assert f"{said}. Cause: {error}" in caplog.text


def test_a_failed_request_does_not_hold_back_the_next_batchs_offsets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[int] = []

    class Admin:
        def alter_consumer_group_offsets(
            self, requests: list[ConsumerGroupTopicPartitions]
        ) -> dict[str, Future[object]]:
            sent.extend(where.offset for where in requests[0].topic_partitions or ())
            failed: Future[object] = Future()
            failed.set_exception(ValueError("no response"))
            return {"g": failed}

    monkeypatch.setattr(progress, "open_files", lambda *_: None)
    monkeypatch.setattr(progress, "offsets_by_source", lambda _, batch_id: {"0": f'{{"in":{{"0":{batch_id}}}}}'})
    source = SourceProgress(bootstrap_servers="127.0.0.1:1", group="g", options={"kafka.log_level": 0})
    monkeypatch.setattr(source, "_admin", Admin())
    for batch_id in (7, 8):
        batch = SimpleNamespace(frames="frames", batch_id=batch_id, context=None, checkpoint_location="")
        source.intercept(cast("InterceptedBatch", batch), lambda _: None)
    assert sent == [7, 8]
    assert "does not show the progress of the batch before batch 8" in caplog.text


def test_an_error_of_the_batch_itself_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("of the user's function")

    batch = SimpleNamespace(frames="frames", batch_id=7)
    source = SourceProgress(bootstrap_servers="127.0.0.1:1", group="g", options={"kafka.log_level": 0})
    with pytest.raises(ValueError, match="of the user's function"):
        source.intercept(cast("InterceptedBatch", batch), fail)
    assert not caplog.records


def test_the_progress_of_a_partition_read_twice_is_that_of_its_slower_reader() -> None:
    given = {"0": '{"in":{"0":5,"1":7}}', "1": '{"in":{"0":6,"1":3},"other":{"0":1}}'}
    found = [(where.topic, where.partition, where.offset) for where in kafka_offsets(given)]
    assert found == [("in", 0, 5), ("in", 1, 3), ("other", 0, 1)]


def test_only_offsets_of_kafka_sources_are_used() -> None:
    given = {"0": '{"in":{"0":5,"1":7}}', "1": '{"logOffset":3}', "orders": '{"o":{"2":1}}', "2": "17", "3": "no json"}
    found = [(where.topic, where.partition, where.offset) for where in kafka_offsets(given)]
    assert found == [("in", 0, 5), ("in", 1, 7), ("o", 2, 1)]


def test_a_group_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the name is empty"):
        SourceProgress(bootstrap_servers="b:1", group="")
