"""What is refused before anything is written: tables that are not what is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sinks.hbase import staging
from sinks.hbase.apply import MARKED
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sinks.hbase.sink import HBaseSink

_FOR_EVER: Final = {b"", b"FOREVER", b"2147483647"}


def require_usable(sink: HBaseSink, schemas: Mapping[str, Any]) -> None:
    """Check the tables' schemas, by name.

    Raises:
        ConfigurationError: names the table or family, and what to do.
    """
    for is_wrong, what in _objections(sink, schemas):
        if is_wrong:
            raise ConfigurationError(f"sink {sink.name!r}: {what}")


def _objections(sink: HBaseSink, schemas: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    yield sink.table not in schemas, f"there is no table {sink.table!r}: create it, or correct the name"
    families = _families(schemas[sink.table])
    for family in sorted({family for family, _ in sink.mapping.places}):
        name = family.decode()
        yield family not in families, f"table {sink.table!r} has no family {name!r}: add it, or correct the mapping"
        yield (
            sink.mapping.operation in MARKED
            and family == sink.mapping.places[0][0]
            and families[family] not in _FOR_EVER,
            (
                f"family {name!r} of {sink.table!r} has a TTL, so the marker of increments and appends would expire: name one "
                "without a TTL first in the mapping's cells"
            ),
        )
    if sink.staging_table not in schemas:
        return  # it is made with the take-over
    own = _families(schemas[sink.staging_table])
    for family in (staging.STATE, staging.DATA):
        name = family.decode()
        yield (
            family not in own,
            f"the sink's own table {sink.staging_table!r} has no family {name!r}: add it, with one version",
        )
        yield (
            own[family] not in _FOR_EVER,
            f"family {name!r} of {sink.staging_table!r} has a TTL: what is decided must not expire",
        )


def _families(schema: Any) -> dict[bytes, bytes]:
    """The families of a table and their TTL."""
    found: dict[bytes, bytes] = {}
    for family in schema.column_families:
        attributes = {pair.first: pair.second for pair in family.attributes}
        found[family.name] = attributes.get(b"TTL", b"")
    return found
