"""Convert Arrow rows to librdkafka structures. numpy fills in the addresses, so no row becomes a Python object.

The structures point into Arrow's buffers. An object in this module keeps its arrays alive. The caller must
keep the object until librdkafka has copied the rows. librdkafka copies them within each call.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import BadRecordError
from twopc.sinks.kafka import librdkafka as c
from twopc.sinks.kafka.columns import HEADER_WITHOUT_KEY
from twopc.sinks.kafka.librdkafka_producer import ARGUMENT, MESSAGE, not_produced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import KafkaError

    from twopc.sinks.kafka.librdkafka_producer import LibrdkafkaProducer
    from twopc.sinks.kafka.records import Records

Numbers: TypeAlias = "np.ndarray[Any, Any]"
Column: TypeAlias = Any  #: an Arrow array of any type

#: The size of an offset in bytes, for the types that have offsets.
_OFFSETS: Final = {pa.binary(): 4, pa.string(): 4, pa.large_binary(): 8, pa.large_string(): 8}
#: The address for an empty value whose array has no buffer. An address of 0 would mean null.
_NOWHERE: Final = ctypes.create_string_buffer(1)
#: The number of arguments before a record's headers.
_FIXED: Final = 6


class PlainRecords:
    """Rows for one topic, with values and optional keys. One call enqueues all rows."""

    def __init__(self, producer: LibrdkafkaProducer, topic: str, rows: pa.RecordBatch) -> None:
        self._producer, self._topic = producer, topic
        self.stopped = True
        self._messages = np.zeros(rows.num_rows, MESSAGE)
        self._spans = {name: Spans(rows.column(name)) for name in ("key", "value") if name in rows.schema.names}
        for name, spans in self._spans.items():
            self._messages[name], self._messages[f"{name}_size"] = spans.addresses, spans.sizes

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def largest(self) -> int:
        """See :class:`Records`."""
        return _largest(self._spans)

    def enqueue(self, start: int) -> tuple[int, KafkaError | None]:
        """See :class:`Records`. Once the queue is full, librdkafka accepts no more rows."""
        messages = self._messages[start:]
        self._producer.produce_batch(self._topic, messages)
        (refused,) = np.nonzero(messages["err"])
        if not len(refused):
            return len(self), None
        first = int(refused[0])
        self.stopped = len(refused) == len(messages) - first
        return start + first, not_produced(int(messages["err"][first]))

    def topic_of(self, row: int) -> str:
        """See :class:`Records`."""
        del row
        return self._topic


class DetailedRecords:
    """Rows with topics, partitions, timestamps or headers.

    Each row takes one call. numpy fills in the arguments of that call.
    """

    stopped = True

    def __init__(
        self, producer: LibrdkafkaProducer, topics: Sequence[str], which: Numbers, rows: pa.RecordBatch
    ) -> None:
        self._producer, self._topics, self._which = producer, topics, which
        columns = {name: rows.column(name) for name in rows.schema.names}
        headers = Headers(columns["headers"]) if "headers" in columns else None
        counts = np.zeros(rows.num_rows, np.int64) if headers is None else headers.counts
        self._counts = counts + _FIXED
        self._starts = np.cumsum(self._counts) - self._counts
        self._spans = {name: Spans(columns[name]) for name in ("key", "value") if name in columns}
        self._headers = headers
        self._arguments = np.zeros(int(self._counts.sum()), ARGUMENT)
        self._fill(c.TOPIC, np.array([producer.handle(topic) for topic in topics], np.int64)[which])
        self._fill(c.FLAGS, c.COPY)
        for name, kind, width, null in (
            ("partition", c.PARTITION, 4, c.ANY_PARTITION),
            ("timestamp", c.TIMESTAMP, 8, 0),
        ):
            self._fill(kind, _numbers(columns[name], width, null) if name in columns else null)
        for name, kind in (("value", c.VALUE), ("key", c.KEY)):
            if name in self._spans:
                self._fill(kind, self._spans[name].addresses, self._spans[name].sizes)
            else:
                self._fill(kind, 0)
        if headers is not None:
            self._fill_headers(headers)

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def largest(self) -> int:
        """See :class:`Records`."""
        return _largest(self._spans)

    def enqueue(self, start: int) -> tuple[int, KafkaError | None]:
        """See :class:`Records`."""
        addresses = self._arguments.ctypes.data + self._starts[start:] * ARGUMENT.itemsize
        produce = self._producer.produce_arguments
        for row, address, count in zip(
            range(start, len(self)), addresses.tolist(), self._counts[start:].tolist(), strict=True
        ):
            error = produce(address, count)
            if error:
                return row, not_produced(error)
        return len(self), None

    def topic_of(self, row: int) -> str:
        """See :class:`Records`."""
        return self._topics[int(self._which[row])]

    def _fill(self, kind: int, first: Numbers | int, second: Numbers | int = 0) -> None:
        places = self._starts + _PLACES[kind]
        self._arguments["kind"][places] = kind
        self._arguments["first"][places] = first
        self._arguments["second"][places] = second

    def _fill_headers(self, headers: Headers) -> None:
        counts = headers.counts
        before = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(self._starts + _FIXED - before, counts)
        self._arguments["kind"][places] = c.HEADER
        self._arguments["first"][places] = headers.names.addresses
        self._arguments["second"][places] = headers.values.addresses
        self._arguments["third"][places] = headers.values.sizes


_PLACES: Final = {
    kind: place for place, kind in enumerate((c.TOPIC, c.FLAGS, c.PARTITION, c.VALUE, c.KEY, c.TIMESTAMP))
}


def records_of(
    producer: LibrdkafkaProducer, rows: pa.RecordBatch, topics: Sequence[str], which: Column | None
) -> Records:
    """Prepare rows that have the columns of :class:`twopc.sinks.kafka.writer.KafkaWriter`.

    Args:
        producer: the producer that enqueues the rows.
        rows: the rows.
        topics: the rows' topics.
        which: for each row, the index of its topic in ``topics``; None if there is only one topic.
    """
    details = [name for name in ("partition", "timestamp", "headers") if name in rows.schema.names]
    if len(topics) == 1 and all(rows.column(name).null_count == rows.num_rows for name in details):
        return PlainRecords(producer, topics[0], rows)
    places = np.zeros(rows.num_rows, np.intp) if which is None else _numbers(which.cast(pa.int32()), 4, 0)
    return DetailedRecords(producer, topics, places, rows)


class Spans:
    """Holds the address and size of each element in a bytes or text column. A null has the address 0.

    The object keeps the column alive, because the addresses point into the column.
    """

    def __init__(self, column: Column) -> None:
        self._column = column if column.type in _OFFSETS else _as_bytes(column)
        edges = _edges(self._column, _OFFSETS[self._column.type])
        data = self._column.buffers()[2]
        base = (data.address if data is not None else 0) or ctypes.addressof(_NOWHERE)
        self.addresses, self.sizes = base + edges[:-1], np.diff(edges)
        null = _nulls(self._column)
        self.addresses[null] = self.sizes[null] = 0


def _largest(spans: Mapping[Any, Spans]) -> int:
    """Return the size of the largest row in bytes, counting only these columns."""
    sizes = [column.sizes for column in spans.values()]
    return int(np.max(np.sum(sizes, axis=0), initial=0)) if sizes else 0


class Headers:
    """Holds the number of headers in each row, and all header names and values in row order."""

    def __init__(self, column: Column) -> None:
        pairs = column.flatten()
        keys = pairs.field("key")
        if pairs.null_count or keys.null_count:
            raise BadRecordError(HEADER_WITHOUT_KEY)
        self.counts: Numbers = np.diff(_edges(column, _OFFSETS[pa.binary()]))
        self.counts[_nulls(column)] = 0  # the elements of null rows are not among the pairs
        # librdkafka expects names as C strings.
        ended = pc.binary_join_element_wise(keys, _text("", keys.type), _text("\0", keys.type))
        self.names = Spans(ended)
        self.values = Spans(pairs.field("value"))


# The code below avoids ``pa.scalar`` and ``pa.array``, because they import pandas, which takes a second in each new worker.


def _text(value: str, kind: pa.DataType) -> Column:
    data = value.encode()
    offsets = np.array([0, len(data)], f"<i{_OFFSETS[kind]}").tobytes()
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])[0]


def _edges(column: Column, width: int) -> Numbers:
    """Return the start offset of each element, followed by the end offset of the last element."""
    if not len(column):
        return np.zeros(1, np.int64)  # an empty column may have no buffer
    edges = np.frombuffer(column.buffers()[1], f"<i{width}", len(column) + 1, column.offset * width)
    return edges.astype(np.int64)


def _nulls(column: Column) -> Numbers:
    """Return a mask of the null elements."""
    validity = column.buffers()[0]
    if validity is None:
        return np.zeros(len(column), bool)
    first, skipped = divmod(column.offset, 8)
    flags = np.frombuffer(validity, np.uint8, (skipped + len(column) + 7) // 8, first)
    bits: Numbers = np.unpackbits(flags, bitorder="little")[skipped : skipped + len(column)]
    return bits == 0  # type: ignore[no-any-return]


def _as_bytes(column: Column) -> Column:
    kind = column.type
    if isinstance(kind, pa.DictionaryType):
        column = column.dictionary_decode()
        return column if column.type in _OFFSETS else _as_bytes(column)
    if not (pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind)):
        raise TypeError(f"a record's key and value must be bytes or text, not {kind}")
    return column.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())


def _numbers(column: Column, width: int, null: int) -> Numbers:
    data = np.frombuffer(column.buffers()[1], f"<i{width}", len(column), column.offset * width)
    return np.where(_nulls(column), null, data)
