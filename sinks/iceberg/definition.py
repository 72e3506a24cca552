"""Identify the schema and the partitioning with which files were written.

The ids alone do not identify them. Maintenance (``clean_expired_metadata``) removes definitions that no snapshot uses. Iceberg
then reuses the highest removed id for the next definition. If files were added with such an id, readers would derive their
partition values from the wrong definition, and filters would skip rows.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from twopc.sinks.iceberg.fit import children

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField


class Definition(NamedTuple):
    """A schema and a partitioning.

    Attributes:
        schema_id: the id of the schema.
        spec_id: the id of the partitioning.
        fingerprint: a hash of their content; empty in a handle that an earlier version of the sink has stored.
    """

    schema_id: int
    spec_id: int
    fingerprint: str = ""

    def is_same(self, other: Definition) -> bool:
        """Return whether both are the same definition. An empty fingerprint matches any other."""
        fingerprints = {self.fingerprint, other.fingerprint}
        return self[:2] == other[:2] and (len(fingerprints) == 1 or "" in fingerprints)


def current(metadata: TableMetadata) -> Definition:
    """Return the table's current definition."""
    schema, spec = metadata.schema(), metadata.spec()
    return Definition(schema.schema_id, spec.spec_id, _fingerprint(schema, spec))


def find(metadata: TableMetadata, wanted: Definition) -> tuple[Schema, PartitionSpec] | None:
    """Return a definition's content. Return None if maintenance has removed it, even if the table has used its ids again."""
    schema, spec = metadata.schema_by_id(wanted.schema_id), metadata.specs().get(wanted.spec_id)
    if schema is None or spec is None:
        return None
    found = Definition(wanted.schema_id, wanted.spec_id, _fingerprint(schema, spec))
    return (schema, spec) if found.is_same(wanted) else None


def _fingerprint(schema: Schema, spec: PartitionSpec) -> str:
    """Hash what readers need. Names do not matter, because readers find columns and partition values by their ids."""
    columns = [_field(field) for field in schema.fields]
    partitions = [[field.source_id, field.field_id, str(field.transform)] for field in spec.fields]
    return hashlib.sha256(msgspec.json.encode([columns, partitions])).hexdigest()[:32]


def _field(field: NestedField) -> list[Any]:
    return [field.field_id, field.required, _type(field.field_type)]


def _type(kind: IcebergType) -> Any:
    inner = [_field(field) for field in children(kind)]
    return [type(kind).__name__, *inner] if inner else str(kind)
