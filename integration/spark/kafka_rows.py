"""The columns of Spark's own Kafka writer, checked by name and type.

Source of the names and types: Spark's ``KafkaWriter.scala`` and its Structured Streaming + Kafka guide; ``timestamp``
is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import types as st

from twopc.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sinks.kafka import KafkaSink

_TEXT: Final = (st.StringType, st.BinaryType)
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_COLUMNS: Final = ("key", "value", "topic", "partition", "headers", "timestamp")


def kafka_columns(sink: KafkaSink, columns: st.StructType) -> Iterator[tuple[str, st.StructField]]:
    """What the sink writes: Kafka's name, and the column that has it.

    Raises:
        SchemaError: one is missing or has a type that cannot be written; the message names it.
    """
    fields = {field.name.lower(): field for field in columns.fields}
    has = ", ".join(repr(name) for name in columns.names) or "none"
    if "value" not in fields:
        raise SchemaError(
            f"the DataFrame has no column 'value' (it has {has}), which sink {sink.name} needs: select what is to be the "
            "record's value AS value"
        )
    if sink.topic is None and "topic" not in fields:
        raise SchemaError(
            f"no topic: sink {sink.name} has none and the DataFrame has no column 'topic' (it has {has}): give "
            "KafkaSink(topic=…) or select one AS topic"
        )
    for name in _COLUMNS:
        if name in fields:
            _require_type(name, fields[name])
            yield name, fields[name]


def _require_type(name: str, field: st.StructField) -> None:
    kind = field.dataType
    fits, wanted = {
        "key": (isinstance(kind, _TEXT), "string or binary"),
        "value": (isinstance(kind, _TEXT), "string or binary"),
        "topic": (isinstance(kind, st.StringType), "string"),
        "partition": (isinstance(kind, st.IntegerType), "int"),
        "timestamp": (isinstance(kind, st.TimestampType), "timestamp"),
        "headers": (_is_headers(kind), _HEADERS),
    }[name]
    if not fits:
        raise SchemaError(f"column '{field.name}' is {kind.simpleString()}, it must be {wanted}: cast it")


def _is_headers(kind: st.DataType) -> bool:
    if not isinstance(kind, st.ArrayType) or not isinstance(kind.elementType, st.StructType):
        return False
    inner = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return inner == [("key", st.StringType), ("value", st.BinaryType)]
