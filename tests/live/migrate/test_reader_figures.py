"""Java's consumer, and the figures of each reader: its position, the end offset that it sees, and the resulting lag.

The topic has an aborted record, a committed one and their control records: offsets 0 to 3. Then a record of an open transaction:
offset 4. The last stable offset is 4, and the end offset is 5.
"""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Partition
from kafka import KafkaConsumer, TopicPartition

from tests.live.pipeline import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

_TIMEOUT_S = 60
LAST_STABLE, END = 4, 5


class Figures(NamedTuple):
    """The figures of a reader that has read everything it may read."""

    values: list[str]
    position: int
    committed: int
    end: int


@pytest.fixture
def topic(kafka: KafkaService) -> Iterator[str]:
    topic = create_topic(kafka.bootstrap_servers, f"t{uuid.uuid4().hex[:10]}", 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(_TIMEOUT_S)
    for value, end in (
        ("aborted", producer.abort_transaction),
        ("committed", producer.commit_transaction),
        ("open", None),
    ):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(_TIMEOUT_S)
        if end is not None:
            end(_TIMEOUT_S)
    yield topic
    producer.abort_transaction(_TIMEOUT_S)


def until_read(poll: Callable[[], list[str]], last: str) -> list[str]:
    found: list[str] = []
    deadline = time.monotonic() + _TIMEOUT_S
    while last not in found and time.monotonic() < deadline:
        found += poll()
    return found + poll()


def of_java(spark: SparkSession, servers: str, topic: str, level: str | None) -> Figures:
    """Java's own KafkaConsumer, in the JVM of Spark."""
    gateway: Any = spark.sparkContext._gateway
    jvm = gateway.jvm
    facts = {"bootstrap.servers": servers, "auto.offset.reset": "earliest", "group.id": topic}
    options = jvm.java.util.HashMap({**facts, **({"isolation.level": level} if level else {})})
    text = jvm.org.apache.kafka.common.serialization.StringDeserializer
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(options, text(), text())
    with closing(consumer):
        where = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
        consumer.assign([where])
        timeout = jvm.java.time.Duration.ofMillis(1000)
        last = "committed" if level == "read_committed" else "open"
        values = until_read(lambda: [record.value() for record in consumer.poll(timeout).records(where)], last)
        consumer.commitSync()
        committed = consumer.committed(jvm.java.util.HashSet([where]))[where].offset()
        return Figures(values, consumer.position(where), committed, consumer.endOffsets([where])[where])


def of_librdkafka(_: SparkSession, servers: str, topic: str, level: str | None) -> Figures:
    facts = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    with closing(Consumer({**facts, **({"isolation.level": level} if level else {})})) as consumer:
        where = Partition(topic, 0, 0)
        consumer.assign([where])

        def poll() -> list[str]:
            message = consumer.poll(1)
            return [] if message is None else [(message.value() or b"").decode()]

        values = until_read(poll, "open" if level == "read_uncommitted" else "committed")
        (position,) = consumer.position([where])
        end = consumer.get_watermark_offsets(where, _TIMEOUT_S, cached=False)[1]
        consumer.commit(asynchronous=False)
        (committed,) = consumer.committed([where], timeout=_TIMEOUT_S)
        return Figures(values, position.offset, committed.offset, end)


def of_kafka_python(_: SparkSession, servers: str, topic: str, level: str | None) -> Figures:
    options = {"group_id": topic, **({"isolation_level": level} if level else {})}
    with closing(KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", **options)) as consumer:
        where = TopicPartition(topic, 0)
        consumer.assign([where])

        def poll() -> list[str]:
            return [record.value.decode() for record in consumer.poll(timeout_ms=1000).get(where, [])]

        values = until_read(poll, "committed" if level == "read_committed" else "open")
        consumer.commit()
        return Figures(
            values, consumer.position(where), consumer.committed(where), consumer.end_offsets([where])[where]
        )


COMMITTED, ALL = ["committed"], ["aborted", "committed", "open"]


@pytest.mark.parametrize(
    ("read", "level", "expected"),
    [
        (of_java, None, Figures(ALL, END, END, END)),
        (of_java, "read_committed", Figures(COMMITTED, LAST_STABLE, LAST_STABLE, LAST_STABLE)),
        (of_librdkafka, None, Figures(COMMITTED, LAST_STABLE, LAST_STABLE, LAST_STABLE)),
        (of_librdkafka, "read_uncommitted", Figures(ALL, END, END, END)),
        (of_kafka_python, None, Figures(ALL, END, END, END)),
        (of_kafka_python, "read_committed", Figures(COMMITTED, LAST_STABLE, LAST_STABLE, LAST_STABLE)),
    ],
)
def test_a_reader_reports_its_own_figures_correctly(
    read: Callable[..., Figures],
    level: str | None,
    expected: Figures,
    topic: str,
    kafka: KafkaService,
    spark: SparkSession,
) -> None:
    assert read(spark, kafka.bootstrap_servers, topic, level) == expected
