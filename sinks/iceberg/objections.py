"""What a table may have that this sink does not understand. The sink refuses such a table by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyiceberg.transforms import UnknownTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType

_FORMAT: Final = 2
_KNOWN: Final = (
    BinaryType, BooleanType, DateType, DecimalType, DoubleType, FixedType, FloatType, IntegerType, LongType, StringType,
    TimestampType, TimestamptzType, TimeType, UUIDType,
)  # fmt: skip
#: Properties with another value than the one that the sink honours.
_PROPERTIES: Final = {
    "write.format.default": ("parquet", "the sink writes Parquet. Set it to 'parquet'"),
    "write.py-location-provider.impl": (None, "the sink chooses its files' names itself. Remove it"),
    "write.location-provider.impl": (None, "the sink chooses its files' names itself. Remove it"),
    "encryption.key-id": (None, "the sink cannot encrypt files"),
}


def find_objections(metadata: TableMetadata) -> Iterator[str]:
    """Say what is not supported, and what to do; each text continues "table … "."""
    if metadata.format_version != _FORMAT:
        yield f"has format version {metadata.format_version}, and the sink writes version {_FORMAT} only. {_upgrade(metadata)}"
    for name, (honoured, why) in _PROPERTIES.items():
        value = metadata.properties.get(name)
        if value is not None and value.lower() != honoured:
            yield f"has {name}={value!r}, but {why}"
    schema = metadata.schema()
    for field in schema.fields:
        for kind in _parts(field.field_type):
            if not isinstance(kind, _KNOWN):
                yield f"has the column {field.name!r} with type {kind}, which the sink cannot write. Use another type"
    names = [field.name.lower() for field in schema.fields]
    if len(set(names)) < len(names):
        yield "has columns whose names differ only in case. Rename one of them"
    for part in metadata.spec().fields:
        if isinstance(part.transform, UnknownTransform):
            yield f"is partitioned by {part.transform}, which the sink does not know. Use another transform"


def _upgrade(metadata: TableMetadata) -> str:
    if metadata.format_version < _FORMAT:
        return "Upgrade it: ALTER TABLE … SET TBLPROPERTIES ('format-version'='2')"
    return "Write to a table with version 2"


def _parts(kind: IcebergType) -> Iterator[IcebergType]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _parts(field.field_type)
    elif isinstance(kind, ListType):
        yield from _parts(kind.element_type)
    elif isinstance(kind, MapType):
        yield from _parts(kind.key_type)
        yield from _parts(kind.value_type)
    else:
        yield kind
