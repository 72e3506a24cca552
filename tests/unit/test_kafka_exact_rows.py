"""Rows that librdkafka would write as something else are refused, or become dead letters if the query allows it."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer

from tests.arrow_rows import HEADERS
from twopc.errors import BadRecordError, ConfigurationError
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.columns import require_exact
from twopc.sinks.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = int(os.environ.get("TWOPC_SEED", "0")) or random.randrange(1, 10**9)
BY_ROW = KafkaSink(name="orders", bootstrap_servers="broker:9092")
VALUES = pa.array([b"1", b"2"], pa.binary())


def raw(*values: bytes) -> pa.Array[Any]:
    """Text as Spark hands it over: any bytes."""
    kind = pa.string()
    column = pa.array(values, pa.binary())
    return pa.Array.from_buffers(kind, len(column), column.buffers())


def test_a_header_whose_key_is_not_utf8_is_refused() -> None:
    """One client would write the bytes, the other would end with a Python error; Spark's sink writes U+FFFD."""
    pairs = pa.StructArray.from_arrays([raw(b"good", b"\xff"), pa.array([b"", b""])], fields=list(HEADERS.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs)
    rows = pa.record_batch({"value": VALUES, "headers": headers})
    with pytest.raises(BadRecordError, match="not UTF-8"):
        require_exact(rows)
    require_exact(rows.slice(0, 1))


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        (b"other\0topic", "'other\\\\x00topic' in the 'topic' column is not a valid topic name"),
        (b"no topic!", "'no topic!' in the 'topic' column is not a valid topic name"),
        (b"..", "'..' in the 'topic' column is not a valid topic name"),
        (b"\xff", "in the 'topic' column is not a valid topic name"),
        (b"twopc-ledger-orders", "is a ledger"),
        (None, "'topic' column is null"),
    ],
)
def test_a_row_with_an_impossible_topic_counts_as_a_bad_record(topic: bytes | None, why: str) -> None:
    """Caught mutation: a name is not checked, librdkafka cuts it off at a NUL character, and the row goes to another topic."""
    topics = raw(b"fine", b"fine") if topic is None else raw(b"fine", topic)
    if topic is None:
        topics = pa.array(["fine", None], pa.string())
    rows = pa.record_batch({"value": VALUES, "topic": topics})
    with pytest.raises(BadRecordError, match=why):
        BY_ROW.check_rows(rows)
    BY_ROW.check_rows(rows.slice(0, 1))


def test_a_sink_with_a_topic_ignores_the_topic_column() -> None:
    sink = KafkaSink(name="orders", bootstrap_servers="broker:9092", topic="out")
    sink.check_rows(pa.record_batch({"value": VALUES, "topic": pa.array([None, "no topic!"], pa.string())}))


@pytest.mark.parametrize("name", [".", ".."])
def test_a_sinks_topic_is_one_that_kafka_allows(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid topic name"):
        KafkaSettings(name="orders", bootstrap_servers="broker:9092", topic=name)


def test_rows_count_as_too_large_exactly_if_librdkafka_refuses_them(add_summary: Callable[[str], None]) -> None:
    """Caught mutations: the record's own bytes, its headers or their lengths are left out; such a row would stop the query."""
    add_summary(f"seed {SEED}")
    chance = random.Random(SEED)
    sink = KafkaSink(name="orders", bootstrap_servers="broker:9092", topic="out")
    config = {**sink.producer_config(), "bootstrap.servers": "", "log_level": 0}
    most = int(config["message.max.bytes"])
    for key, longest in ((None, 0), (b"k" * 100, 10), (b"", 10_000), (b"key", 300_000)):
        lengths = [
            (chance.randrange(1, 70), chance.choice([None, chance.randrange(longest)]))
            for _ in range(3 if longest else 0)
        ]
        headers = [("h" * name, None if value is None else b"v" * value) for name, value in lengths]
        producer = Producer(config)

        def is_refused(size: int, *, key: Any = key, headers: Any = headers, producer: Any = producer) -> bool:
            try:
                producer.produce("out", b"v" * size, key, headers=headers)
            except KafkaException:
                return True
            producer.purge()
            return False

        def is_bad(size: int, *, key: Any = key, headers: Any = headers) -> bool:
            pairs = [{"key": name, "value": value} for name, value in headers]
            small = [{"key": "other", "value": b"x" * 100}]
            columns = {
                "value": pa.array([b"", b"v" * size, b""], pa.binary()),
                "key": pa.array([None, key, b"k"], pa.binary()),
                "headers": pa.array([small, pairs, None], HEADERS),
            }
            try:
                sink.check_rows(pa.record_batch(columns))
            except BadRecordError:
                return True
            return False

        low, high = 0, most + 1  # the first size that librdkafka refuses is in (low, high]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_refused(middle) else (middle, high)
        assert (is_bad(low), is_bad(high)) == (False, True), (key, lengths, low)


def test_a_record_as_large_as_sparks_own_sink_accepts_is_accepted() -> None:
    """Java's producer counts 61 bytes for a batch and 21 for a record, within max.request.size=1048576."""
    sink = KafkaSink(name="orders", bootstrap_servers="broker:9092", topic="out")
    largest = 1_048_576 - 61 - 21
    sink.check_rows(pa.record_batch({"value": pa.array([b"v" * largest], pa.binary())}))
    with pytest.raises(BadRecordError, match=r"exceed kafka\.message\.max\.bytes=1048530 bytes"):
        sink.check_rows(pa.record_batch({"value": pa.array([b"v" * (largest + 1)], pa.binary())}))
