"""Values for a table, converted alone: see ``test_iceberg_values.py`` and ``test_delta_values.py`` for those in files."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from twopc.sinks.lake.values import convert, problems


def test_what_a_null_struct_hides_is_neither_checked_nor_converted() -> None:
    """Arrow allows any value below a null."""
    known = uuid.UUID(int=7)
    ids = pa.array(["", str(known)])
    given: Any = pa.StructArray.from_arrays([ids], fields=[pa.field("id", pa.string())], mask=pa.array([True, False]))
    table = pa.struct([pa.field("id", pa.uuid())])
    assert not list(problems(given, pa.field("part", table), "part"))
    assert convert(given, table, table).to_pylist() == [None, {"id": known}]
