"""A producer looks up partitions and topics that are newer than itself before it refuses a row, like Java's producer."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.live.broker_changes import add_partitions
from tests.live.pipeline import create_topic
from tests.live.ways import BOTH, Way
from tests.reader import records
from twopc.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.live.services import KafkaService

BEFORE, AFTER = 4, 6


def rows(partitions: Sequence[int | None], topics: Sequence[str] | None = None) -> pa.RecordBatch:
    columns = {
        "value": pa.array([b"%d" % number for number in range(len(partitions))], pa.binary()),
        "partition": pa.array(partitions, pa.int32()),
    }
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.record_batch(columns)


@BOTH
@pytest.mark.parametrize("chosen", [False, True], ids=["one topic", "topics of rows"])
@pytest.mark.parametrize("guarantee", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_a_row_goes_to_a_partition_added_after_the_producer_was_created(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, guarantee: str, *, chosen: bool, native: bool
) -> None:
    """Caught mutation: the producer never looks up a partition that it did not know when it was made ready."""
    way = Way(kafka, monkeypatch, native=native, topic=not chosen, guarantee=guarantee)
    topic = way.topics[0]
    partitions = [None, 0, AFTER - 1, 1, BEFORE, AFTER - 1]
    writer = way.writer()
    writer.write(rows([0], [topic] if chosen else None))
    add_partitions(way.servers, topic, AFTER)
    writer.write(rows(partitions, [topic] * len(partitions) if chosen else None))
    writer.pre_commit()
    writer.hand_over()
    writer.close()
    found = Counter(message.partition() for message in records(way.servers, topic, isolation="read_uncommitted"))
    assert found.total() == 1 + len(partitions)
    assert found[AFTER - 1] >= 2
    assert found[BEFORE] >= 1


@BOTH
def test_a_row_for_a_missing_partition_is_rejected_and_the_error_gives_both_numbers(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native)
    kind, text = way.error([rows([0]), rows([1, 17])])
    assert kind is BadRecordError
    assert "the topic has no such partition" in text
    assert f"NAME-0 has {BEFORE} partitions" in text


@BOTH
def test_a_row_goes_to_a_topic_created_after_its_first_lookup(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    options = {"kafka.topic.metadata.propagation.max.ms": "100", "kafka.allow.auto.create.topics": "false"}
    way = Way(kafka, monkeypatch, native=native, options=options)
    topic = f"{way.name}-later"
    object.__setattr__(way.sink, "topic", topic)
    writer = way.writer()
    writer._begun.producer.list_topics(topic, timeout=10)
    time.sleep(0.3)  # by then, librdkafka considers the topic absent
    create_topic(way.servers, topic)
    writer.write(rows([None, 1, 2]))
    writer.pre_commit()
    writer.hand_over()
    writer.close()
    assert len(records(way.servers, topic, isolation="read_uncommitted")) == 3
