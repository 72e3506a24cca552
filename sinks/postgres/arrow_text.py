"""Create Arrow string arrays without ``pa.array`` and ``pa.scalar``.

``pa.array`` and ``pa.scalar`` import pandas, which takes a second in every new Python worker.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    Texts = pa.Array[Any]
    """An array of strings."""


def texts(values: Sequence[str]) -> Texts:
    """Make an array of strings."""
    encoded = [value.encode() for value in values]
    offsets = array("i", [0, *accumulate(map(len, encoded))])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


@lru_cache
def text(value: str) -> Any:
    """Make a string scalar."""
    return texts([value])[0]


@lru_cache
def number(value: int) -> Any:
    """Make a 64-bit integer scalar."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(array("q", [value]).tobytes())])[0]


def joined(*parts: Any, separator: str = "") -> Texts:
    """Join each row's parts. If any part is null, the result is null."""
    found: Texts = pc.binary_join_element_wise(*parts, text(separator))
    return found


def replaced(column: Texts, pairs: Sequence[tuple[str, str]]) -> Texts:
    """For each pair ``(old, new)`` in order, replace ``old`` with ``new`` in every string."""
    for old, new in pairs:
        column = pc.replace_substring(column, pattern=old, replacement=new)
    return column


def hexadecimal(column: pa.Array[Any]) -> Texts:
    """Encode each byte in a binary column as two hexadecimal digits, without a loop over the rows."""
    if not len(column):
        return pa.array([], pa.string())  # Spark's Arrow writer writes no offsets for an empty column
    _, offsets, data = column.buffers()
    width = pa.int64() if pa.types.is_large_binary(column.type) else pa.int32()
    ends = pa.Array.from_buffers(width, len(column) + 1, [None, offsets], offset=column.offset)
    # A slice shares its buffers with the whole batch.
    digits = memoryview(data or b"")[ends[0].as_py() : ends[-1].as_py()].hex().encode()
    ends = from_zero(ends)
    ends = pc.add_checked(ends, ends).cast(pa.int32())
    encoded = pa.Array.from_buffers(pa.string(), len(column), [None, ends.buffers()[1], pa.py_buffer(digits)])
    return with_nulls_of(column, encoded)


def from_zero(offsets: Any) -> Any:
    """Shift a slice's offsets, so that the first is 0."""
    return pc.subtract(offsets, offsets[0])


def with_nulls_of(column: pa.Array[Any], written: Texts) -> Texts:
    """Make the text null wherever the column is null."""
    if not column.null_count:
        return written
    found: Texts = pc.if_else(column.is_valid(), written, pa.nulls(len(column), pa.string()))
    return found
