"""The columns of Spark's own Kafka writer, checked by name and brought to the types that the tasks write.

Source of the names and types: Spark's ``KafkaWriter.scala`` and its Structured Streaming + Kafka guide; ``timestamp``
is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf
from pyspark.sql import types as st

from twopc.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from sinks.kafka import KafkaSink

#: The order-insensitive checksum of a task is the sum of this column (rule 9); computed by the JVM, not row by row here.
CHECKSUM: Final = "__twopc_checksum"

_TEXT: Final = (st.StringType, st.BinaryType)
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_COLUMNS: Final = ("key", "value", "topic", "partition", "headers", "timestamp")


def normalise(frame: DataFrame, sinks: Iterable[KafkaSink]) -> DataFrame:
    """``frame`` with exactly the columns that the tasks write, and the checksum.

    Raises:
        SchemaError: a column is missing or has a type that cannot be written; the message names it. Nothing was evaluated.
    """
    fields = {field.name.lower(): field for field in frame.schema.fields}
    if "value" not in fields:
        raise SchemaError(
            f"the DataFrame has no column 'value' (it has {_named(frame)}): select what is to be the record's value AS value"
        )
    without_topic = sorted(sink.name for sink in sinks if sink.topic is None)
    if without_topic and "topic" not in fields:
        raise SchemaError(
            f"no topic: sink {', '.join(without_topic)} has none and the DataFrame has no column 'topic' (it has "
            f"{_named(frame)}): give KafkaSink(topic=…) or select one AS topic"
        )
    columns = [_column(fields[name]).alias(name) for name in _COLUMNS if name in fields]
    selected = frame.select(*columns)
    return selected.withColumn(CHECKSUM, _checksum(selected))


def _column(field: st.StructField) -> Column:
    column, name, kind = sf.col(f"`{field.name}`"), field.name.lower(), field.dataType
    if name in {"key", "value"}:
        _require(isinstance(kind, _TEXT), field, "string or binary")
        return column.cast("binary")
    if name == "topic":
        _require(isinstance(kind, st.StringType), field, "string")
        return column
    if name == "partition":
        _require(isinstance(kind, st.IntegerType), field, "int")
        return column
    if name == "timestamp":
        _require(isinstance(kind, st.TimestampType), field, "timestamp")
        return sf.unix_millis(column)
    _require(_is_headers(kind), field, _HEADERS)
    return column


def _is_headers(kind: st.DataType) -> bool:
    if not isinstance(kind, st.ArrayType) or not isinstance(kind.elementType, st.StructType):
        return False
    inner = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return inner == [("key", st.StringType), ("value", st.BinaryType)]


def _require(fits: bool, field: st.StructField, wanted: str) -> None:  # noqa: FBT001 - an assertion's shape
    if not fits:
        raise SchemaError(f"column '{field.name}' is {field.dataType.simpleString()}, it must be {wanted}: cast it")


def _checksum(frame: DataFrame) -> Column:
    # xxhash64 passes over nulls: without the flags (null, 'a') and ('a', null) would be the same row.
    parts = [part for name in frame.columns for part in (sf.col(name).isNull(), sf.col(name))]
    return sf.xxhash64(*parts)


def _named(frame: DataFrame) -> str:
    return ", ".join(repr(name) for name in frame.columns) or "none"
