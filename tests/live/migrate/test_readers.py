"""The rows of an aborted transaction that each kind of reader sees: the table of readers in docs/migration.md."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, TopicPartition

from tests.live.pipeline import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

_TIMEOUT_S = 60
ALL, COMMITTED = ["aborted", "committed"], ["committed"]


@pytest.fixture
def topic(kafka: KafkaService) -> str:
    """One aborted record, one committed record."""
    topic = create_topic(kafka.bootstrap_servers, f"t{uuid.uuid4().hex[:10]}", 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(_TIMEOUT_S)
    for value, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(_TIMEOUT_S)
        end(_TIMEOUT_S)
    return topic


@pytest.mark.parametrize(("options", "seen"), [({}, COMMITTED), ({"isolation.level": "read_uncommitted"}, ALL)])
def test_librdkafka_reads_committed_records_by_default(
    topic: str, kafka: KafkaService, options: dict[str, Any], seen: list[str]
) -> None:
    facts = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        **options,
    }
    consumer = Consumer({**facts, "enable.partition.eof": True, "log_level": 0})
    found = []
    with closing(consumer):
        consumer.subscribe([topic])
        while (message := consumer.poll(_TIMEOUT_S)) is not None and message.error() is None:
            found.append((message.value() or b"").decode())
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._PARTITION_EOF
    assert found == seen


@pytest.mark.parametrize(("options", "seen"), [({}, ALL), ({"isolation_level": "read_committed"}, COMMITTED)])
def test_kafka_python_reads_all_records_by_default(
    topic: str, kafka: KafkaService, options: dict[str, Any], seen: list[str]
) -> None:
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest", **options)
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0)])
        found: list[str] = []
        while "committed" not in found:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [record.value.decode() for record in records]
    assert found == seen


@pytest.mark.parametrize(("options", "seen"), [({}, ALL), ({"kafka.isolation.level": "read_committed"}, COMMITTED)])
def test_spark_reads_all_records_by_default(
    topic: str, kafka: KafkaService, spark: SparkSession, options: dict[str, str], seen: list[str]
) -> None:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    rows = (
        reader.option("subscribe", topic)
        .options(**options)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
        .collect()
    )
    assert sorted(row.value for row in rows) == seen
