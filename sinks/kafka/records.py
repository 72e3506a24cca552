"""Finds rows that no Kafka producer could ever send, by the rows alone, a column at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator


def require_writable(rows: pa.RecordBatch, *, has_topic: bool, max_bytes: int) -> None:
    """Check rows with the columns of :class:`sinks.kafka.writer.KafkaWriter`.

    Args:
        rows: the rows; may be empty.
        has_topic: whether the sink has a topic of its own, which overrides the rows'.
        max_bytes: the largest key and value together, in bytes: ``message.max.bytes``, as librdkafka measures it.

    Raises:
        BadRecordError: at least one row cannot be sent, with the reason.
    """
    columns = {name: rows.column(name) for name in rows.schema.names}
    for is_bad, why in _objections(columns, has_topic=has_topic, max_bytes=max_bytes):
        if pc.any(is_bad, min_count=0).as_py():
            raise BadRecordError(why)


def _objections(columns: dict[str, Any], *, has_topic: bool, max_bytes: int) -> Iterator[tuple[Any, str]]:
    if "topic" in columns and not has_topic:
        yield columns["topic"].is_null(), "null in the column 'topic', and the sink has no topic of its own"
    if "partition" in columns:
        yield pc.less(columns["partition"], pa.scalar(0)), "a negative number in the column 'partition'"
    if "timestamp" in columns:
        yield pc.less(columns["timestamp"], pa.scalar(0)), "a time before 1970 in the column 'timestamp'"
    if "headers" in columns:
        yield _nameless(columns["headers"]), "a header without a key in the column 'headers'"
    size = _bytes_of(columns["value"])
    if "key" in columns:
        size = pc.add(size, _bytes_of(columns["key"]))
    yield (
        pc.greater(size, pa.scalar(max_bytes)),
        f"key and value have more than kafka.message.max.bytes={max_bytes} bytes",
    )


def _bytes_of(column: Any) -> Any:
    return pc.fill_null(pc.binary_length(column), 0)


def _nameless(headers: Any) -> Any:
    """For each header of each row."""
    return headers.flatten().field("key").is_null()
