"""Define the paths of a sink's files in a table."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from twopc.sinks.lake import layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table.metadata import TableMetadata

#: The properties that distinguish two catalogs. Credentials and timeouts do not.
_OF_A_CATALOG: Final = ("name", "warehouse", "prefix", "glue.id", "glue.region", "dynamodb.region", "client.region")


def entrance(catalog: Mapping[str, str], table: str) -> str:
    """Return a short id for the combination of catalog and name through which a sink reaches its table.

    If a table is registered in two catalogs or under two names, each registration has its own newest metadata. Each
    registration then has its own copy of the sink's record, with the same sink id. A copy does not include the
    commits that were made through the other registration.
    """
    uri = urlsplit(str(catalog.get("uri", "")))
    said = [
        table,
        uri.scheme,
        uri.netloc.rpartition("@")[2],
        uri.path,
        *(catalog.get(name, "") for name in _OF_A_CATALOG),
    ]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:8]


def root(metadata: TableMetadata, sink: str, sink_id: str, through: str) -> str:
    """Return the directory for a sink's data files, which depends on the property ``write.data.path``.

    Only drivers with the same :func:`entrance` share the directory. If all drivers shared it, one driver's sweep would delete
    files that another driver has committed.
    """
    data = metadata.properties.get("write.data.path") or f"{metadata.location.rstrip('/')}/data"
    return f"{data.rstrip('/')}/{layout.root(sink, sink_id)}-{through}"


def metadata_path(metadata: TableMetadata, name: str) -> str:
    """Return the path for a new metadata file, which depends on the property ``write.metadata.path``."""
    base = metadata.properties.get("write.metadata.path") or f"{metadata.location.rstrip('/')}/metadata"
    return f"{base.rstrip('/')}/{name}"
