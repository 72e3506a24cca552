"""Find prepared files that are already in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.refs import MAIN_BRANCH

from twopc.sinks.iceberg.errors import translated
from twopc.sinks.lake.layout import original_of
from twopc.sinks.lake.prepared import THREADS
from twopc.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Collection

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
