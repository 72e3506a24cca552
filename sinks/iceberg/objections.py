"""What a table may have that this sink does not understand. The sink refuses such a table by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyiceberg.schema import make_compatible_name
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

    from pyiceberg.schema import Schema
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
#: Where pyiceberg's parser of locations ends a path.
_CUT: Final = "#?"
_PLACES: Final = ("write.data.path", "write.metadata.path")


def find_objections(metadata: TableMetadata) -> Iterator[str]:
    """Say what is not supported, and what to do; each text continues "table … "."""
    if metadata.format_version != _FORMAT:
        yield f"has format version {metadata.format_version}, and the sink writes version {_FORMAT} only. {_upgrade(metadata)}"
    for name, (honoured, why) in _PROPERTIES.items():
        value = metadata.properties.get(name)
        if value is not None and value.lower() != honoured:
            yield f"has {name}={value!r}, but {why}"
    yield from _objections_to_columns(metadata.schema())
    yield from _objections_to_places(metadata)
    for part in metadata.spec().fields:
        if isinstance(part.transform, UnknownTransform):
            yield f"is partitioned by {part.transform}, which the sink does not know. Use another transform"


def _objections_to_columns(schema: Schema) -> Iterator[str]:
    for field in schema.fields:
        for kind in _parts(field.field_type):
            if not isinstance(kind, _KNOWN):
                yield f"has the column {field.name!r} with type {kind}, which the sink cannot write. Use another type"
    for struct in _structs(schema.as_struct()):
        if alike := _alike(struct):
            yield f"has columns whose names differ only in case, or are alike in Parquet: {alike}. Rename one of them"


def _objections_to_places(metadata: TableMetadata) -> Iterator[str]:
    places = {"location": metadata.location, **{name: metadata.properties.get(name, "") for name in _PLACES}}
    for name, place in places.items():
        if set(place) & set(_CUT):
            why = "pyiceberg cuts a path at '#' and '?', so that files overwrite each other. Use another place"
            yield f"has {name}={place!r}, but {why}"


def _alike(struct: StructType) -> str:
    """The names that are one name to Spark, or in a Parquet file, where a name has only letters, digits and underscores."""
    names = [make_compatible_name(field.name).lower() for field in struct.fields]
    return ", ".join(repr(one.name) for one, name in zip(struct.fields, names, strict=True) if names.count(name) > 1)


def _structs(kind: IcebergType) -> Iterator[StructType]:
    """A struct and all that are within it."""
    if isinstance(kind, StructType):
        yield kind
    for inner in _children(kind):
        yield from _structs(inner)


def _children(kind: IcebergType) -> list[IcebergType]:
    if isinstance(kind, StructType):
        return [field.field_type for field in kind.fields]
    if isinstance(kind, ListType):
        return [kind.element_type]
    return [kind.key_type, kind.value_type] if isinstance(kind, MapType) else []


def _upgrade(metadata: TableMetadata) -> str:
    if metadata.format_version < _FORMAT:
        return "Upgrade it: ALTER TABLE … SET TBLPROPERTIES ('format-version'='2')"
    return "Write to a table with version 2"


def _parts(kind: IcebergType) -> Iterator[IcebergType]:
    children = _children(kind)
    if not children and not isinstance(kind, StructType):
        yield kind
    for inner in children:
        yield from _parts(inner)
