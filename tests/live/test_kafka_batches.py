"""Batches that a topic accepts: unlike Java's client, librdkafka never splits a batch that a broker has refused for its size."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.pipeline import create_topic
from tests.live.ways import BOTH, Way
from tests.reader import records
from twopc.errors import BadRecordError, ConfigurationError, RetriableError
from twopc.sinks.kafka.topic_settings import Unread

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
def test_the_batches_of_a_topic_named_only_by_later_rows_also_fit_it(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """Seen: each attempt failed, because the next process of the task knew nothing of what the last one had learned."""
    way = Way(kafka, monkeypatch, native=native, topic=False)
    small, smaller = picky(way, 1), picky(way, 2, {"max.message.bytes": "20000"})
    batches = [rows(300, topic=pa.array([way.topics[number]] * 300, pa.string())) for number in (0, 1, 2, 1, 0)]
    way.write(batches)
    for number, topic in enumerate([way.topics[0], small, smaller]):
        given = [one for one in batches if one.column("topic")[0].as_py() == way.topics[number]]
        assert values(way, topic) == Counter(value for one in given for value in one.column("value").to_pylist())


@BOTH
def test_a_record_that_is_too_large_for_a_topic_named_by_later_rows_is_refused_with_both_sizes(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native, topic=False)
    picky(way, 1)
    later = rows(3, size=70_000, topic=pa.array([way.topics[1]] * 3, pa.string()))
    kind, text = way.error([rows(5, topic=pa.array([way.topics[0]] * 5, pa.string())), later])
    assert kind is BadRecordError
    assert f"max.message.bytes={LIMIT}" in text
    assert "70001 bytes" in text


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


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The permission to read any topic's limit is missing."""
    refused = Unread(math.inf, "not allowed", is_refused=True)
    monkeypatch.setattr("twopc.sinks.kafka.batch_size._ask", lambda _settings, topics: dict.fromkeys(topics, refused))


@BOTH
@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("topic", [True, False])
def test_batches_are_as_small_as_those_of_the_java_client_if_reading_the_limit_is_not_allowed(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, topic: bool, native: bool
) -> None:
    """Seen: each attempt sent large batches again, because each had a new process."""
    way = Way(kafka, monkeypatch, native=native, topic=topic)
    picky(way)
    given = rows() if topic else rows(topic=pa.array([way.topics[0]] * 500, pa.string()))
    way.write([given])
    assert values(way, way.topics[0]) == Counter(given.column("value").to_pylist())


@BOTH
@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize(("size", "limit"), [(None, 10_000), (500_000, LIMIT)])
def test_a_batch_size_that_the_topic_refuses_is_named_if_reading_the_limit_is_not_allowed(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, size: int | None, limit: int, *, native: bool
) -> None:
    """Seen: a small record was blamed."""
    options = {} if size is None else {"kafka.batch.size": str(size)}
    way = Way(kafka, monkeypatch, native=native, options=options)
    picky(way, config={"max.message.bytes": str(limit)})
    given = rows()
    kind, text = way.error([given])
    assert kind is ConfigurationError
    assert f"the sink sent batches of up to {size or 16_384} bytes, but the topic NAME-0 accepts only smaller" in text
    assert f"largest row has {ROW_BYTES + 1} bytes of key and value" in text
    assert "Allow DescribeConfigs on the topic NAME-0, or set kafka.batch.size" in text
    cured = Way(kafka, monkeypatch, native=native, options={"kafka.batch.size": str(limit)})
    topic = picky(cured, config={"max.message.bytes": str(limit)})
    cured.write([given])
    assert values(cured, topic) == Counter(given.column("value").to_pylist())


@BOTH
@pytest.mark.usefixtures("unreadable")
def test_a_record_that_is_too_large_is_blamed_although_reading_the_limit_is_not_allowed(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native)
    picky(way)
    kind, text = way.error([rows(1, size=70_000)])
    assert kind is BadRecordError
    assert "this principal has no permission to read the limit" in text


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
