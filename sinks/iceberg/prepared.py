"""Whether what a task has prepared is still there: every file, with its size."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.refs import MAIN_BRANCH

from twopc.sinks.iceberg.entries import decode
from twopc.sinks.iceberg.errors import translated
from twopc.sinks.iceberg.store import read_object, size_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from twopc.sinks.iceberg.entries import Entry
    from twopc.sinks.iceberg.handle import IcebergHandle

#: Each look is a request to the storage, and mostly waits.
_THREADS: Final = 16


def whole(table: Table, handles: Sequence[IcebergHandle]) -> dict[IcebergHandle, list[Entry] | None]:
    """Each transaction's files; None if one of them is gone, or has another size.

    Raises:
        StoreError: the storage did not answer, which says nothing about the files.
    """

    def look(handle: IcebergHandle) -> list[Entry] | None:
        entries = entries_of(table, handle)
        if entries is None or sum(entry.rows for entry in entries) != handle.rows:
            return None
        return entries if all(size_of(table, entry.path) == entry.size for entry in entries) else None

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(handles, pool.map(look, handles), strict=True))


def added_already(table: Table, paths: Collection[str]) -> set[str]:
    """Those of the files that are in the branch. Reads all of its manifests of data.

    Raises:
        StoreError: the storage did not answer.
    """
    current = table.metadata.snapshot_by_name(MAIN_BRANCH)
    if current is None:
        return set()

    def search(manifest: ManifestFile) -> set[str]:
        return {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}.intersection(paths)

    with translated("reading the manifests"), ThreadPoolExecutor(_THREADS) as pool:
        data = [found for found in current.manifests(table.io) if found.content is ManifestContent.DATA]
        return set[str]().union(*pool.map(search, data))


def entries_of(table: Table, handle: IcebergHandle) -> list[Entry] | None:
    """A transaction's files, as its task listed them; None if the list was in a file that is gone or altered.

    Raises:
        StoreError: the storage did not answer.
    """
    if not handle.entries_file:
        return decode(handle.entries)
    encoded = read_object(table, handle.entries_file)
    if encoded is None or hashlib.sha256(encoded).hexdigest() != handle.entries_digest:
        return None
    return decode(encoded)
