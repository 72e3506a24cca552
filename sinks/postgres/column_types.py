"""Define which Arrow types a PostgreSQL column accepts, how to write the values, and which values never fit.

The sink writes a value as text. From this text, the PostgreSQL input function creates the same value that ``INSERT`` would
store. If PostgreSQL would have to guess (for example, a time zone or a double's digits), the sink rejects the column, and the
query must cast it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from twopc.sinks.postgres import values
from twopc.sinks.postgres.arrow_text import from_zero, hexadecimal, joined, number, replaced, text, with_nulls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twopc.sinks.postgres.target import ColumnType
    from twopc.sinks.postgres.values import Problem

    Texts = pa.Array[Any]
    Check = Callable[[pa.Array[Any], ColumnType], Iterator[Problem]]

_DAY_US: Final = 86_400_000_000
_SECOND_US: Final = 1_000_000
_FLOATS: Final = {"float4": pa.float32(), "float8": pa.float64()}


@dataclass(frozen=True)
class Rule:
    """A rule for writing values of certain Arrow types to certain kinds of columns.

    Attributes:
        fits: tells whether the rule covers an Arrow type.
        kinds: see :attr:`ColumnType.kind`.
        write: converts each value to text.
        checks: functions that find values that the column can never store.
    """

    fits: Callable[[Any], bool]
    kinds: frozenset[str]
    write: Callable[[pa.Array[Any], ColumnType], Texts]
    checks: tuple[Check, ...] = ()


def rule_for(kind: Any, target: ColumnType) -> Rule | None:
    """Find the rule for an Arrow type and a column. Return None if the column does not accept the type."""
    if target.is_array != is_list(kind):
        return None
    element = kind.value_type if is_list(kind) else kind
    return next((rule for rule in _RULES if rule.fits(element) and target.kind in rule.kinds), None)


def is_list(kind: Any) -> bool:
    """Return whether the type is one of Arrow's list types."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def advice(target: ColumnType) -> str:
    """Say which types the column accepts, in Spark's terms, and what the query must do with other types."""
    for kinds, wanted in _WANTED:
        if target.kind in kinds:
            wanted = f"array<{wanted}>" if target.is_array else wanted  # noqa: PLW2901 - the type of the whole array
            return f"A column of this type accepts {wanted}: cast or convert the DataFrame's column"
    return (
        "The sink does not support this type: omit the column, or write to another table with a text or jsonb column, and let "
        "the database convert the values"
    )


def array_elements(column: Any) -> pa.Array[Any]:
    """Return the elements of all arrays, one array after another. If the column is a slice, return only its own elements."""
    first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    found: pa.Array[Any] = column.values.slice(first, end - first)
    return found


def array_text(column: Any, elements: Texts) -> Texts:
    """Build each array's text from the texts of its elements, which :func:`array_elements` returns."""
    quoted = joined(text('"'), replaced(elements, (("\\", "\\\\"), ('"', '\\"'))), text('"'))
    quoted = pc.coalesce(quoted, text("NULL"))
    kind = pa.LargeListArray if pa.types.is_large_list(column.type) else pa.ListArray
    lists = kind.from_arrays(from_zero(column.offsets), quoted)
    return with_nulls_of(column, joined(text("{"), pc.binary_join(lists, text(",")), text("}")))


def _plain(column: pa.Array[Any], _: ColumnType) -> Texts:
    return column.cast(pa.string())


def _float(column: pa.Array[Any], target: ColumnType) -> Texts:
    # First cast to the column's width, as PostgreSQL does. The shortest decimal text of a double may round to a different
    # float4 than the double itself does. The shortest decimal text of a float, read as a float8, is a different number.
    return column.cast(_FLOATS[target.kind]).cast(pa.string())


def _bytes(column: pa.Array[Any], _: ColumnType) -> Texts:
    return joined(text("\\x"), hexadecimal(column))


def _instant(column: pa.Array[Any], _: ColumnType) -> Texts:
    return column.cast(pa.timestamp("us", "UTC")).cast(pa.string())


def _interval(column: pa.Array[Any], _: ColumnType) -> Texts:
    """Write an interval in Spark's format. Days are separate from hours, because PostgreSQL stores them separately."""
    left = column.cast(pa.duration("us")).cast(pa.int64())
    parts: list[Any] = []
    for size, unit in ((_DAY_US, " days "), (_SECOND_US, " seconds "), (1, " microseconds")):
        whole = pc.divide(left, number(size))
        left = pc.subtract(left, pc.multiply(whole, number(size)))
        parts += whole.cast(pa.string()), text(unit)
    return joined(*parts)


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_bytes(kind: Any) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_instant(kind: Any) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit != "ns"


def _is_wall_clock(kind: Any) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns"


def _is_whole(kind: Any) -> bool:
    return pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)


def _is_exact(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_decimal(kind)


def _rules() -> Iterator[Rule]:
    integers = frozenset(values.INTEGERS)
    floats = frozenset(_FLOATS)
    yield Rule(pa.types.is_boolean, frozenset({"bool"}), _plain)
    yield Rule(_is_whole, integers, _plain, (values.out_of_integers,))
    yield Rule(_is_exact, frozenset({"numeric"}), _plain, (values.out_of_numeric,))
    yield Rule(_is_exact, floats, _plain)
    yield Rule(pa.types.is_floating, floats, _float, (values.out_of_float4,))
    yield Rule(_is_text, frozenset({"text", "citext", *_CHECKED_BY_THE_SERVER}), _plain, (values.not_text,))
    yield Rule(_is_text, frozenset({"varchar", "bpchar"}), _plain, (values.not_text, values.too_long))
    yield Rule(_is_text, frozenset({"uuid"}), _plain, (values.not_text, values.not_uuid))
    yield Rule(_is_text, frozenset({"enum"}), _plain, (values.not_text, values.not_label))
    yield Rule(_is_text, frozenset({"json", "jsonb"}), _plain, (values.not_text, values.not_json))
    yield Rule(_is_bytes, frozenset({"bytea"}), _bytes)
    yield Rule(pa.types.is_date, frozenset({"date", "timestamp"}), _plain, (values.out_of_calendar,))
    yield Rule(_is_instant, frozenset({"timestamptz"}), _instant, (values.out_of_calendar,))
    yield Rule(_is_wall_clock, frozenset({"timestamp"}), _plain, (values.out_of_calendar,))
    yield Rule(pa.types.is_duration, frozenset({"interval"}), _interval)


#: Only PostgreSQL knows which values these types accept. The server checks each value when a task stages it.
_CHECKED_BY_THE_SERVER: Final = ("inet", "cidr", "macaddr", "macaddr8")
#: The types that a column accepts, in Spark's terms.
_WANTED: Final[Sequence[tuple[frozenset[str], str]]] = (
    (frozenset({"bool"}), "boolean"),
    (frozenset(values.INTEGERS), "tinyint, smallint, int, bigint, and decimal with scale 0"),
    (frozenset({"numeric"}), "decimal and integers"),
    (frozenset(_FLOATS), "float, double, decimal, and integers"),
    (frozenset({"json", "jsonb"}), "a string that contains JSON, such as the result of to_json"),
    (frozenset({"text", "citext", "varchar", "bpchar", "uuid", "enum", *_CHECKED_BY_THE_SERVER}), "string"),
    (frozenset({"bytea"}), "binary"),
    (frozenset({"date"}), "date"),
    (frozenset({"timestamptz"}), "timestamp"),
    (frozenset({"timestamp"}), "timestamp_ntz and date"),
    (frozenset({"interval"}), "a day-time interval"),
)
_RULES: Final = tuple(_rules())
