"""A reader of committed records, on a real broker."""

from __future__ import annotations

import statistics
import time
import uuid
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.live.pipeline import create_topic
from twopc.sinks.kafka.reader import CommittedReader

if TYPE_CHECKING:
    from tests.live.services import KafkaService


def test_a_reader_reads_immediately_after_being_idle(kafka: KafkaService) -> None:
    """Without an earlier request, most reads wait for librdkafka's timer, which fires once a second."""
    topic = create_topic(kafka.bootstrap_servers, f"idle-{uuid.uuid4().hex[:12]}")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"record", partition=0)
    assert producer.flush(30) == 0
    took_s: tuple[list[float], list[float]] = ([], [])
    for _ in range(9):
        reader = CommittedReader({"bootstrap.servers": kafka.bootstrap_servers})
        time.sleep(0.3)  # this waits for nothing: the test needs an idle reader before the first batch
        for times in took_s:  # the second read shows how busy the machine is
            began = time.monotonic()
            assert [row.value for row in reader.rows(topic, 0, 0, None, timeout_ms=30_000)] == [b"record"]
            times.append(time.monotonic() - began)
        reader.close()
    first_s, second_s = map(statistics.median, took_s)
    assert first_s < second_s + 0.4, took_s
