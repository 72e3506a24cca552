"""Define the paths of a sink's files in a table."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from twopc.sinks.iceberg.catalogs import without_sql_login
from twopc.sinks.lake import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.table.metadata import TableMetadata

#: The properties that distinguish two catalogs. Credentials and timeouts do not. Roles (``client.role-arn``) do not either,
#: because pyiceberg assumes them only for the storage.
_OF_A_CATALOG: Final = ("name", "warehouse", "prefix", "glue.id", "glue.region", "dynamodb.region", "client.region")

#: More such properties. They count only if they are set, so a catalog without them keeps its directories.
_OF_SOME_CATALOGS: Final = (
    "table-name",
    "glue.endpoint",
    "glue.profile-name",
    "dynamodb.profile-name",
    "client.profile-name",
    "gcp.bigquery.project-id",
    "gcp.bigquery.location",
    "header.polaris-realm",
)
#: The options of an SQL URI that lead to another server, database or schema. Timeouts, logins and certificates do not.
_OF_A_DATABASE: Final = frozenset({"host", "hostaddr", "port", "dbname", "database", "service", "unix_socket"})
#: A schema in PostgreSQL's option ``options``, whose other parts may be timeouts.
_SCHEMA: Final = re.compile(r"(?:-c\s*|--)search[_-]path\s*=((?:\\.|[^\s\\])*)", re.IGNORECASE)


def entrance(catalog: Mapping[str, Any], table: str) -> str:
    """Return a short id for the combination of catalog and name through which a sink reaches its table.

    If a table is registered in two catalogs or under two names, each registration has its own newest metadata. Each
    registration then has its own copy of the sink's record, with the same sink id. A copy does not include the
    commits that were made through the other registration.

    Args:
        catalog: all properties of the catalog, even those that the user has not passed to the sink.
        table: ``namespace.table``.
    """
    uri = urlsplit(without_sql_login(catalog), allow_fragments=False)
    said = [
        table,
        uri.scheme,
        uri.netloc.rpartition("@")[2],
        uri.path,
        *(catalog.get(name, "") for name in _OF_A_CATALOG),
        *_more(catalog),
        *_in_query(uri.query),
    ]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:8]


def _more(catalog: Mapping[str, Any]) -> Iterator[str]:
    found = {name.lower(): value for name, value in catalog.items()}  # headers have no case
    for name in _OF_SOME_CATALOGS:
        if value := found.get(name):
            yield f"{name}={value}"


def _in_query(query: str) -> Iterator[str]:
    """Yield the parts of an SQL URI's options that lead to a database or schema. The order of the options does not matter."""
    for name, value in sorted(parse_qsl(query)):
        if name in _OF_A_DATABASE:
            yield f"?{name}={value}"
        elif name == "options":
            yield from (f"?schema={schema}" for schema in _SCHEMA.findall(value))


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
