"""The columns of Kafka's records, found whatever the case of their names, as Spark's own writer finds them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sinks.kafka import KafkaSink
from twopc.columns import TYPE_NAME, Form, SinkColumn
from twopc.errors import SchemaError

SINK = KafkaSink(name="s", bootstrap_servers="b:1")
WITH_TOPIC = KafkaSink(name="s", bootstrap_servers="b:1", topic="t")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_a_columns_name_may_be_written_in_any_case() -> None:
    kinds: dict[str, Any] = {"Topic": pa.string(), "VALUE": pa.binary(), "other": pa.int64()}
    assert [(column.name, column.source) for column in SINK.choose_columns(pa.schema(kinds))] == [
        ("value", "VALUE"),
        ("topic", "Topic"),
    ]


def test_a_topic_that_nobody_gives_is_asked_for() -> None:
    with pytest.raises(SchemaError, match="no topic: neither the sink nor the DataFrame"):
        SINK.choose_columns(pa.schema([("value", pa.binary())]))


@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [
        ("key", pa.string(), Form.BINARY),
        ("key", pa.binary(), Form.AS_IS),
        ("topic", pa.string(), Form.AS_IS),
        ("partition", pa.int32(), Form.AS_IS),
        ("headers", HEADERS, Form.AS_IS),
        ("timestamp", pa.timestamp("us", "UTC"), Form.EPOCH_MILLIS),
    ],
)
def test_each_column_has_the_form_that_the_producer_takes(name: str, kind: Any, form: Form) -> None:
    chosen = WITH_TOPIC.choose_columns(pa.schema([("value", pa.string()), (name, kind)]))
    assert set(chosen) == {SinkColumn("value", "value", Form.BINARY), SinkColumn(name, name, form)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("value", pa.int32()),
        ("topic", pa.binary()),
        ("partition", pa.int64()),
        ("timestamp", pa.timestamp("us")),  # a wall clock's reading
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
        ("headers", pa.list_(pa.struct([("key", pa.string())]))),
        ("headers", pa.string()),
    ],
)
def test_a_type_that_no_record_can_have_is_named_as_the_user_knows_it(name: str, kind: Any) -> None:
    columns = {"value": pa.field("value", pa.binary()), name: pa.field(name, kind, metadata={TYPE_NAME: "odd"})}
    with pytest.raises(SchemaError, match=f"column '{name}' is odd, it must be "):
        WITH_TOPIC.choose_columns(pa.schema(columns.values()))


def test_only_a_sink_with_a_topic_takes_dead_letters() -> None:
    assert WITH_TOPIC.takes_dead_letters
    assert not SINK.takes_dead_letters
