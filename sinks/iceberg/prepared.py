"""Find the sink's files that are already in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.refs import MAIN_BRANCH

from twopc.sinks.iceberg.errors import translated
from twopc.sinks.lake.layout import original_of
from twopc.sinks.lake.prepared import THREADS
from twopc.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table


def added_already(table: Table, paths: Collection[str]) -> set[str]:
    """Find the files that the main branch already contains, as originals or as copies. Read all of the branch's data manifests.

    Raises:
        StoreError: the storage did not respond.
    """
    current = table.metadata.snapshot_by_name(MAIN_BRANCH)
    if current is None:
        return set()

    def search(manifest: ManifestFile) -> set[str]:
        entries = manifest.fetch_manifest_entry(table.io)
        return {original_of(entry.data_file.file_path) for entry in entries}.intersection(paths)

    with translated("reading the manifests"):
        data = [found for found in current.manifests(table.io) if found.content is ManifestContent.DATA]
        return set[str]().union(*at_once(search, data, threads=THREADS, name="twopc-files"))


def batches_added(table: Table, since: int, batch_of: Callable[[str], int | None]) -> set[int]:
    """Return the batches of data files in any snapshot. Read only manifests that were written after a sequence number.

    A file that a later commit added is in no other manifest.

    Args:
        table: the table.
        since: the sequence number of a snapshot; 0 to read all manifests.
        batch_of: returns the batch of a file; None for a file that does not count.

    Raises:
        StoreError: the storage did not respond.
    """

    def search(manifest: ManifestFile) -> set[int]:
        found = (batch_of(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(table.io))
        return {batch for batch in found if batch is not None}

    with translated("reading the manifests"):
        later = [snapshot for snapshot in table.metadata.snapshots if (snapshot.sequence_number or 0) > since]
        lists = at_once(lambda snapshot: snapshot.manifests(table.io), later, threads=THREADS, name="twopc-files")
        data = {
            found.manifest_path: found
            for manifests in lists
            for found in manifests
            if found.content is ManifestContent.DATA and found.sequence_number > since
        }
        return set[int]().union(*at_once(search, data.values(), threads=THREADS, name="twopc-files"))
