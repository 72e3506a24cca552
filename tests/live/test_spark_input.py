"""Input errors and user errors are named, nothing is written, and a restart after the fix loses nothing."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.errors import IllegalArgumentException

from tests.live import spark_query
from tests.live.broker_changes import alter_topic, create_acls
from tests.live.pipeline import create_topic
from tests.live.services import chosen
from tests.live.spark_support import BY_TASKS, Pipeline, spark, wait_until
from tests.reader import records
from twopc import CheckpointConfig
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.services.ports import free_ports
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

#: With these settings, the client waits only a tenth of a second for an unknown topic to appear.
IMPATIENT = {"options": {"kafka.topic.metadata.propagation.max.ms": 100}}


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the pipeline select these expressions instead of its own plan."""

    def set_plan(*expressions: str) -> None:
        def planned(frame: DataFrame, _: spark_query.Options) -> DataFrame:
            return frame.selectExpr(*expressions)

        monkeypatch.setattr(spark_query, "planned", planned)

    return set_plan


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expressions", "named"),
    [
        (("key", "value AS wert"), "no column 'value'"),
        (("1 AS value",), "column 'value' is int, but it must be string or binary"),
        (("value", "1 AS key"), "column 'key' is int, but it must be string or binary"),
        (("value", "1 AS topic"), "column 'topic' is int, but it must be string"),
        (("value", "'1' AS partition"), "column 'partition' is string, but it must be int"),
        (("value", "1L AS timestamp"), "column 'timestamp' is bigint, but it must be timestamp"),
        (("value", "array('x') AS headers"), "column 'headers' is array<string>, but it must be array<struct<"),
    ],
)
def test_a_missing_or_wrong_column_is_reported_and_nothing_is_written(
    expressions: tuple[str, ...],
    named: str,
    kafka: KafkaService,
    tmp_path: Path,
    spark: SparkSession,
    plan_of: Callable[..., None],
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(5)
    plan_of(*expressions)
    message = pipeline.fail(spark)
    assert "SchemaError" in message
    assert named in message
    assert not pipeline.visible()


def test_a_missing_topic_causes_an_error_that_identifies_the_sink(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, topic=None)
    pipeline.feed(5)
    message = pipeline.fail(spark)
    assert "SchemaError" in message
    assert f"sink {pipeline.options.name}: the sink has no topic" in message


def test_every_column_is_written(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, plan_of: Callable[..., None]
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, topic=None)
    topic = create_topic(kafka.bootstrap_servers, f"{pipeline.options.name}-other", 3)
    pipeline.give(b"text", key=b"k")
    pipeline.give(None, key=b"tombstone")
    plan_of(
        "key",
        "value",
        f"'{topic}' AS topic",
        "2 AS partition",
        "timestamp'2020-02-03 04:05:06.789Z' AS timestamp",
        "array(named_struct('key', 'h', 'value', cast('1' AS binary)), named_struct('key', 'h', 'value', NULL)) AS headers",
    )
    pipeline.run(spark)
    found = records(kafka.bootstrap_servers, topic)
    assert {(message.key(), message.value()) for message in found} == {(b"k", b"text"), (b"tombstone", None)}
    at = dt.datetime(2020, 2, 3, 4, 5, 6, 789_000, tzinfo=dt.timezone.utc)
    for message in found:
        assert message.partition() == 2
        assert message.timestamp()[1] == round(at.timestamp() * 1000)
        assert message.headers() == [("h", b"1"), ("h", None)]


def test_keys_go_to_the_same_partitions_as_with_sparks_own_sink(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, plan_of: Callable[..., None]
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, topic=None)
    ours, theirs = (
        create_topic(kafka.bootstrap_servers, f"{pipeline.options.name}-{n}", 7) for n in ("ours", "theirs")
    )
    pipeline.give(b"one row that becomes 200")
    columns = "explode(transform(sequence(1, 200), n -> concat('key-', n * n))) AS key"
    plan_of(columns, "value", f"'{ours}' AS topic")
    pipeline.run(spark)
    writer = spark.range(1).selectExpr(columns, "'x' AS value").write.format("kafka")
    writer.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("topic", theirs).save()
    placed = [{m.key(): m.partition() for m in records(kafka.bootstrap_servers, topic)} for topic in (ours, theirs)]
    assert len(placed[0]) == 200
    assert placed[0] == placed[1]


def test_a_null_topic_counts_as_a_bad_record_and_nothing_is_written(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, plan_of: Callable[..., None]
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, topic=None)
    topic = create_topic(kafka.bootstrap_servers, f"{pipeline.options.name}-other")
    pipeline.feed(20)
    plan_of("key", "value", f"if(value LIKE '%-0000007', NULL, '{topic}') AS topic")
    message = pipeline.fail(spark)
    assert "BadRecordError" in message
    assert "'topic' column is null" in message
    assert not records(kafka.bootstrap_servers, topic)


# -- refused, fixed, restarted -----------------------------------------------------------------------------------------


def test_a_record_above_the_topics_limit_stops_the_query_and_nothing_is_lost_after_the_fix(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    limit_records(pipeline, 2_000)
    pipeline.feed(20)
    pipeline.give(b"x" * 5_000, key=b"k1")
    pipeline.given["x" * 5_000] += 1
    message = pipeline.fail(spark)
    assert "BadRecordError" in message
    assert "max.message.bytes" in message
    assert not pipeline.visible()
    limit_records(pipeline, 100_000)
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_an_unknown_topic_stops_the_query_and_nothing_is_lost_once_it_is_created(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, topic="none", sink=IMPATIENT)
    pipeline.change(topic=f"{pipeline.options.name}-later")
    pipeline.feed(20)
    message = pipeline.fail(spark)
    assert "BadRecordError" in message
    assert "does not exist: create it" in message
    create_topic(kafka.bootstrap_servers, str(pipeline.options.topic))
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_an_unreachable_broker_is_reported_and_nothing_is_lost_once_it_is_back(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(20)
    [port] = free_ports(1)
    message = pipeline.fail(spark, sink={"bootstrap_servers": f"127.0.0.1:{port}", "timeout_ms": 1_000})
    assert f"127.0.0.1:{port}" in message
    assert "bootstrap_servers" in message
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_a_denied_transactional_id_is_reported_with_the_missing_rights(tmp_path: Path, spark: SparkSession) -> None:
    if chosen() != "local":
        pytest.skip("this test needs a broker with special properties")
    with LocalKafka(listeners={"SASL": "SASL_PLAINTEXT"}, properties=WITH_RIGHTS) as broker:
        pipeline = Pipeline(broker.bootstrap_servers, tmp_path)
        pipeline.feed(10)
        name = pipeline.options.name
        allow(broker, ResourceType.TOPIC, "*")
        allow(broker, ResourceType.BROKER, "kafka-cluster")
        message = pipeline.fail(spark, sink=as_app(broker))
        assert "ConfigurationError" in message
        assert f"transactional ids with the prefix '{name}.'" in message
        allow(broker, ResourceType.TRANSACTIONAL_ID, f"{name}.")
        pipeline.run(spark, sink=as_app(broker))
        pipeline.require_exactly_once()


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_checkpoint_of_another_query_is_refused_and_nothing_is_written(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    other = Pipeline(kafka.bootstrap_servers, tmp_path / "other")
    other.feed(5)
    other.run(spark)
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(5)
    for location, named in (
        (other.options.checkpoint, "belongs to query"),
        (str(tmp_path / "none"), "is not the checkpoint"),
    ):
        message = pipeline.fail(spark, settings={"checkpoint_location": location})
        assert "ConfigurationError" in message
        assert named in message
    assert not pipeline.visible()
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_workers_without_the_toolkit_raise_an_error_that_says_how_to_install_it(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.which("python3", path="/usr/bin")
    if other is None or os.path.realpath(other) == os.path.realpath(sys.executable):
        pytest.skip("there is no other Python in /usr/bin")
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, settings=BY_TASKS)
    pipeline.feed(5)
    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", other)
        message = pipeline.fail(spark)
    assert "ConfigurationError" in message
    assert "PYSPARK_PYTHON" in message
    assert sys.executable in message
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_asynchronous_progress_tracking_is_rejected_and_the_query_runs_without_it(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """Spark refuses this for ``foreachBatch``, unless an undocumented option overrides the check."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(5)
    pipeline.flush()
    options = pipeline.options
    each = exactly_once(
        KafkaSink(name=options.name, topic=options.topic, bootstrap_servers=kafka.bootstrap_servers),
        checkpoint_location=options.checkpoint,
    )
    writer = spark_query.source(spark, options).select("key", "value").writeStream.foreachBatch(each)
    writer = writer.option("checkpointLocation", options.checkpoint).option("asyncProgressTrackingEnabled", "true")
    writer = writer.option("asyncProgressTrackingCheckpointIntervalMs", "600000")
    writer = writer.trigger(processingTime="0 seconds")
    with pytest.raises(IllegalArgumentException, match="does not support async progress tracking"):
        writer.start()
    query = writer.option("_asyncProgressTrackingOverrideSinkSupportCheck", "true").start()
    try:
        while query.isActive:  # Spark writes the first batch's offsets, and the next ones after ten minutes
            pipeline.feed(1)
            pipeline.flush()
            time.sleep(0.5)
    finally:
        query.stop()
        each.close()
    assert "The query sets .option('asyncProgressTrackingEnabled', …)" in str(query.exception())
    pipeline.run(spark)
    pipeline.require_exactly_once()


# -- time --------------------------------------------------------------------------------------------------------------

SLOW = "concat(value, java_method('java.lang.Thread', 'sleep', 600000L)) AS value"


@pytest.mark.parametrize("limit_ms", [1, 2_000])  # before Spark has a job to cancel, and while the job runs
def test_a_batch_over_its_timeout_is_canceled_and_a_restart_loses_nothing(
    limit_ms: int, kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(8)
    with monkeypatch.context() as patch:
        patch.setattr(spark_query, "planned", lambda frame, _: frame.selectExpr("key", SLOW))
        message = pipeline.fail(spark, settings={"checkpoints": CheckpointConfig(timeout_ms=limit_ms)})
    assert "CheckpointExpiredError" in message
    assert "CheckpointConfig.timeout_ms" in message
    assert "maxOffsetsPerTrigger" in message
    assert not pipeline.visible()
    pipeline.run(spark)
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_an_undecided_batch_that_always_times_out_can_be_replanned_as_the_message_instructs(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, plan_of: Callable[..., None]
) -> None:
    """Smaller batches alone do not help: Spark replays the offsets that it has planned. Each row is written once."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(4)
    pipeline.run(spark)
    pipeline.feed(8, keys=1)  # all rows go to one task
    plan_of("key", "concat(value, left(java_method('java.lang.Thread', 'sleep', 2000L), 0)) AS value")
    limit = {"checkpoints": CheckpointConfig(timeout_ms=8_000)}
    pipeline.fail(spark, settings=limit)
    message = pipeline.fail(spark, settings=limit, max_offsets=1)
    assert "Smaller batches alone do not help" in message
    found = re.search(r"delete (\S+) \(the newest file in that directory\) and (\S+) if it exists", message)
    assert found is not None, message
    newest = max(Path(found[1]).parent.glob("[0-9]*"), key=lambda file: int(file.name))
    assert found[1] == str(newest)
    newest.unlink()
    Path(found[2]).unlink(missing_ok=True)
    pipeline.run(spark, settings=limit, max_offsets=1)
    pipeline.require_exactly_once()


def test_a_query_can_be_stopped_in_the_middle_of_a_batch(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(8)
    with monkeypatch.context() as patch:
        patch.setattr(spark_query, "planned", lambda frame, _: frame.selectExpr("key", SLOW))
        query, each = pipeline.start(spark)
        wait_until(lambda: bool(spark.sparkContext.statusTracker().getActiveJobsIds()), "the batch's job runs")
        query.stop()
        each.close()
    assert not query.isActive
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), "no job runs")
    pipeline.run(spark)
    pipeline.require_exactly_once()


# -- helpers -----------------------------------------------------------------------------------------------------------

WITH_RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_app="secret";'
    ),
}


def as_app(broker: LocalKafka) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.address("SASL"),
        "options": {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "app",
            "kafka.sasl.password": "secret",
        },
    }


def allow(broker: LocalKafka, kind: ResourceType, name: str) -> None:
    """Allow every operation on a resource; a name that ends with a dot is a prefix."""
    pattern = ResourcePatternType.PREFIXED if name.endswith(".") else ResourcePatternType.LITERAL
    rule = AclBinding(kind, name, pattern, "User:app", "*", AclOperation.ALL, AclPermissionType.ALLOW)
    create_acls(broker.bootstrap_servers, [rule])


def limit_records(pipeline: Pipeline, size: int) -> None:
    alter_topic(pipeline.bootstrap_servers, str(pipeline.options.topic), {"max.message.bytes": str(size)})
