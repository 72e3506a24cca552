"""Define the paths of a sink's files in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.sinks.lake import layout

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


def root(metadata: TableMetadata, sink: str, sink_id: str) -> str:
    """Return the directory for a sink's data files, which depends on the property ``write.data.path``."""
    data = metadata.properties.get("write.data.path") or f"{metadata.location.rstrip('/')}/data"
    return f"{data.rstrip('/')}/{layout.root(sink, sink_id)}"


def metadata_path(metadata: TableMetadata, name: str) -> str:
    """Return the path for a new metadata file, which depends on the property ``write.metadata.path``."""
    base = metadata.properties.get("write.metadata.path") or f"{metadata.location.rstrip('/')}/metadata"
    return f"{base.rstrip('/')}/{name}"
