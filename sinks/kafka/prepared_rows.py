"""Choose how to pass rows to librdkafka, either as structures that numpy fills in, or one by one as Python objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.sinks.kafka.columns import texts_of
from twopc.sinks.kafka.records import OneByOne, messages_of

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.sinks.kafka.producer import ReadyProducer
    from twopc.sinks.kafka.records import Records


def records_of(ready: ReadyProducer, topic: str | None, rows: pa.RecordBatch) -> Records:
    """Convert rows to the form that the producer accepts.

    ``topic`` is the sink's topic, or None if each row has its own topic.
    """
    topics: list[Any] = [topic]
    which = None
    if topic is None:
        encoded = rows.column("topic").dictionary_encode()
        topics, which = texts_of(encoded.dictionary), encoded.indices
    if ready.native is None:
        return OneByOne(ready.producer, messages_of(rows, topics, which))
    from twopc.sinks.kafka import arrow_records  # noqa: PLC0415 - needs numpy, like the native producer

    return arrow_records.records_of(ready.native, rows, topics, which)
