"""Structures for librdkafka describe each row as Arrow does."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from tests.arrow_rows import HEADERS, KINDS, sliced, texts
from twopc.errors import BadRecordError
from twopc.sinks.kafka import librdkafka as c
from twopc.sinks.kafka.arrow_records import DetailedRecords, PlainRecords, Spans, records_of
from twopc.sinks.kafka.librdkafka_producer import ARGUMENT
from twopc.sinks.kafka.records import is_full

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = int(os.environ.get("TWOPC_SEED", "0")) or random.randrange(1, 10**9)


def bytes_at(address: int, size: int) -> bytes | None:
    return ctypes.string_at(address, size) if address else None


def seen(array: Any) -> list[bytes | None]:
    """The elements as the structures show them."""
    spans = Spans(array)
    return [bytes_at(*span) for span in zip(spans.addresses.tolist(), spans.sizes.tolist(), strict=True)]


def as_bytes(array: Any) -> list[bytes | None]:
    return [value.encode() if isinstance(value, str) else value for value in array.to_pylist()]


class Recorder:
    """Replaces the producer: reads the structures while the call lasts, and accepts or refuses."""

    def __init__(self, refuse: Callable[[int], int] = lambda _: 0) -> None:
        self._refuse = refuse
        self._calls = 0
        self.records: list[tuple[Any, ...]] = []

    def handle(self, topic: str) -> int:
        return sum(topic.encode())

    def produce_batch(self, topic: str, messages: Any) -> None:
        full = 0
        for message in messages:
            message["err"] = full or self._refuse(self._calls)
            self._calls += 1
            full = int(message["err"]) if message["err"] == KafkaError._QUEUE_FULL else 0
            if not message["err"]:
                key, value = (bytes_at(int(message[name]), int(message[f"{name}_size"])) for name in ("key", "value"))
                self.records.append((topic, key, value))

    def produce_arguments(self, address: int, count: int) -> int:
        error = self._refuse(self._calls)
        self._calls += 1
        if not error:
            self.records.append(self._read((c.Argument * count).from_address(address)))
        return error

    @staticmethod
    def _read(arguments: Any) -> tuple[Any, ...]:
        found = {argument.kind: argument for argument in arguments if argument.kind != c.HEADER}
        headers = [
            (ctypes.string_at(argument.first), bytes_at(argument.second, argument.third))
            for argument in arguments
            if argument.kind == c.HEADER
        ]
        assert found[c.FLAGS].first == c.COPY
        key, value = (bytes_at(found[kind].first, found[kind].second) for kind in (c.KEY, c.VALUE))
        return found[c.TOPIC].first, key, value, found[c.PARTITION].first, found[c.TIMESTAMP].first, headers


def plain(recorder: Any, rows: pa.RecordBatch) -> PlainRecords:
    return PlainRecords(recorder, "t", rows)


def detailed(recorder: Any, rows: pa.RecordBatch) -> DetailedRecords:
    return DetailedRecords(recorder, ["t"], np.zeros(rows.num_rows, np.intp), rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_every_type_exposes_the_bytes_of_its_nulls_empty_values_and_slices(
    kind: str, nulls: float, add_summary: Callable[[str], None]
) -> None:
    """Caught mutations: no offset of a slice in the offsets, or in the validity bits; null is empty."""
    add_summary(f"seed {SEED}")
    chance = random.Random(SEED)
    for count in (0, 1, 7, 8, 9, 300):
        array = KINDS[kind](texts(chance, count, nulls=nulls))
        assert seen(array) == as_bytes(array)
        part = sliced(chance, array)
        assert seen(part) == as_bytes(array)
        assert seen(part.slice(3, 4)) == as_bytes(array)[3:7]


def test_an_empty_value_without_a_buffer_is_not_null() -> None:
    class Column:
        """Another Arrow library may pass it like this; pyarrow always makes a buffer."""

        type, offset = pa.binary(), 0

        def __len__(self) -> int:
            return 2

        def buffers(self) -> list[Any]:
            return [None, pa.py_buffer(bytes(12)), pa.foreign_buffer(0, 0)]

    assert seen(Column()) == [b"", b""]


def test_offsets_above_two_gigabytes_are_not_cut() -> None:
    """The data is not read: nothing is that large here."""
    large = 5 * 2**30
    offsets = pa.py_buffer(np.array([large, large + 7], "<i8").tobytes())
    data = pa.foreign_buffer(4096, large + 7)
    spans = Spans(pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data]))
    assert (spans.addresses.tolist(), spans.sizes.tolist()) == ([4096 + large], [7])


def test_a_column_that_holds_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="not int64"):
        Spans(pa.array([1]))


def test_the_rows_left_over_from_a_full_queue_are_enqueued_later_without_duplicates() -> None:
    """Caught mutation: the rest begins one row later, or at the first row again."""
    rows = pa.record_batch({"value": pa.array([b"%d" % number for number in range(10)], pa.binary())})
    for make in (plain, detailed):
        full = {3, 4, 9}
        recorder = Recorder(lambda call, full=full: KafkaError._QUEUE_FULL if call in full else 0)  # type: ignore[misc]
        records, done, refusals = make(recorder, rows), 0, 0
        while done < len(records):
            done, error = records.enqueue(done)
            if error is not None:
                assert is_full(error)
                refusals += 1
        assert [record[2] for record in recorder.records] == [b"%d" % number for number in range(10)]
        assert refusals


def test_the_error_identifies_the_first_refused_record() -> None:
    rows = pa.record_batch({"value": pa.array([b"a", b"b", b"c"], pa.binary())})
    for make in (plain, detailed):
        recorder = Recorder(lambda call: KafkaError.MSG_SIZE_TOO_LARGE if call >= 1 else 0)
        row, error = make(recorder, rows).enqueue(0)
        assert row == 1
        assert error is not None
        assert (error.code(), error.str()) == (
            KafkaError.MSG_SIZE_TOO_LARGE,
            "Unable to produce message: Broker: Message size too large",
        )


def test_topics_partitions_timestamps_and_headers_reach_the_arguments() -> None:
    """Caught mutations: a null partition is 0; headers of a null list belong to the next row; a slice keeps the first rows."""
    recorder: Any = Recorder()
    pairs = [[("a", b"1"), ("b", None)], None, [], [("c\u00e4", b"")], [("last", b"x" * 100)]]
    whole = pa.record_batch(
        {
            "topic": pa.array(["u", "t", "u", "t", "u"]),
            "value": pa.array([b"0", b"1", None, b"", b"4"], pa.binary()),
            "key": pa.array(["k", None, "", "kk", "kkk"]),
            "partition": pa.array([3, None, 0, -1, 2], pa.int32()),
            "timestamp": pa.array([None, 5, 0, 2**40, 1], pa.int64()),
            "headers": pa.array(
                [None if row is None else [{"key": key, "value": value} for key, value in row] for row in pairs],
                HEADERS,
            ),
        }
    )
    t, u = recorder.handle("t"), recorder.handle("u")
    expected = [
        (u, b"k", b"0", 3, 0, [(b"a", b"1"), (b"b", None)]),
        (t, None, b"1", -1, 5, []),
        (u, b"", None, 0, 0, []),
        (t, b"kk", b"", -1, 2**40, [("c\u00e4".encode(), b"")]),
        (u, b"kkk", b"4", 2, 1, [(b"last", b"x" * 100)]),
    ]
    for start in range(5):
        recorder.records.clear()
        rows = whole.slice(start)
        which = pa.array([1, 0, 1, 0, 1][start:])
        records = records_of(recorder, rows, ["t", "u"], which)
        assert records.enqueue(0) == (5 - start, None)
        assert recorder.records == expected[start:]
        assert [records.topic_of(row) for row in range(5 - start)] == ["u", "t", "u", "t", "u"][start:]


def test_pairs_behind_a_null_list_belong_to_no_row() -> None:
    """Arrow allows a null list that spans elements."""
    pairs = pa.array([{"key": name, "value": None} for name in "abc"], HEADERS.value_type)
    offsets = pa.py_buffer(np.array([0, 1, 2, 3], "<i4").tobytes())
    lists = pa.Array.from_buffers(HEADERS, 3, [pa.py_buffer(b"\x05"), offsets], children=[pairs])
    recorder: Any = Recorder()
    rows = pa.record_batch({"value": pa.array([b"v"] * 3, pa.binary()), "headers": lists})
    assert records_of(recorder, rows, ["t"], None).enqueue(0) == (3, None)
    assert [record[-1] for record in recorder.records] == [[(b"a", None)], [], [(b"c", None)]]


@pytest.mark.parametrize("headers", [[None], [{"key": None, "value": b"v"}]], ids=["no pair", "no key"])
def test_a_header_without_a_key_counts_as_a_bad_record(headers: list[Any]) -> None:
    """Its name would be read at address 0."""
    rows = pa.record_batch({"value": pa.array([b"v"], pa.binary()), "headers": pa.array([headers], HEADERS)})
    recorder: Any = Recorder()
    with pytest.raises(BadRecordError, match="header without a key"):
        records_of(recorder, rows, ["t"], None)


def test_rows_are_enqueued_together_unless_they_have_details() -> None:
    recorder: Any = Recorder()
    value = pa.array([b"v"], pa.binary())
    nothing = {
        "partition": pa.nulls(1, pa.int32()),
        "timestamp": pa.nulls(1, pa.int64()),
        "headers": pa.nulls(1, HEADERS),
    }
    assert isinstance(records_of(recorder, pa.record_batch({"value": value}), ["t"], None), PlainRecords)
    assert isinstance(records_of(recorder, pa.record_batch({"value": value, **nothing}), ["t"], None), PlainRecords)
    assert isinstance(
        records_of(recorder, pa.record_batch({"value": value}), ["t", "u"], pa.array([1])), DetailedRecords
    )
    detail = {**nothing, "partition": pa.array([0], pa.int32())}
    assert isinstance(records_of(recorder, pa.record_batch({"value": value, **detail}), ["t"], None), DetailedRecords)


def test_the_structures_have_the_layout_of_those_in_the_c_header() -> None:
    """Sizes and offsets as a C compiler lays them out for ``rdkafka.h`` where pointers have 64 bits."""
    message = {name: getattr(c.Message, name).offset for name, _ in c.Message._fields_}
    assert message == {
        "err": 0, "topic": 8, "partition": 16, "value": 24, "value_size": 32, "key": 40, "key_size": 48, "offset": 56,
        "private": 64,
    }  # fmt: skip
    assert ctypes.sizeof(c.Message) == 72
    assert ARGUMENT.itemsize == 72
    assert [c.Argument.kind.offset, c.Argument.first.offset, c.Argument.third.offset] == [0, 8, 24]


def test_the_structures_are_filled_without_pandas() -> None:
    """Its import would take a second or two in each new Python worker."""
    values = pa.array([b"v", None], pa.binary())
    columns = {
        "value": values,
        "key": values.cast(pa.string()),
        "topic": pa.array(["t", "u"]),
        "partition": pa.array([1, None], pa.int32()),
        "timestamp": pa.array([1, None], pa.int64()),
        "headers": pa.array([[{"key": "k", "value": b"v"}], None], HEADERS),
    }
    rows = pa.record_batch(columns)
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, rows.schema) as stream:
        stream.write_batch(rows)
    code = """
import sys
import pyarrow as pa
from twopc.sinks.kafka.arrow_records import records_of

class Producer:
    def handle(self, topic):
        return 0
    def produce_batch(self, topic, messages):
        pass
    def produce_arguments(self, address, count):
        return 0

rows = next(pa.ipc.open_stream(sys.stdin.buffer.read()))
topics = rows.column("topic").dictionary_encode()
for selected in (rows, rows.select(["key", "value"])):
    topic, which = (["t", "u"], topics.indices) if selected is rows else (["t"], None)
    assert records_of(Producer(), selected, topic, which).enqueue(0) == (2, None), selected
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, input=written.getvalue().to_pybytes())
