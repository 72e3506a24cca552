"""The rows of a half-written batch get the identities of the records that Spark's own sink wrote for them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from twopc.integration.migrate.handover import Bounds, Handover, Kind
from twopc.integration.migrate.identity import Row, content_of
from twopc.integration.migrate.rest import _identified

#: A word in Latin-1. Spark keeps such bytes in a string, and Java's decoder replaces them.
CAFE = b"caf\xe9"


def strings(*values: bytes) -> pa.Array[Any]:
    """A column of strings with any bytes, as Spark sends it."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def test_text_that_is_not_utf_8_is_compared_as_sparks_own_sink_wrote_it() -> None:
    pairs = pa.StructArray.from_arrays([strings(CAFE), pa.array([b"1"])], ["key", "value"])
    columns: list[pa.Array[Any]] = [
        pa.array([7]),
        pa.array([b"v"]),
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs),
        strings(b"t"),
    ]
    written = ("value", "headers", "topic")
    rows = pa.RecordBatch.from_arrays(columns, ["id", *written])
    bounds = {"t": {0: Bounds(start=0, exact=0, end=1)}}
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=bounds)
    [found] = _identified(iter([rows]), own=("id",), written=written, topic=None, handover=handover)
    assert found.column(2).to_pylist() == [content_of("t", Row(None, b"v", [("caf\ufffd", b"1")]))]
