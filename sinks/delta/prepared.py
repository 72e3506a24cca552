"""Whether what a task has prepared is still there: every file, with its size. And whether the table can still take it."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from twopc.sinks.delta.entries import decode
from twopc.sinks.delta.errors import translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.sinks.delta.entries import Entry
    from twopc.sinks.delta.handle import DeltaHandle
    from twopc.sinks.delta.store import Store
    from twopc.sinks.delta.table import Definition

#: Each look is a request to the storage, and mostly waits.
_THREADS: Final = 16


def whole(store: Store, handles: Sequence[DeltaHandle]) -> dict[DeltaHandle, list[Entry] | None]:
    """Each transaction's files; None if one of them is gone, or has another size.

    Raises:
        StoreError: the storage did not answer, which says nothing about the files.
    """

    def look(handle: DeltaHandle) -> list[Entry] | None:
        entries = entries_of(store, handle)
        if entries is None or sum(entry.rows for entry in entries) != handle.rows:
            return None
        return entries if all(store.size_of(entry.path) == entry.size for entry in entries) else None

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(handles, pool.map(look, handles), strict=True))


def entries_of(store: Store, handle: DeltaHandle) -> list[Entry] | None:
    """A transaction's files, as its task listed them; None if the list was in a file that is gone or altered.

    Raises:
        StoreError: the storage did not answer.
    """
    if not handle.entries_file:
        return decode(handle.entries)
    encoded = store.read(handle.entries_file)
    if encoded is None or hashlib.sha256(encoded).hexdigest() != handle.entries_digest:
        return None
    return decode(encoded)


def find_misfit(store: Store, entry: Entry, table: Definition) -> str | None:
    """Say why a table that was altered cannot take a file that was written before; None if it can.

    Raises:
        StoreError: the storage did not answer.
    """
    if set(entry.partition) != set(table.partitions):
        return "its partition columns are others now"
    with store.open(entry.path) as stream, translated(f"reading {entry.path}"):
        written = pq.read_schema(stream)
    for field in written:
        if field.name not in table.stored.names:
            return f"the column {field.name!r} is gone"
        now = table.stored.field(field.name)
        if now.type != field.type:
            return f"the column {field.name!r} is {now.type} now"
        if field.nullable and not now.nullable:
            return f"the column {field.name!r} is NOT NULL now"
    added = [field.name for field in table.stored if field.name not in written.names and not field.nullable]
    return f"the column {added[0]!r} was added as NOT NULL" if added else None
