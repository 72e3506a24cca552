"""The columns of Spark's own Kafka writer: chosen by name and type, and their values checked, a column at a time.

Source of the names and types: Spark's ``KafkaWriter.scala`` and its Structured Streaming + Kafka guide; ``timestamp``
is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import BadRecordError, SchemaError
from twopc.sink import Form, SinkColumn, names_in, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEADER_WITHOUT_KEY: Final = "a header without a key in the column 'headers'"
_STRING: Final = (pa.string(), pa.large_string())
_BINARY: Final = (pa.binary(), pa.large_binary())


def kafka_columns(schema: pa.Schema, *, has_topic: bool) -> tuple[SinkColumn, ...]:
    """Choose the columns of the records, whatever the case of their names; ``has_topic``: the sink has one of its own.

    Raises:
        SchemaError: a column is missing or has a type that cannot be written; the message names it.
    """
    fields = {field.name.lower(): field for field in schema}
    if "value" not in fields:
        raise SchemaError(
            f"the DataFrame has no column 'value' (it has {names_in(schema)}): select the record's value AS value"
        )
    if not has_topic and "topic" not in fields:
        raise SchemaError(
            f"no topic: neither the sink nor the DataFrame (it has {names_in(schema)}) gives one: set KafkaSink(topic=…) or "
            "select a column AS topic"
        )
    return tuple(_column(name, fields[name]) for name in _RULES if name in fields)


def require_writable(rows: pa.RecordBatch, *, max_bytes: int) -> None:
    """Check rows with the columns of :class:`sinks.kafka.writer.KafkaWriter`, all but ``topic``, by the rows alone.

    Args:
        rows: the rows; may be empty.
        max_bytes: the largest key and value together, in bytes: ``message.max.bytes``, as librdkafka measures it.

    Raises:
        BadRecordError: no producer could ever send at least one of the rows; the message has the reason.
    """
    columns = {name: rows.column(name) for name in rows.schema.names}
    for is_bad, why in _objections(columns, max_bytes=max_bytes):
        if pc.any(is_bad, min_count=0).as_py():
            raise BadRecordError(why)


def _column(name: str, field: pa.Field[Any]) -> SinkColumn:
    fits, wanted, form = _RULES[name]
    if not fits(field.type):
        raise SchemaError(f"column '{field.name}' is {type_name(field)}, it must be {wanted}: cast it")
    return SinkColumn(name, field.name, Form.AS_IS if field.type in _BINARY else form)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (*_STRING, *_BINARY)


def _is_instant(kind: pa.DataType) -> bool:
    # Without a zone it is a wall clock's reading (Spark's timestamp_ntz), which is no point in time.
    return isinstance(kind, pa.TimestampType) and kind.tz is not None


def _is_headers(kind: pa.DataType) -> bool:
    if not isinstance(kind, pa.ListType) or not isinstance(kind.value_type, pa.StructType):
        return False
    inner = [(field.name, field.type in _STRING, field.type in _BINARY) for field in kind.value_type]
    return inner == [("key", True, False), ("value", False, True)]


#: For each column: whether a type fits, the types that do in Spark's words, and the form that the producer takes.
_RULES: Final[dict[str, tuple[Callable[[Any], bool], str, Form]]] = {
    "key": (_is_text, "string or binary", Form.BINARY),
    "value": (_is_text, "string or binary", Form.BINARY),
    "topic": (_STRING.__contains__, "string", Form.AS_IS),
    "partition": (pa.types.is_int32, "int", Form.AS_IS),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>", Form.AS_IS),
    "timestamp": (_is_instant, "timestamp", Form.EPOCH_MILLIS),
}


def _objections(columns: dict[str, Any], *, max_bytes: int) -> Iterator[tuple[Any, str]]:
    if "partition" in columns:
        yield pc.less(columns["partition"], pa.scalar(0)), "a negative number in the column 'partition'"
    if "timestamp" in columns:
        yield pc.less(columns["timestamp"], pa.scalar(0)), "a time before 1970 in the column 'timestamp'"
    if "headers" in columns:
        yield columns["headers"].flatten().field("key").is_null(), HEADER_WITHOUT_KEY
    size = _bytes_of(columns["value"])
    if "key" in columns:
        size = pc.add(size, _bytes_of(columns["key"]))
    yield (
        pc.greater(size, pa.scalar(max_bytes)),
        f"key and value have more than kafka.message.max.bytes={max_bytes} bytes",
    )


def _bytes_of(column: Any) -> Any:
    return pc.fill_null(pc.binary_length(column), 0)
