"""Pass rows to librdkafka one by one as Python objects. :mod:`twopc.sinks.kafka.arrow_records` avoids these objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

# ruff: noqa: SLF001 - librdkafka codes are public constants with an underscore
_QUEUE_FULL: Final = KafkaError._QUEUE_FULL
_STATE: Final = KafkaError._STATE


class Records(Protocol):
    """Rows that are ready for the librdkafka queue.

    Attributes:
        stopped: whether all rows after the first rejected row were rejected too, which keeps the rows in order.
    """

    stopped: bool

    def __len__(self) -> int: ...

    @property
    def largest(self) -> int:
        """The size of the largest row's key and value in bytes."""

    def enqueue(self, start: int) -> tuple[int, KafkaError | None]:
        """Enqueue the rows, starting at ``start``.

        Return the index of the first rejected row, and the reason. If no row was rejected, return the number of rows, and
        None.
        """

    def topic_of(self, row: int) -> str:
        """Return the row's topic."""


class OneByOne:
    """Rows as tuples of arguments for confluent-kafka's ``produce``."""

    stopped = True

    def __init__(self, producer: Any, messages: Sequence[tuple[Any, ...]]) -> None:
        self._produce = producer.produce
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def largest(self) -> int:
        """See :class:`Records`."""
        return max((sum(len(part or b"") for part in message[1:3]) for message in self._messages), default=0)

    def enqueue(self, start: int) -> tuple[int, KafkaError | None]:
        """See :class:`Records`."""
        produce, row = self._produce, start
        try:
            for row in range(start, len(self._messages)):
                produce(*self._messages[row])
        except BufferError:
            return row, KafkaError(_QUEUE_FULL)
        except KafkaException as error:
            return row, error.args[0]
        return len(self), None

    def topic_of(self, row: int) -> str:
        """See :class:`Records`."""
        topic: str = self._messages[row][0]
        return topic


def is_full(error: KafkaError) -> bool:
    """Return whether a record was rejected because the queue is full."""
    return error.code() == _QUEUE_FULL


def has_failed(error: KafkaError) -> bool:
    """Return whether a record was rejected because an earlier record made the transaction fail."""
    return error.code() == _STATE


def messages_of(rows: pa.RecordBatch, topics: Sequence[str], which: Any) -> list[tuple[Any, ...]]:
    """Convert rows to arguments for ``produce``: topic, value, key, partition, two callbacks, timestamp and headers.

    Args:
        rows: the rows, with the columns of :class:`twopc.sinks.kafka.writer.KafkaWriter`. The rows have passed
            :func:`twopc.sinks.kafka.columns.require_exact`.
        topics: the rows' topics.
        which: for each row, the index of its topic in ``topics``; None if there is only one topic.
    """
    count, names = rows.num_rows, rows.schema.names
    topic = [topics[0]] * count if which is None else [topics[place] for place in which.to_pylist()]
    columns = [rows.column(name).to_pylist() if name in names else [None] * count for name in _COLUMNS]
    if {"partition", "timestamp", "headers"}.isdisjoint(names):
        return list(zip(topic, *columns[:2], strict=True))
    return [
        (name, value, key, -1 if partition is None else partition, None, None, timestamp or 0, _pairs(headers))
        for name, value, key, partition, timestamp, headers in zip(topic, *columns, strict=True)
    ]


_COLUMNS: Final = ("value", "key", "partition", "timestamp", "headers")


def _pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes]] | None:
    if headers is None:
        return None
    return [(header["key"], header["value"]) for header in headers]
