"""The columns of a Kafka record are found in any letter case. Spark's own writer knows only lower case, which wins."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from twopc.errors import BadRecordError, ConfigurationError, SchemaError
from twopc.sink import TYPE_NAME, Form, SinkColumn
from twopc.sinks.kafka import KafkaSink

SINK = KafkaSink(name="s", bootstrap_servers="b:1")
WITH_TOPIC = KafkaSink(name="s", bootstrap_servers="b:1", topic="t")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_a_columns_name_may_have_any_letter_case() -> None:
    kinds: dict[str, Any] = {"Topic": pa.string(), "VALUE": pa.binary(), "other": pa.int64()}
    assert [(column.name, column.source) for column in SINK.choose_columns(pa.schema(kinds))] == [
        ("value", "VALUE"),
        ("topic", "Topic"),
    ]


def test_the_column_of_sparks_own_writer_is_chosen_if_two_column_names_differ_only_in_case() -> None:
    for names in (("value", "Value"), ("VALUE", "value")):
        chosen = WITH_TOPIC.choose_columns(pa.schema([(name, pa.binary()) for name in names]))
        assert [column.source for column in chosen] == ["value"]


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (("value", "Key", "KEY"), "'Key', 'KEY' differ only in case.*Select the right column AS key"),
        (("VALUE", "Value"), "'VALUE', 'Value' differ only in case"),
        (("value", "key", "key"), "has 2 columns named 'key'"),
        (("Value", "Value"), "has 2 columns named 'Value'"),
    ],
)
def test_an_ambiguous_column_name_is_refused_and_not_guessed(names: tuple[str, ...], named: str) -> None:
    with pytest.raises(SchemaError, match=named):
        WITH_TOPIC.choose_columns(pa.schema([(name, pa.binary()) for name in names]))


def test_two_columns_with_the_same_name_do_not_matter_if_no_record_uses_them() -> None:
    chosen = WITH_TOPIC.choose_columns(pa.schema([(name, pa.binary()) for name in ("id", "value", "id", "ID")]))
    assert [column.source for column in chosen] == ["value"]


def test_a_missing_topic_causes_an_error() -> None:
    with pytest.raises(SchemaError, match="the sink has no topic, and the DataFrame"):
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
def test_each_column_is_converted_to_the_form_that_the_producer_needs(name: str, kind: Any, form: Form) -> None:
    chosen = WITH_TOPIC.choose_columns(pa.schema([("value", pa.string()), (name, kind)]))
    assert set(chosen) == {SinkColumn("value", "value", Form.BINARY), SinkColumn(name, name, form)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("value", pa.int32()),
        ("topic", pa.binary()),
        ("partition", pa.int64()),
        ("timestamp", pa.timestamp("us")),  # without a time zone
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
        ("headers", pa.list_(pa.struct([("key", pa.string())]))),
        ("headers", pa.string()),
    ],
)
def test_a_wrong_type_is_reported_by_its_spark_name(name: str, kind: Any) -> None:
    columns = {"value": pa.field("value", pa.binary()), name: pa.field(name, kind, metadata={TYPE_NAME: "odd"})}
    with pytest.raises(SchemaError, match=f"column '{name}' is odd, but it must be "):
        WITH_TOPIC.choose_columns(pa.schema(columns.values()))


def test_only_a_sink_with_a_topic_accepts_dead_letters() -> None:
    assert WITH_TOPIC.takes_dead_letters
    assert not SINK.takes_dead_letters


NAMED = KafkaSink(name="s", bootstrap_servers="b:1", ledger_topic="decisions")
RESERVED = ["twopc-ledger-s", "twopc-ledger-of-another", "decisions", "__transaction_state", "__consumer_offsets"]


def rows_to(*topics: str | None) -> pa.RecordBatch:
    return pa.record_batch(
        {"value": pa.array([b""] * len(topics), pa.binary()), "topic": pa.array(topics, pa.string())}
    )


@pytest.mark.parametrize("topic", [None, *RESERVED])
def test_a_row_without_a_topic_or_with_a_ledger_as_topic_counts_as_a_bad_record(topic: str | None) -> None:
    """In a ledger it would be a damaged decision, and every later start would fail."""
    with pytest.raises(BadRecordError, match="'topic' column"):
        NAMED.check_rows(rows_to("out", topic))
    NAMED.check_rows(rows_to("out", "twopc-ledger", "decisions2"))
    NAMED.check_rows(rows_to())


@pytest.mark.parametrize("topic", RESERVED)
def test_a_ledger_must_not_be_a_topic_for_a_sinks_rows(topic: str) -> None:
    with pytest.raises(ConfigurationError, match=f"topic='{topic}'.*Set another topic"):
        KafkaSink(name="s", bootstrap_servers="b:1", ledger_topic="decisions", topic=topic)


def test_a_sink_with_a_topic_ignores_that_of_the_rows() -> None:
    WITH_TOPIC.check_rows(rows_to(None, "twopc-ledger-s"))
