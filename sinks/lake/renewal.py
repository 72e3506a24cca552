"""Copy the old files of a late batch, because running maintenance may already have listed the originals for deletion.

Maintenance (``VACUUM``, ``remove_orphan_files``) reads the table, lists the old files that the table does not reference, and
deletes them later, without reading the table again. If a batch is committed in between, the table references its files, but
maintenance deletes them anyway. The copies are safe, because they did not exist when maintenance listed the files.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.layout import directory_of, new_copy
from twopc.sinks.lake.prepared import THREADS, copies_in, copy_of
from twopc.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twopc.sinks.lake.entries import EntryT
    from twopc.sinks.lake.files import Files
    from twopc.sinks.lake.handle import HandleT


def old_files(entries: Iterable[EntryT], since_ms: float) -> list[EntryT]:
    """List the files that were written before this Unix time, or at an unknown time."""
    return [entry for entry in entries if entry.modified_ms < since_ms]


def renewed(files: Files, added: Mapping[HandleT, list[EntryT]], since_ms: float) -> dict[HandleT, list[EntryT]]:
    """Replace each old file with a copy.

    An earlier start may have made copies before its commit failed. This function reuses those copies while they are young, so
    that repeated failed starts do not fill the storage.

    This function never deletes originals or copies, because another driver may be committing them at this moment. Maintenance
    deletes the files that the table does not reference.

    Args:
        files: the table's storage.
        added: by transaction, the files that a commit is about to add.
        since_ms: the Unix time before which a file is old.

    Raises:
        StoreError: a file could not be copied.
    """
    old = old_files((entry for entries in added.values() for entry in entries), since_ms)
    if not old:
        return dict(added)
    copies: dict[str, list[str]] = {}
    for where in {directory_of(entry.path) for entry in old}:
        copies |= copies_in(files, where)

    def renew(entry: EntryT) -> EntryT:
        return copy_of(files, entry, copies, since_ms) or _copied(files, entry)

    copied = at_once(renew, old, threads=THREADS, name="twopc-files")
    found = dict(zip((entry.path for entry in old), copied, strict=True))
    return {handle: [found.get(entry.path, entry) for entry in entries] for handle, entries in added.items()}


def _copied(files: Files, entry: EntryT) -> EntryT:
    # The name contains the time at which the copying begins, so a copy never looks younger than it is.
    now_ms = time.time_ns() // 1_000_000
    path = new_copy(entry.path, now_ms)
    files.copy(entry.path, path)
    if files.size_of(path) != entry.size:
        raise StoreError(f"{path}, a copy of {entry.path}, is incomplete")
    copy: EntryT = replace(entry, path=path, modified_ms=now_ms)  # type: ignore[type-var]
    return copy
