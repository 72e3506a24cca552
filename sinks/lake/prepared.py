"""Check that each of a task's files, or a copy of it, still exists and still has the size from the handle."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from twopc.sinks.lake.entries import decode
from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.layout import copied_ms, directory_of, original_of
from twopc.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.sinks.lake.entries import Entry, EntryT
    from twopc.sinks.lake.files import Files
    from twopc.sinks.lake.handle import HandleT, LakeHandle

#: Use many threads, because each check is a request to the storage and mostly waits.
THREADS: Final = 16


def whole(files: Files, handles: Sequence[HandleT], kind: type[EntryT]) -> dict[HandleT, list[EntryT] | None]:
    """For each transaction, return the files, or None if a file is missing or has a different size.

    Use a file's copy if the file itself is missing: maintenance may have deleted it after an earlier start copied it.

    Raises:
        StoreError: the storage did not respond, so the files' state is unknown.
    """
    copies = cache(partial(copies_in, files))

    def find(entry: EntryT) -> EntryT | None:
        if files.size_of(entry.path) == entry.size:
            return entry
        return copy_of(files, entry, copies(directory_of(entry.path)))

    def look(handle: HandleT) -> list[EntryT] | None:
        entries = entries_of(files, handle, kind)
        if entries is None or sum(entry.rows for entry in entries) != handle.rows:
            return None
        found = [one for entry in entries if (one := find(entry)) is not None]
        return found if len(found) == len(entries) else None

    return dict(zip(handles, at_once(look, handles, threads=THREADS, name="twopc-files"), strict=True))


def require_whole(files: Files, additions: Mapping[Any, Sequence[Entry]]) -> None:
    """Check that the files that a repeated commit adds still exist.

    If some files are missing, the driver's next step finds out which ones.

    Raises:
        StoreError: some files are missing, or the storage did not respond.
    """

    def are_whole(entries: Sequence[Entry]) -> bool:
        return all(files.size_of(entry.path) == entry.size for entry in entries)

    found = list(at_once(are_whole, additions.values(), threads=THREADS, name="twopc-files"))
    for handle, is_whole in zip(additions, found, strict=True):
        if not is_whole:
            raise StoreError(f"files of {handle.transaction} were deleted while the driver was retrying the commit")


def copies_in(files: Files, where: str) -> Mapping[str, list[str]]:
    """Map the path of each original to the paths of its copies in a directory, newest first.

    Raises:
        StoreError: the storage did not respond.
    """
    paths = (f"{where}/{name}" for name in files.listed(where))
    dated = [(at_ms, path) for path in paths if (at_ms := copied_ms(path)) is not None]
    found = defaultdict(list)
    for _, path in sorted(dated, reverse=True):
        found[original_of(path)].append(path)
    return found


def copy_of(files: Files, entry: EntryT, copies: Mapping[str, list[str]], since_ms: float = 0) -> EntryT | None:
    """Return the entry of a complete copy that was made at this Unix time or later; None if there is no such copy.

    Raises:
        StoreError: the storage did not respond.
    """
    for path in copies.get(original_of(entry.path), ()):
        at_ms = copied_ms(path) or 0
        if at_ms >= since_ms and files.size_of(path) == entry.size:
            copy: EntryT = replace(entry, path=path, modified_ms=at_ms)  # type: ignore[type-var]
            return copy
    return None


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
