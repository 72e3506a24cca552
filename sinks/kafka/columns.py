"""Choose columns by name and type, as Spark's own Kafka writer does, and check their values one column at a time.

The names and types come from Spark's ``KafkaWriter.scala`` and its Structured Streaming + Kafka guide. The
only additional column is ``timestamp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import BadRecordError, SchemaError
from twopc.sink import Form, SinkColumn, listed, require_one, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEADER_WITHOUT_KEY: Final = (
    "the 'headers' column contains a header without a key. Give the header a key, or remove the header"
)
#: The overhead per record that librdkafka adds to key, value and headers (``RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD``).
_RECORD_OVERHEAD_BYTES: Final = 36
#: A length is encoded as a zigzag varint. It takes up one more byte for each of these limits that the length reaches.
_LONGER: Final = (1 << 6, 1 << 13, 1 << 20, 1 << 27)
_STRING: Final = (pa.string(), pa.large_string())
_BINARY: Final = (pa.binary(), pa.large_binary())


def kafka_columns(schema: pa.Schema, *, has_topic: bool) -> tuple[SinkColumn, ...]:
    """Choose the records' columns by case-insensitive names. ``has_topic`` says whether the sink has its own topic.

    Raises:
        SchemaError: a column is missing, exists twice, or has a type that cannot be written. The message identifies the
            column.
    """
    found = {name: named(name, schema.names) for name in _RULES}
    if found["value"] is None:
        raise SchemaError(
            f"the DataFrame has no column 'value' (it has {listed(schema.names)}): include a column with this name in "
            "the DataFrame"
        )
    if not has_topic and found["topic"] is None:
        raise SchemaError(
            f"the sink has no topic, and the DataFrame has no column 'topic' (it has {listed(schema.names)}). "
            "Set KafkaSink(topic=…), or include a column with this name in the DataFrame"
        )
    return tuple(_column(name, schema.field(source)) for name, source in found.items() if source is not None)


def named(name: str, names: Sequence[str]) -> str | None:
    """Find the column with exactly this name, or else the only column whose name differs only in case.

    Spark's own writer requires exactly this name.

    Raises:
        SchemaError: several columns match.
    """
    meant = [name] if name in names else [other for other in names if other.lower() == name]
    if len(set(meant)) > 1:
        raise SchemaError(
            f"the columns {listed(meant)} differ only in case, so any of them could be the record's {name}. Nothing was "
            f"written. Select the right column AS {name}, or rename the other columns"
        )
    if meant:
        require_one(meant[0], names)
    return meant[0] if meant else None


def require_writable(rows: pa.RecordBatch, *, max_bytes: int) -> None:
    """Check the columns of :class:`twopc.sinks.kafka.writer.KafkaWriter`, except ``topic``, without contacting a broker.

    Args:
        rows: the rows; may be empty.
        max_bytes: the maximum record size, ``message.max.bytes``, as librdkafka measures it.

    Raises:
        BadRecordError: at least one of the rows could never be sent by any producer. The message says why.
    """
    require_exact(rows)
    columns = {name: rows.column(name) for name in rows.schema.names}
    size = pc.add(_bytes_of(columns["value"]), _RECORD_OVERHEAD_BYTES)
    if "key" in columns:
        size = pc.add(size, _bytes_of(columns["key"]))
    if "headers" in columns:
        size = pc.add(size, _header_bytes(columns["headers"]))
    if (pc.max(size).as_py() or 0) > max_bytes:
        raise BadRecordError(
            f"the record's key, value and headers exceed kafka.message.max.bytes={max_bytes} bytes. Make the record smaller, or "
            "raise both this option of the sink and the topic's max.message.bytes"
        )


def require_exact(rows: pa.RecordBatch) -> None:
    """Reject values that librdkafka would silently change.

    librdkafka treats a time of 0 as "now" and a partition of -1 as "any", and it truncates a header's name at its first NUL byte.
    Kafka's Java producer, which Spark's own sink uses, rejects negative partitions and times (``ProducerRecord.java``).

    Args:
        rows: see :func:`require_writable`. Rows without ``partition``, ``timestamp`` and ``headers`` do not need this
            check.

    Raises:
        BadRecordError: at least one of the rows cannot be written unchanged. The message says why.
    """
    columns = {name: rows.column(name) for name in rows.schema.names}
    # Python compares the values, because ``pa.scalar`` imports pandas, which takes a second in every new Python worker.
    if "partition" in columns and (pc.min(columns["partition"]).as_py() or 0) < 0:
        raise BadRecordError(
            "the 'partition' column contains a negative number. Use null to let the client choose a partition"
        )
    earliest_ms = pc.min(columns["timestamp"]).as_py() if "timestamp" in columns else None
    if earliest_ms is not None and earliest_ms <= 0:
        raise BadRecordError(
            "the 'timestamp' column contains a time at or before 1970-01-01 00:00:00.000 UTC, which the Kafka client cannot "
            "write. Use null if you want the time of writing"
        )
    if "headers" in columns:
        _require_names(columns["headers"])


def texts_of(column: Any) -> list[str]:
    """Return the elements of a text column that has no nulls. Spark strings may contain any bytes, so escape invalid UTF-8."""
    return [element.as_buffer().to_pybytes().decode(errors="backslashreplace") for element in column]


def _require_names(headers: Any) -> None:
    pairs = headers.flatten()
    names = pairs.field("key")
    if pairs.null_count or names.null_count:
        raise BadRecordError(HEADER_WITHOUT_KEY)
    try:
        names.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadRecordError(
            f"a header's key in the 'headers' column is not UTF-8: {error}. Convert the key to text, or put its bytes into "
            "the header's value"
        ) from error
    if pc.any(pc.match_substring(names, "\0"), min_count=0).as_py():
        raise BadRecordError(
            "a header's key in the 'headers' column contains a NUL character, and the Kafka client would cut off the key "
            "there. Remove the character"
        )


def _column(name: str, field: pa.Field[Any]) -> SinkColumn:
    fits, wanted, form = _RULES[name]
    if not fits(field.type):
        raise SchemaError(f"column '{field.name}' is {type_name(field)}, but it must be {wanted}: cast it")
    return SinkColumn(name, field.name, Form.AS_IS if field.type in _BINARY else form)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (*_STRING, *_BINARY)


def _is_instant(kind: pa.DataType) -> bool:
    # A time without a zone (Spark's timestamp_ntz) shows the time on a local clock, not a point in time.
    return isinstance(kind, pa.TimestampType) and kind.tz is not None


def _is_headers(kind: pa.DataType) -> bool:
    if not isinstance(kind, pa.ListType) or not isinstance(kind.value_type, pa.StructType):
        return False
    inner = [(field.name, field.type in _STRING, field.type in _BINARY) for field in kind.value_type]
    return inner == [("key", True, False), ("value", False, True)]


#: For each column: a check of its type, Spark's names for the accepted types, and the form that the producer needs.
_RULES: Final[dict[str, tuple[Callable[[Any], bool], str, Form]]] = {
    "key": (_is_text, "string or binary", Form.BINARY),
    "value": (_is_text, "string or binary", Form.BINARY),
    "topic": (_STRING.__contains__, "string", Form.AS_IS),
    "partition": (pa.types.is_int32, "int", Form.AS_IS),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>", Form.AS_IS),
    "timestamp": (_is_instant, "timestamp", Form.EPOCH_MILLIS),
}


def _bytes_of(column: Any) -> Any:
    return pc.fill_null(pc.binary_length(column), 0)


def _header_bytes(headers: Any) -> Any:
    """Compute the encoded size of each row's headers in bytes: all keys, all values, and their lengths."""
    pairs = headers.flatten()
    sizes = pa.repeat(pa.scalar(2, pa.int64()), len(pairs))  # one byte for each length, even for null
    for length in (_bytes_of(pairs.field("key")), _bytes_of(pairs.field("value"))):
        for longer in _LONGER:
            sizes = pc.add(sizes, pc.greater_equal(length, pa.scalar(longer)).cast(pa.int64()))
        sizes = pc.add(sizes, length)
    counts = pc.fill_null(pc.list_value_length(headers), 0)
    ends = pc.cumulative_sum(counts.cast(pa.int64()))
    sums = pa.concat_arrays([pa.repeat(pa.scalar(0, pa.int64()), 1), pc.cumulative_sum(sizes)])
    return pc.subtract(sums.take(ends), sums.take(pc.subtract(ends, counts)))
