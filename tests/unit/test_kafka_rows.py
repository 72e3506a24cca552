"""Kafka's columns are found whatever the case of their names, as Spark's own writer finds them."""

from __future__ import annotations

import pytest
from pyspark.sql import types as st

from integration.spark.kafka_rows import kafka_columns
from sinks.kafka import KafkaSink
from twopc.errors import SchemaError

SINK = KafkaSink(name="s", bootstrap_servers="b:1")


def test_a_columns_name_may_be_written_in_any_case() -> None:
    columns = st.StructType().add("Topic", "string").add("VALUE", "binary").add("other", "long")
    found = [(name, field.name) for name, field in kafka_columns(SINK, columns)]
    assert found == [("value", "VALUE"), ("topic", "Topic")]


def test_a_topic_that_nobody_gives_is_asked_for() -> None:
    with pytest.raises(SchemaError, match="no topic: sink s"):
        list(kafka_columns(SINK, st.StructType().add("value", "binary")))
