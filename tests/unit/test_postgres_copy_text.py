"""Large batches become text in pieces. Each piece costs memory in proportion to its own rows, not to the batch."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from twopc.sinks.postgres import rows as rows_module
from twopc.sinks.postgres.arrow_text import hexadecimal
from twopc.sinks.postgres.rows import RowFormat
from twopc.sinks.postgres.target import Column, ColumnType

#: Arrays whose slices begin in the middle of a bitmap's byte, and whose nulls hide values.
_MASK = pa.array([at % 3 == 1 for at in range(30)])
_ENDS: Any = pa.array(range(0, 62, 2), pa.int32())


def format_of(kind: str, *, is_array: bool = False) -> RowFormat:
    return RowFormat("t", (("v", Column(1, "v", ColumnType(kind, kind, is_array=is_array))),))


def copied(written: RowFormat, values: Any) -> bytes:
    return b"".join(bytes(piece) for piece in written.copy_text(pa.record_batch({"v": values})))


def binaries(kind: pa.DataType) -> Any:
    values = [b"\x00\xff", b"", None, b"abc\\"] * 15
    return pa.array(values, kind)


def lists(kind: pa.DataType, make: Any = pa.ListArray) -> Any:
    ends = _ENDS.cast(pa.int64()) if make is pa.LargeListArray else _ENDS
    return make.from_arrays(ends, binaries(kind), mask=_MASK)


_VALUES = {
    "bytea": (format_of("bytea"), binaries(pa.binary())),
    "a large bytea": (format_of("bytea"), binaries(pa.large_binary())),
    "bytea[]": (format_of("bytea", is_array=True), lists(pa.binary())),
    "a large bytea[]": (format_of("bytea", is_array=True), lists(pa.large_binary(), pa.LargeListArray)),
}


@pytest.mark.parametrize(("written", "values"), _VALUES.values(), ids=_VALUES.keys())
def test_a_slice_is_written_as_the_text_of_its_rows(written: RowFormat, values: Any) -> None:
    alone = [copied(written, pa.array([value], values.type)) for value in values.to_pylist()]
    assert len(set(alone)) > 2
    for first in range(0, len(values), 7):
        for count in (0, 1, 2, 9):
            assert copied(written, values.slice(first, count)) == b"".join(alone[first : first + count])


def test_the_hexadecimal_digits_of_a_slice_cover_only_its_own_bytes() -> None:
    column = pa.array([b"a" * 1000, b"\x0f\xf0", b"b" * 1000])
    found = hexadecimal(column.slice(1, 1))
    assert found.to_pylist() == ["0ff0"]
    assert sum(buffer.size for buffer in found.buffers() if buffer) < 100


@pytest.mark.parametrize(
    ("written", "value", "kind"),
    [
        (format_of("bytea"), b"x" * 1000, pa.binary()),
        (format_of("bytea"), b"x" * 1000, pa.large_binary()),
        (format_of("bytea", is_array=True), [b"x" * 1000], pa.list_(pa.binary())),
        (format_of("text", is_array=True), ["x" * 1000], pa.list_(pa.string())),
    ],
    ids=["bytea", "large bytea", "bytea[]", "text[]"],
)
def test_a_piece_of_a_batch_uses_no_memory_for_the_rest_of_the_batch(
    written: RowFormat, value: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 300 MB took 1.5 GB more for each piece."""
    monkeypatch.setattr(rows_module, "_MOST_BYTES", 40_000)
    batch = pa.record_batch({"v": pa.array([value] * 4000, kind)})
    next(iter(written.copy_text(batch.slice(0, 1))))  # makes the one-time allocations
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        for _ in written.copy_text(batch):
            pass
        _, python_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert python_bytes + (pool.max_memory() or 0) < batch.nbytes // 2


def test_a_column_of_empty_arrays_needs_no_offsets() -> None:
    """Spark's Arrow writer gives the elements of such a column an offset buffer of 0 bytes."""
    nothing = pa.py_buffer(b"")
    elements = pa.Array.from_buffers(pa.binary(), 0, [None, nothing, nothing])
    values = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), elements, mask=pa.array([False, True]))
    assert copied(format_of("bytea", is_array=True), values) == b"{}\n\\N\n"
