"""Columns as the words of Redis commands."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sinks import columns
from sinks.columns import integers, numbers, texts
from sinks.redis.keys import PREFIX
from twopc.errors import BadRecordError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["integers", "interleave", "keys", "numbers", "parse_template", "texts"]


def keys(rows: pa.RecordBatch, template: str) -> list[bytes]:
    """The key of every row."""
    joined = columns.keys(rows, template)
    if pc.any(pc.starts_with(joined, pattern=PREFIX), min_count=0).as_py():
        raise BadRecordError(f"key {template!r} gives a key that begins with {PREFIX!r}: these are the sink's own keys")
    found: list[bytes] = joined.to_pylist()
    return found


@cache
def parse_template(template: str) -> tuple[tuple[str, bool], ...]:
    """See ``sinks.columns``; the sink's own prefix is rejected."""
    if template.startswith(PREFIX):
        raise ConfigurationError(f"key {template!r}: give a key that does not begin with {PREFIX!r}")
    return columns.parse_template(template)


def interleave(columns: Sequence[Sequence[bytes]], rows: int) -> list[bytes]:
    """The first word of each column, then the second of each, and so on."""
    flat = [b""] * (len(columns) * rows)
    for at, column in enumerate(columns):
        flat[at :: len(columns)] = column
    return flat
