"""Batches that a topic accepts: unlike Java's client, librdkafka never splits a batch that a broker has refused for its size."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.pipeline import create_topic
from tests.live.ways import BOTH, Way
from tests.reader import records
from twopc.errors import BadRecordError, RetriableError

if TYPE_CHECKING:
    from tests.live.services import KafkaService

ROW_BYTES = 1_200
LIMIT = 65_536
SMALL = {"max.message.bytes": str(LIMIT)}


def rows(count: int = 500, size: int = ROW_BYTES, **columns: Any) -> pa.RecordBatch:
    """Rows that go to one partition, and cannot be compressed."""
    key = pa.array([b"k"] * count, pa.binary())
    value = pa.array([os.urandom(size) for _ in range(count)], pa.binary())
    return pa.record_batch({"key": key, "value": value, **columns})


def picky(way: Way, number: int = 0, config: dict[str, str] = SMALL) -> str:
    """Make one of the topics accept only batches smaller than librdkafka's default."""
    way.change(way.topics[number], config)
    return way.topics[number]


def values(way: Way, *topics: str) -> Counter[bytes | None]:
    return Counter(message.value() for topic in topics for message in records(way.servers, topic))


@BOTH
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_no_batch_is_larger_than_its_topic_accepts(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, codec: str, *, native: bool
) -> None:
    """Caught mutation: ``batch.size`` is the same for all topics. The broker may have to undo the compression, too."""
    way = Way(kafka, monkeypatch, native=native, options={"kafka.compression.type": codec})
    topic = picky(way, config=SMALL | {"compression.type": "uncompressed"})
    given = rows()
    way.write([given])
    assert values(way, topic) == Counter(given.column("value").to_pylist())


@BOTH
def test_no_batch_is_larger_than_its_topic_accepts_even_if_the_rows_choose_the_topics(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native, topic=False)
    picky(way, 1)
    chosen = pa.array([way.topics[number % 2] for number in range(500)], pa.string())
    given = rows(topic=chosen)
    way.write([given])
    assert values(way, *way.topics) == Counter(given.column("value").to_pylist())


@BOTH
def test_the_limit_of_a_topic_named_only_by_later_rows_makes_the_next_attempt_send_smaller_batches(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native, topic=False)
    topic = picky(way, 1)
    given = [rows(topic=pa.array([way.topics[number]] * 500, pa.string())) for number in (0, 1)]
    kind, text = way.error(given)
    assert kind is RetriableError
    assert f"NAME-1 accepts batches of at most {LIMIT} bytes (max.message.bytes)" in text
    way.write(given)
    assert values(way, topic) == Counter(given[1].column("value").to_pylist())


@BOTH
def test_a_limit_lowered_while_the_query_runs_makes_the_next_attempt_send_smaller_batches(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """Caught mutations: a learned limit is never updated; the record is blamed."""
    way = Way(kafka, monkeypatch, native=native)
    way.write([rows(10)])
    topic = picky(way)
    given = rows()
    kind, text = way.error([given])
    assert kind is RetriableError
    assert f"NAME-0 accepts batches of at most {LIMIT} bytes (max.message.bytes)" in text
    way.write([given])
    assert values(way, topic) >= Counter(given.column("value").to_pylist())


@BOTH
def test_a_refusal_makes_the_next_attempt_send_smaller_batches_if_reading_the_limit_is_not_allowed(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    monkeypatch.setattr("twopc.sinks.kafka.batch_size._ask", lambda _settings, topics: dict.fromkeys(topics))
    way = Way(kafka, monkeypatch, native=native)
    topic = picky(way)
    given = rows()
    kind, text = way.error([given])
    assert kind is RetriableError
    assert "allow DescribeConfigs on the topic NAME-0, or set kafka.batch.size" in text
    way.write([given])
    assert values(way, topic) == Counter(given.column("value").to_pylist())


@BOTH
def test_a_record_that_really_is_too_large_is_refused_and_the_error_gives_both_sizes(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native)
    picky(way)
    kind, text = way.error([rows(5), rows(1, size=70_000)])
    assert kind is BadRecordError
    assert f"max.message.bytes={LIMIT}" in text
    assert "70001 bytes" in text


def letter(size: int) -> pa.RecordBatch:
    """A dead letter of this size, which cannot be compressed."""
    header = {"key": "twopc.cause", "value": os.urandom(1_000)}
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.record_batch({"value": [os.urandom(size - 1_011)], "headers": pa.array([[header]], kind)})


@BOTH
@pytest.mark.parametrize("limited", ["client", "topic"])
def test_the_largest_dead_letter_fits_its_client_and_its_topic(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, limited: str, *, native: bool
) -> None:
    options = {"kafka.message.max.bytes": str(LIMIT)} if limited == "client" else {}
    way = Way(kafka, monkeypatch, native=native, options=options)
    topic = picky(way) if limited == "topic" else way.topics[0]
    most = way.writer().letter_max_bytes()
    assert LIMIT - 200 < most < LIMIT
    given = letter(most)
    way.write([given])
    assert values(way, topic) == Counter(given.column("value").to_pylist())


@BOTH
def test_a_dead_letter_fits_a_topic_whose_limit_was_lowered_while_the_query_runs(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native)
    before = way.writer().letter_max_bytes()
    picky(way)
    kind, _ = way.error([letter(before)])
    assert kind is RetriableError
    way.write([letter(way.writer().letter_max_bytes())])


@BOTH
def test_batches_also_fit_their_topic_without_transactions(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native, guarantee="AT_LEAST_ONCE")
    topic = create_topic(way.servers, f"{way.name}-small", config=SMALL)
    object.__setattr__(way.sink, "topic", topic)
    given = rows()
    writer = way.writer()
    writer.write(given)
    writer.pre_commit()
    writer.close()
    assert values(way, topic) == Counter(given.column("value").to_pylist())
