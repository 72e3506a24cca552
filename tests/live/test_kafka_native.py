"""Rows that go to librdkafka without Python objects: the same records and the same errors as with ``produce()``."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.arrow_rows import HEADERS, KINDS, sliced, texts
from tests.live.pipeline import create_topic
from tests.live.services import KafkaService
from tests.live.ways import BOTH, Way
from tests.reader import records
from twopc.errors import BadRecordError, RetriableError
from twopc.sinks.kafka import producer_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.integration.services.kafka import LocalKafka

SEED = int(os.environ.get("TWOPC_SEED", "0")) or random.randrange(1, 10**9)
ROWS = 3_000


def batches_of(chance: random.Random, topics: Sequence[str], *, details: bool) -> list[pa.RecordBatch]:
    """Random rows, in batches of random sizes and types; the same for the same seed, except the topics' names."""
    found, left = [], ROWS
    while left > 0:
        count = min(left, chance.choice([0, 1, 2, 10, 500, 2_000]))
        left -= max(1, count)
        columns: dict[str, Any] = {}
        for name, nulls in (("value", 0.1), ("key", 0.2)):
            array = KINDS[chance.choice(list(KINDS))](texts(chance, count, nulls=nulls))
            columns[name] = sliced(chance, array) if chance.random() < 0.5 else array
        if details:
            columns["topic"] = pa.array([topics[chance.randrange(3)] for _ in range(count)], pa.string())
            columns["partition"] = pa.array([chance.choice([None, None, 0, 1, 2, 3]) for _ in range(count)], pa.int32())
            stamps = [chance.choice([None, 1, chance.randrange(10**11)]) for _ in range(count)]
            columns["timestamp"] = pa.array(stamps, pa.int64())
            columns["headers"] = pa.array([headers(chance) for _ in range(count)], HEADERS)
        found.append(pa.record_batch(columns))
    return found


def headers(chance: random.Random) -> list[dict[str, Any]] | None:
    if chance.random() < 0.4:
        return None
    names = chance.choices(["a", "", "naïve", "long" * 50], k=chance.randrange(4))
    values = texts(chance, len(names), nulls=0.3)
    return [{"key": name, "value": value} for name, value in zip(names, values, strict=True)]


@pytest.mark.parametrize("details", [False, True], ids=["plain", "details"])
def test_both_producers_write_the_same_records_to_the_same_partitions(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, add_summary: Callable[[str], None], *, details: bool
) -> None:
    """Caught mutations: an empty value is null; details are omitted; the partitioner gets no key; a header's name is cut."""
    add_summary(f"seed {SEED}")
    seen, handles = [], []
    for native in (True, False):
        way = Way(kafka, monkeypatch, native=native, topic=not details)
        handle = way.write(batches_of(random.Random(SEED), way.topics, details=details))
        handles.append([name.replace(way.name, "NAME") for name in handle.partitions])
        seen.append(way.found())
        assert {(topic, partition) for topic, ordered, _ in seen[-1] for partition in ordered} <= {
            (way.topics.index(name), int(number))
            for name, _, number in (entry.rpartition(":") for entry in handle.topic_partitions())
            if name in way.topics
        }
    assert seen[0] == seen[1]
    assert handles[0] == handles[1]


BAD: dict[str, dict[str, Any]] = {
    "oversize": {"value": b"x" * 2_000_000},
    "no such partition": {"partition": 17},
    "the broker refuses it": {"value": b"y" * 1_300_000},
    "no such topic": {"topic": "absent"},
    "a topic that cannot be": {"topic": "no topic!"},
    "null topic": {"topic": None},
    "a header without a key": {"headers": [{"key": None, "value": b""}]},
    "a header that would be cut": {"headers": [{"key": "a\0b", "value": b""}]},
    "a time that means now": {"timestamp": 0},
    "a time that the broker refuses": {"timestamp": 2**52},
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_record_among_good_ones_raises_the_same_error_in_both_producers(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """Caught mutations: ``err`` or a delivery report's error is not checked; rows that would be altered are not refused."""
    errors = []
    for native in (True, False):
        options = {"kafka.message.max.bytes": "1500000", "kafka.topic.metadata.propagation.max.ms": "1000"}
        way = Way(kafka, monkeypatch, native=native, topic=False, options=options)
        way.topics[0] = create_topic(way.servers, f"{way.name}-picky", config={"max.message.bytes": "1000000"})
        good: dict[str, Any] = {"value": b"v", "key": b"k", "topic": way.topics[0], "partition": 1}
        rows = [good | {"headers": None, "timestamp": None} for _ in range(25_000)]
        rows[12_345].update(BAD[bad])
        types = {
            "value": pa.binary(),
            "key": pa.binary(),
            "topic": pa.string(),
            "partition": pa.int32(),
            "headers": HEADERS,
            "timestamp": pa.int64(),
        }
        batch = pa.record_batch({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()})
        if bad == "oversize":
            batch = batch.select(["value", "key", "topic"])  # an oversized row is written without the other columns
        errors.append(way.error([batch]))
    if "topic" in bad:  # found when a row is enqueued, or later, when the broker responds
        assert all(str(BAD[bad]["topic"] or "null") in message for _, message in errors), errors
    elif "partition" in bad:  # likewise: the client may already know the partitions, or learn them later
        assert all("the topic has no such partition: check the 'partition' column" in text for _, text in errors), (
            errors
        )
    else:
        assert errors[0] == errors[1]
    assert [kind for kind, _ in errors] == [BadRecordError] * 2, errors


@BOTH
def test_brokers_accept_the_largest_row_that_sparks_own_sink_writes(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """Caught mutation: librdkafka's own limit holds, which is 48 kB lower than the limit of the Java client."""
    way = Way(kafka, monkeypatch, native=native)
    largest = os.urandom(1_048_494)
    way.write([pa.record_batch({"value": pa.array([b"small", largest, b"small"], pa.binary())})])
    assert Counter(message.value() for message in records(way.servers, way.topics[0])) == {b"small": 2, largest: 1}


@BOTH
def test_a_small_queue_bounds_the_tasks_memory_and_loses_nothing(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """Caught mutations: after a full queue, the other rows are skipped, or the first row is sent again."""
    way = Way(kafka, monkeypatch, native=native, options={"kafka.queue.buffering.max.messages": "70"})
    values = [b"%d" % number for number in range(5_000)]
    rows = pa.record_batch({"key": pa.array([b"k"] * len(values), pa.binary()), "value": pa.array(values, pa.binary())})
    handle = way.write([rows])
    assert handle.rows == len(values)
    assert [message.value() for message in records(way.servers, way.topics[0])] == values


@pytest.mark.whole
@BOTH
def test_a_wait_for_the_full_queue_ends_if_the_broker_accepts_no_record(
    local_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    monkeypatch.setattr("twopc.sinks.kafka.writer._ABORT_TIMEOUT_MS", 100)
    options = {"kafka.queue.buffering.max.messages": "70"}
    way = Way(
        KafkaService(local_kafka.bootstrap_servers), monkeypatch, native=native, options=options, timeout_ms=10_000
    )
    rows = pa.record_batch({"value": pa.array([b"v"] * 500, pa.binary())})
    writer = way.writer()
    local_kafka.pause()
    try:
        with pytest.raises(RetriableError, match=rf"the topic {way.topics[0]} accepted no record for 10 s"):
            writer.write(rows)
    finally:
        local_kafka.resume()
    writer.close()
    producer_pool._pools.clear()
