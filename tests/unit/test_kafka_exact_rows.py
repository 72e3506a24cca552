"""Rows that librdkafka would write as something else are refused, and become dead letters where the query has them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sinks.kafka import KafkaSink
from sinks.kafka.columns import require_exact
from sinks.kafka.settings import KafkaSettings
from tests.arrow_rows import HEADERS
from twopc.errors import BadRecordError, ConfigurationError

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
        (b"other\0topic", "'other\\\\x00topic' in the column 'topic' is not a valid topic name"),
        (b"no topic!", "'no topic!' in the column 'topic' is not a valid topic name"),
        (b"..", "'..' in the column 'topic' is not a valid topic name"),
        (b"\xff", "in the column 'topic' is not a valid topic name"),
        (b"twopc-ledger-orders", "is a ledger"),
        (None, "null in the column 'topic'"),
    ],
)
def test_a_row_whose_topic_nobody_can_have_is_a_bad_record(topic: bytes | None, why: str) -> None:
    """Caught mutation: a name is not checked, and librdkafka ends it at a NUL character: the row goes to another topic."""
    topics = raw(b"fine", b"fine") if topic is None else raw(b"fine", topic)
    if topic is None:
        topics = pa.array(["fine", None], pa.string())
    rows = pa.record_batch({"value": VALUES, "topic": topics})
    with pytest.raises(BadRecordError, match=why):
        BY_ROW.check(rows)
    BY_ROW.check(rows.slice(0, 1))


def test_a_topic_of_the_sink_makes_the_column_meaningless() -> None:
    sink = KafkaSink(name="orders", bootstrap_servers="broker:9092", topic="out")
    sink.check(pa.record_batch({"value": VALUES, "topic": pa.array([None, "no topic!"], pa.string())}))


@pytest.mark.parametrize("name", [".", ".."])
def test_a_sinks_topic_is_one_that_kafka_allows(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid topic name"):
        KafkaSettings(name="orders", bootstrap_servers="broker:9092", topic=name)
