"""Check that each of a task's files still exists and still has the size from the handle."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from twopc.sinks.lake.entries import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twopc.sinks.lake.entries import Entry, EntryT
    from twopc.sinks.lake.files import Files
    from twopc.sinks.lake.handle import HandleT, LakeHandle

#: Use many threads, because each check is a request to the storage and mostly waits.
THREADS: Final = 16


def whole(files: Files, handles: Sequence[HandleT], kind: type[EntryT]) -> dict[HandleT, list[EntryT] | None]:
    """For each transaction, return the files, or None if a file is missing or has a different size.

    Raises:
        StoreError: the storage did not respond, so the files' state is unknown.
    """

    def look(handle: HandleT) -> list[EntryT] | None:
        entries = entries_of(files, handle, kind)
        if entries is None or sum(entry.rows for entry in entries) != handle.rows:
            return None
        return entries if are_whole(files, entries) else None

    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(handles, pool.map(look, handles), strict=True))


def are_whole(files: Files, entries: Iterable[Entry]) -> bool:
    """Return whether all of these files exist with their sizes.

    Raises:
        StoreError: the storage did not respond.
    """
    return all(files.size_of(entry.path) == entry.size for entry in entries)


def entries_of(files: Files, handle: LakeHandle, kind: type[EntryT]) -> list[EntryT] | None:
    """Return a transaction's files from its task's list; None if the list was in a file that is now missing or altered.

    Raises:
        StoreError: the storage did not respond.
    """
    if not handle.entries_file:
        return decode(handle.entries, kind)
    encoded = files.read(handle.entries_file)
    if encoded is None or hashlib.sha256(encoded).hexdigest() != handle.entries_digest:
        return None
    return decode(encoded, kind)
