"""Collect the statistics that let readers skip a file. A bound must never be too narrow.

A missing bound is better than a wrong one.

If a file has bounds for only some columns, deltalake's Arrow reader treats a missing bound as null, and skips the file for every
filter on that column. A file therefore has bounds for all of its columns, or no bounds at all. The sink does not collect bounds
for struct fields, so a struct's bounds are empty. The reader treats an empty struct as unknown bounds.
"""

from __future__ import annotations

import decimal
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from twopc.sinks.delta.moments import date_text, numbers, time_text
from twopc.sinks.delta.objections import indexed_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMES: Final = "delta.dataSkippingStatsColumns"
_NAME: Final = r"\s*(?:`(?:[^`]|``)*`|[A-Za-z_][A-Za-z0-9_]*)\s*"
#: A list of columns that deltalake can parse. If it cannot parse the list, it reads bounds as if the table had no list.
_LIST: Final = re.compile(rf"\s*|{_NAME}(?:[.,]{_NAME})*")
#: Delta truncates longer strings.
_LONGEST: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"
#: Every JSON reader reads decimals with up to this many digits exactly.
_MOST_DIGITS: Final = 15
_MS_US: Final = 1_000
_LAST_US: Final = 253_402_300_799_999_000


class FileStats:
    """Collects one file's statistics. Only top-level columns have bounds. Fields of structs, lists and maps have no bounds.

    Args:
        stored: the file's columns.
        configuration: the table's properties, which may select the columns with statistics.
    """

    def __init__(self, stored: pa.Schema, configuration: Mapping[str, str]) -> None:
        flat = [field for field in stored if not pa.types.is_nested(field.type)]
        self._structs = [field.name for field in stored if pa.types.is_struct(field.type)]
        named = configuration.get(_NAMES)
        count = indexed_columns(configuration)
        assert count is not None  # a table with another value is rejected
        first = [] if named is not None and _LIST.fullmatch(named) else flat if count < 0 else flat[:count]
        wanted = {*_names(named or ""), *(field.name for field in first)}
        self._fields = [field for field in flat if field.name in wanted]
        self._rows = 0
        self._nulls = {field.name: 0 for field in self._fields}
        self._extremes: dict[str, tuple[Any, Any]] = {}
        self._unordered: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        """Add some of the file's rows to the statistics."""
        self._rows += rows.num_rows
        for field in self._fields:
            column = rows.column(field.name)
            self._nulls[field.name] += column.null_count
            if pa.types.is_binary(field.type):  # deltalake expects no bounds for binary columns
                continue
            if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
                self._unordered.add(field.name)  # Spark orders NaN above every number, but other readers do not
            extremes: Any = pc.min_max(numbers(column)).as_py()
            lowest, highest = extremes["min"], extremes["max"]
            if lowest is not None:
                before = self._extremes.get(field.name, (lowest, highest))
                self._extremes[field.name] = min(before[0], lowest), max(before[1], highest)

    def encode(self) -> str:
        """Encode the statistics for an ``add`` action."""
        least: dict[str, Any] = {name: {} for name in self._structs}
        greatest = dict(least)
        for field in self._fields:
            if field.name in self._extremes:
                low, high = self._extremes[field.name]
                least[field.name], greatest[field.name] = _lower(low, field.type), _upper(high, field.type)
        said: dict[str, Any] = {"numRecords": self._rows, "nullCount": self._nulls}
        if not self._unordered and None not in [*least.values(), *greatest.values()]:
            said |= {"minValues": least, "maxValues": greatest}
        return msgspec.json.encode(said).decode()


def _names(named: str) -> Iterator[str]:
    """Yield the names in a list of columns, which may be in backticks."""
    for part in re.findall(r"(?:`(?:[^`]|``)*`|[^,`])+", named):
        name = part.strip()
        yield name[1:-1].replace("``", "`") if name.startswith("`") else name


def _lower(value: Any, kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return _time(value // _MS_US * _MS_US, kind)
    if pa.types.is_string(kind):
        return value[:_LONGEST]
    return _bound(value, kind, zero=-0.0, rounding=decimal.ROUND_FLOOR)


def _upper(value: Any, kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        above = -(-value // _MS_US) * _MS_US
        return _time(value, kind, "microseconds") if above > _LAST_US else _time(above, kind)
    if pa.types.is_string(kind):
        kept = next((at for at in range(_LONGEST, len(value)) if value[at] != _LAST_CHARACTER), len(value))
        return value if len(value) <= _LONGEST or kept == len(value) else value[:kept] + _LAST_CHARACTER
    return _bound(value, kind, zero=0.0, rounding=decimal.ROUND_CEILING)


def _bound(value: Any, kind: Any, *, zero: float, rounding: str) -> Any:
    if pa.types.is_floating(kind):
        return None if value in {float("inf"), float("-inf")} else value or zero
    if pa.types.is_decimal(kind):
        return msgspec.Raw(format(_rounded(value, kind, rounding), "f").encode())
    return date_text(value) if pa.types.is_date(kind) else value


def _rounded(value: decimal.Decimal, kind: Any, rounding: str) -> decimal.Decimal:
    found = decimal.Context(prec=_MOST_DIGITS, rounding=rounding).plus(value)
    return (
        found if abs(found) < 10 ** (kind.precision - kind.scale) else value
    )  # no reader accepts more digits than the type allows


def _time(microseconds: int, kind: Any, precision: str = "milliseconds") -> str:
    return time_text(microseconds, precision=precision) + ("Z" if kind.tz else "")
