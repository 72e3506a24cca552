"""Checks before anything is written: the tables must be there, with the families and settings that the sink needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sinks.hbase import staging
from sinks.hbase.apply import MARKED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sinks.hbase.settings import HBaseSettings

_FOR_EVER: Final = {b"", b"FOREVER", b"2147483647"}


def objections(settings: HBaseSettings, schemas: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """Each thing that may be wrong with the tables, and what to do. Stop at the first that is: the later ones rely on it."""
    yield settings.table not in schemas, f"there is no table {settings.table!r}: create it, or correct the name"
    families = _families(schemas[settings.table])
    for family in sorted({family for family, _ in settings.mapping.places}):
        name = family.decode()
        yield family not in families, f"table {settings.table!r} has no family {name!r}: add it, or correct the mapping"
        yield (
            settings.mapping.operation in MARKED
            and family == settings.mapping.places[0][0]
            and families[family] not in _FOR_EVER,
            (
                f"family {name!r} of {settings.table!r} has a TTL, so its markers would expire and rows could be "
                "applied twice: name a family without a TTL first in the mapping's cells"
            ),
        )
    if settings.staging_table not in schemas:
        return  # the first driver creates it
    own = _families(schemas[settings.staging_table])
    for family in (staging.STATE, staging.DATA):
        name = family.decode()
        yield (
            family not in own,
            f"the sink's own table {settings.staging_table!r} has no family {name!r}: add it, with one version",
        )
        yield (
            own[family] not in _FOR_EVER,
            f"family {name!r} of {settings.staging_table!r} has a TTL, so decided rows could expire: remove the TTL",
        )


def _families(schema: Any) -> dict[bytes, bytes]:
    """The families of a table, with their TTL."""
    found: dict[bytes, bytes] = {}
    for family in schema.column_families:
        attributes = {pair.first: pair.second for pair in family.attributes}
        found[family.name] = attributes.get(b"TTL", b"")
    return found
