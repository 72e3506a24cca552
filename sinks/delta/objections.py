"""Find table features and settings that this sink does not support. The error names the first of them."""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twopc.sinks.delta.table import Definition

#: Features that do not affect an append, or that the checks below reject if the table really uses them.
_UNDERSTOOD: Final = {
    "appendOnly",
    "changeDataFeed",  # for an append, the added files themselves are the change feed
    "checkConstraints",
    "columnMapping",
    "deletionVectors",  # a new file contains no deleted rows, and so has no deletion vector
    "generatedColumns",
    "invariants",
    "timestampNtz",
}
#: The newest writer version that deltalake can write without a feature list.
_NEWEST_VERSION_WITHOUT_FEATURES: Final = 5
_VERSION_WITH_FEATURES: Final = 7
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_EXPIRY: Final = "delta.setTransactionRetentionDuration"
_CONSTRAINT: Final = "delta.constraints."
_INDEXED: Final = "delta.dataSkippingNumIndexedCols"
_DEFAULT_INDEXED: Final = 32
#: Column metadata that a writer must obey, and why the sink cannot obey it.
_COLUMN_RULES: Final = {
    "delta.generationExpression": "is generated from an expression that the sink cannot evaluate",
    "delta.identity.": "is an identity column, and the sink cannot generate identity values",
    "delta.invariants": "has an invariant that the sink cannot evaluate",
    "delta.typeChanges": "has undergone a type change, and the sink does not support type changes",
    "CURRENT_DEFAULT": "has a default value, which the sink cannot evaluate",
    "__CHAR_VARCHAR_TYPE_STRING": "is CHAR or VARCHAR, and the sink does not check the length limit",
}
_KNOWN_TYPES: Final = re.compile(
    r"byte|short|integer|long|float|double|string|binary|boolean|date|timestamp|timestamp_ntz|decimal\(\d+, ?\d+\)"
)
_PARTITION_TYPES: Final = re.compile(
    r"byte|short|integer|long|string|boolean|date|timestamp|timestamp_ntz|decimal\(\d+, ?\d+\)"
)
_UNIT_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 7 * 86_400_000,
}
_DEFAULT_RETENTION_MS: Final = 7 * _UNIT_MS["day"]
_LEAST_RETENTION_MS: Final = _UNIT_MS["hour"]


def find_objections(table: Definition) -> Iterator[str]:
    """Yield a message for each unsupported feature or setting.

    Each message follows the words "table …", and tells the user what to do.
    """
    yield from _protocol(table)
    yield from _configuration(table.configuration)
    for path, field in table.fields():
        yield from _field(path, field)
    by_name = {field["name"]: field["type"] for _, field in table.top_fields()}
    for name in table.partitions:
        kind = by_name.get(name)
        if not isinstance(kind, str) or not _PARTITION_TYPES.fullmatch(kind):
            yield (
                f"is partitioned by {name!r}, whose type {kind} the sink cannot write to Delta's log. Partition by another column"
            )
    if by_name and set(by_name) == set(table.partitions):
        yield "has only partition columns, but a Parquet file needs at least one other column. Add a column"


def find_malformed(configuration: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each property whose value tasks cannot use. Once a batch is decided, these properties do not matter."""
    if indexed_columns(configuration) is None:
        yield (
            f"has {_INDEXED}={configuration[_INDEXED]!r}, but it must be an integer of at least -1. Fix it: ALTER TABLE … "
            f"SET TBLPROPERTIES ('{_INDEXED}'='{_DEFAULT_INDEXED}')"
        )


def indexed_columns(configuration: Mapping[str, str]) -> int | None:
    """Return the number of columns with statistics in a file; -1 for all columns; None if the setting cannot be parsed."""
    with contextlib.suppress(ValueError):
        count = int(configuration.get(_INDEXED, _DEFAULT_INDEXED))
        return count if count >= -1 else None
    return None


def retention_ms(configuration: Mapping[str, str]) -> float | None:
    """Return how long VACUUM keeps a file that is not part of any version, in ms.

    Return None if the setting cannot be parsed.
    """
    value = configuration.get(_RETENTION)
    return _DEFAULT_RETENTION_MS if value is None else _interval_ms(value)


def _protocol(table: Definition) -> Iterator[str]:
    if table.writer_version < _VERSION_WITH_FEATURES:
        if table.writer_version > _NEWEST_VERSION_WITHOUT_FEATURES:
            yield (
                f"has writer version {table.writer_version}, which includes identity columns. The sink supports "
                f"versions 1 to {_NEWEST_VERSION_WITHOUT_FEATURES}. It supports version {_VERSION_WITH_FEATURES} only if it "
                "supports all of the table's features. Use another table"
            )
    elif table.writer_version > _VERSION_WITH_FEATURES:
        yield f"has writer version {table.writer_version}, which the sink does not support. Use another table"
    if strange := sorted(set(table.features) - _UNDERSTOOD):
        yield (
            f"has features that the sink does not support: {', '.join(map(repr, strange))}. Drop them "
            "(ALTER TABLE … DROP FEATURE … TRUNCATE HISTORY), or use another table"
        )


def _configuration(configuration: Mapping[str, str]) -> Iterator[str]:
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        yield (
            "uses column mapping, so the column names in its files differ from those in the table. The sink does not support "
            "column mapping. Use a table without it"
        )
    if _EXPIRY in configuration:
        yield (
            f"has {_EXPIRY}={configuration[_EXPIRY]!r}, which would let the sink's record of committed batches expire. "
            f"Remove this property: ALTER TABLE … UNSET TBLPROPERTIES ('{_EXPIRY}')"
        )
    for name, condition in configuration.items():
        if name.startswith(_CONSTRAINT):
            yield (
                f"has the constraint {name.removeprefix(_CONSTRAINT)!r} ({condition}), which the sink cannot evaluate. "
                "Drop the constraint, and filter the rows in the query"
            )
    found = retention_ms(configuration)
    if found is None:
        yield (
            f"has {_RETENTION}={configuration[_RETENTION]!r}, which the sink cannot parse. Set it to an interval, such as "
            "'interval 7 days'"
        )
    elif found < _LEAST_RETENTION_MS:
        yield (
            f"has {_RETENTION}={configuration[_RETENTION]!r}, so VACUUM may delete a batch's files before they are committed. "
            "Increase this setting, preferably to 7 days"
        )


def _field(path: str, field: dict[str, Any]) -> Iterator[str]:
    for rule, why in _COLUMN_RULES.items():
        if any(key.startswith(rule) for key in field.get("metadata", {})):
            yield f"has the column {path!r}, which {why}. Use a table without this column"
    kind = field["type"]
    if isinstance(kind, str) and not _KNOWN_TYPES.fullmatch(kind):
        yield f"has the column {path!r} of type {kind}, which the sink cannot write. Use another type"


def _interval_ms(text: str) -> float | None:
    """Parse a Spark interval, such as ``interval 1 week 2 days``; return its length in ms, or None if it is not valid."""
    words = text.lower().replace("interval", " ").split()
    if not words or len(words) % 2:
        return None
    total = 0.0
    for number, unit in zip(words[::2], words[1::2], strict=True):
        per = _UNIT_MS.get(unit.removesuffix("s"))
        try:
            total += float(number) * per  # type: ignore[operator]  # None raises TypeError
        except (TypeError, ValueError):
            return None
    return total if math.isfinite(total) else None
