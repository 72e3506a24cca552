"""Read a table's definition, which consists of the columns, partitioning and features in one version."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake import DeltaTable


@dataclass(frozen=True)
class Definition:
    """Describes one version of a table.

    Attributes:
        id: the table id, which changes only if the table is recreated.
        schema_json: the table's columns, in Delta's JSON format, with sorted keys.
        partitions: the table's partition columns.
        configuration: the table's properties.
        writer_version: the protocol version that a writer must support.
        features: the features that a reader or a writer must support.
        schema: the table's columns, as an Arrow schema.
    """

    id: str
    schema_json: str
    partitions: tuple[str, ...]
    configuration: Mapping[str, str]
    writer_version: int
    features: tuple[str, ...]
    schema: pa.Schema = field(compare=False)

    @cached_property
    def fingerprint(self) -> str:
        """A short string that changes if the columns or the partitioning change."""
        said = msgspec.json.encode([self.schema_json, self.partitions])
        return hashlib.sha256(said).hexdigest()[:32]

    @property
    def stored(self) -> pa.Schema:
        """The columns in a data file. These are all columns except the partition columns, whose values are in the log."""
        return pa.schema([column for column in self.schema if column.name not in self.partitions])

    def top_fields(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each column's name and JSON definition."""
        for one in msgspec.json.decode(self.schema_json)["fields"]:
            yield one["name"], one

    def fields(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the path and JSON definition of each column and of each nested field."""
        for name, one in self.top_fields():
            yield from _parts(name, one)


def definition_of(table: DeltaTable) -> Definition:
    """Read the definition of a loaded table."""
    metadata, protocol, schema = table.metadata(), table.protocol(), table.schema()
    arrow: Any = schema.to_arrow()  # another library's object, which pa.schema reads through the Arrow interface
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    return Definition(
        id=str(metadata.id),
        schema_json=_sorted(schema.to_json()),
        partitions=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
        writer_version=protocol.min_writer_version,
        features=tuple(sorted(features)),
        schema=pa.schema(arrow),
    )


def _sorted(encoded: str) -> str:
    """Sort the keys of JSON objects, because deltalake orders a column's metadata differently each time it loads a table."""
    return msgspec.json.encode(msgspec.json.decode(encoded), order="sorted").decode()


def _parts(path: str, one: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, one
    kind = one["type"]
    if isinstance(kind, dict):
        for inner in kind.get("fields", ()):
            yield from _parts(f"{path}.{inner['name']}", inner)
        for part, key in (("element", "elementType"), ("key", "keyType"), ("value", "valueType")):
            if key in kind:
                yield from _parts(f"{path}.{part}", {"type": kind[key]})
