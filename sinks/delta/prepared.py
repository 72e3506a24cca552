"""Check that the files of decided transactions still fit the table's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from twopc.sinks.delta.errors import translated
from twopc.sinks.delta.partitions import is_unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sinks.delta.entries import Entry
    from twopc.sinks.delta.store import Store
    from twopc.sinks.delta.table import Definition


def find_misfit(store: Store, entry: Entry, table: Definition) -> str | None:
    """Say why an altered table does not accept a file that was written before the change.

    Return None if the table accepts the file.

    Raises:
        StoreError: the storage did not respond.
    """
    if set(entry.partition) != set(table.partitions):
        return "the table's partition columns have changed"
    for name, text in entry.partition.items():
        column = table.schema.field(name)
        if text is None and not column.nullable:
            return f"the column {name!r} is now NOT NULL"
        if text is not None and not is_unchanged(text, column.type):
            return f"the column {name!r} is now {column.type}"
    with store.open(entry.path) as stream, translated(f"reading {entry.path}"):
        written = pq.read_schema(stream)
    return next(_misfits(written, table.stored, ""), None)


def _misfits(written: Any, now: Any, path: str) -> Iterator[str]:
    """Yield the columns or struct fields that do not fit. Readers return null for a column that is missing from a file."""
    for field in written:
        if field.name in now.names:
            yield from _changes(field, now.field(field.name), f"{path}{field.name}")
        else:
            yield f"the column {path + field.name!r} was removed"
    for field in now:
        if field.name not in written.names and not field.nullable:
            yield f"the column {path + field.name!r} was added as NOT NULL"


def _changes(written: Any, now: Any, path: str) -> Iterator[str]:
    if written.nullable and not now.nullable:
        yield f"the column {path!r} is now NOT NULL"
    before, after = written.type, now.type
    if before == after:
        return
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        yield from _misfits(pa.schema(before), pa.schema(after), f"{path}.")
    elif pa.types.is_list(before) and pa.types.is_list(after):
        yield from _changes(before.value_field, after.value_field, f"{path}.element")
    elif pa.types.is_map(before) and pa.types.is_map(after):
        yield from _changes(before.key_field, after.key_field, f"{path}.key")
        yield from _changes(before.item_field, after.item_field, f"{path}.value")
    else:
        yield f"the column {path!r} is now {after}"
