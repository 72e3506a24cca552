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
    column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    digits = (data.to_pybytes() if data else b"").hex().encode()
    doubled = pa.Array.from_buffers(pa.int32(), column.offset + len(column) + 1, [None, offsets])
    doubled = pc.add_checked(doubled, doubled)
    buffers = [validity, doubled.buffers()[1], pa.py_buffer(digits)]
    return pa.Array.from_buffers(pa.string(), len(column), buffers, offset=column.offset)
