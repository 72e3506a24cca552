"""Find a table's unsupported features and settings. The error names the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pyiceberg.io import SCHEMA_TO_FILE_IO
from pyiceberg.schema import make_compatible_name
from pyiceberg.transforms import IdentityTransform, UnknownTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from twopc.sinks.iceberg.fit import children
from twopc.sinks.iceberg.properties import find_malformed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField

#: The format version that the sink writes.
FORMAT: Final = 2
_KNOWN: Final = (
    BinaryType, BooleanType, DateType, DecimalType, DoubleType, FixedType, FloatType, IntegerType, LongType, StringType,
    TimestampType, TimestamptzType, TimeType, UUIDType,
)  # fmt: skip
#: Each property with the only supported value, and the message for other values.
_PROPERTIES: Final = {
    "write.format.default": ("parquet", "the sink writes only Parquet files. Set this property to 'parquet'"),
    "write.py-location-provider.impl": (None, "the sink itself chooses the names of its files. Remove this property"),
    "write.location-provider.impl": (None, "the sink itself chooses the names of its files. Remove this property"),
    "encryption.key-id": (None, "the sink cannot encrypt files. Use another table"),
}
#: pyiceberg cuts off a location's path at these characters.
_CUT: Final = "#?"
_PLACES: Final = ("write.data.path", "write.metadata.path")


def find_objections(metadata: TableMetadata) -> Iterator[str]:
    """Yield a message for each unsupported feature or setting.

    Each message follows the words "table …", and tells the user what to do.
    """
    if metadata.format_version != FORMAT:
        yield f"has format version {metadata.format_version}, but the sink writes only version {FORMAT}. {_upgrade(metadata)}"
    for name, (honoured, why) in _PROPERTIES.items():
        value = metadata.properties.get(name)
        if value is not None and value.lower() != honoured:
            yield f"has {name}={value!r}, but {why}"
    yield from _objections_to_columns(metadata.schema())
    yield from _objections_to_places(metadata)
    yield from find_malformed(metadata)
    yield from _objections_to_partitioning(metadata.schema(), metadata.spec())


def _objections_to_partitioning(schema: Schema, spec: PartitionSpec) -> Iterator[str]:
    for part in spec.fields:
        source = _column(schema, part.source_id)
        if isinstance(part.transform, UnknownTransform):
            yield f"is partitioned by {part.transform}, which the sink does not support. Use another transform"
        elif source is None:
            yield (
                f"has the partition field {part.name!r}, whose source column was dropped. Readers could not open the "
                "manifests that pyiceberg would write for this field. Drop the field: ALTER TABLE … DROP PARTITION FIELD "
                f"`{part.name}`"
            )
        elif isinstance(source.field_type, UUIDType) and isinstance(part.transform, IdentityTransform):
            yield (
                f"is partitioned by the UUID column {source.name!r} without a transform. Iceberg for Java orders UUIDs "
                f"differently from pyiceberg, so Spark's queries would miss rows. Partition by bucket(n, {source.name}) "
                "instead"
            )


def _column(schema: Schema, field_id: int) -> NestedField | None:
    try:
        return schema.find_field(field_id)
    except ValueError:
        return None


def _objections_to_columns(schema: Schema) -> Iterator[str]:
    for field in schema.fields:
        for kind in _parts(field.field_type):
            if not isinstance(kind, _KNOWN):
                yield f"has the column {field.name!r} of type {kind}, which the sink cannot write. Use another type"
    for struct in _structs(schema.as_struct()):
        if alike := _alike(struct):
            yield (
                f"has columns whose names differ only in case, or map to the same name in Parquet: {alike}. Rename one of "
                "these columns"
            )


def _objections_to_places(metadata: TableMetadata) -> Iterator[str]:
    places = {"location": metadata.location, **{name: metadata.properties.get(name, "") for name in _PLACES}}
    for name, place in places.items():
        if set(place) & set(_CUT):
            why = "pyiceberg cuts off a path at '#' or '?', so files would overwrite each other. Use another location"
            yield f"has {name}={place!r}, but {why}"
    usual = urlsplit(metadata.location).scheme
    for name in _PLACES:
        scheme, place = urlsplit(places[name]).scheme, places[name]
        if place and not scheme and not place.startswith("/"):
            yield (
                f"has {name}={place!r}, which is a relative path, so each process could use a different directory. Set it to "
                "a URI or an absolute path"
            )
        elif scheme not in {"", usual, *SCHEMA_TO_FILE_IO}:
            yield (
                f"has {name}={place!r}, but pyiceberg does not support the scheme {scheme!r}. Set it to a URI that pyiceberg "
                "supports"
            )


def _alike(struct: StructType) -> str:
    """List field names that Spark or a Parquet file cannot tell apart.

    Names in Parquet files contain only letters, digits and underscores.
    """
    names = [make_compatible_name(field.name).lower() for field in struct.fields]
    return ", ".join(repr(one.name) for one, name in zip(struct.fields, names, strict=True) if names.count(name) > 1)


def _structs(kind: IcebergType) -> Iterator[StructType]:
    """Yield every struct in a type, including the type itself."""
    if isinstance(kind, StructType):
        yield kind
    for inner in children(kind):
        yield from _structs(inner.field_type)


def _upgrade(metadata: TableMetadata) -> str:
    if metadata.format_version < FORMAT:
        return "Upgrade the table: ALTER TABLE … SET TBLPROPERTIES ('format-version'='2')"
    return "Write to a table with format version 2"


def _parts(kind: IcebergType) -> Iterator[IcebergType]:
    inner = children(kind)
    if not inner and not isinstance(kind, StructType):
        yield kind
    for field in inner:
        yield from _parts(field.field_type)
