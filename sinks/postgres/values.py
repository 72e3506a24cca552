"""Find values that a column can never store. Each check inspects a column's extremes, or runs one vectorized test.

A check yields the reason and a mask of the bad values. If all rows are good, the check yields nothing. A check accepts
all values that PostgreSQL's input function accepts. If only the server can judge a value, the server checks it when the
task stages the row.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from twopc.sinks.postgres.arrow_text import texts
from twopc.sinks.years import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twopc.sinks.postgres.target import ColumnType

INTEGERS: Final = {"int2": 16, "int4": 32, "int8": 64}
_UUID: Final = r"^(?:(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}|\{(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\})$"
#: This precision is exact for every numeric(p,s), because p and s are at most 1000.
_EXACT: Final = Context(prec=2_100)
_ESCAPED_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Problem(NamedTuple):
    """The values that a column cannot store.

    Attributes:
        mask: true for each bad value.
        reason: the end of the sentence "column x contains …".
    """

    mask: Any
    reason: str


def out_of_integers(column: pa.Array[Any], target: ColumnType) -> Iterator[Problem]:
    """Find integers beyond the column's width."""
    highest = 2 ** (INTEGERS[target.kind] - 1) - 1
    yield from _outside(column, -highest - 1, highest, f"a number that {target.sql} cannot store")


def out_of_numeric(column: pa.Array[Any], target: ColumnType) -> Iterator[Problem]:
    """Find numbers that, rounded to the column's scale, have too many digits before the decimal point."""
    if target.precision is None:
        return
    half = Decimal(5).scaleb(-target.scale - 1)
    beyond = _EXACT.subtract(
        Decimal(1).scaleb(target.precision - target.scale), half
    )  # PostgreSQL rounds this number up to one digit too many

    def is_bad(value: int | Decimal) -> bool:
        return Decimal(value).copy_abs() >= beyond

    extremes: Any = pc.min_max(column).as_py()
    if extremes["min"] is not None and any(map(is_bad, extremes.values())):
        yield from _where(column, is_bad, f"a number that {target.sql} cannot store")


def out_of_float4(column: pa.Array[Any], target: ColumnType) -> Iterator[Problem]:
    """Find doubles that become infinite or zero when they are stored as ``real``. Infinities and NaN stay unchanged."""
    if target.kind != "float4" or not pa.types.is_float64(column.type):
        return
    narrow: Any = column.cast(pa.float32()).cast(pa.float64())
    if narrow.equals(column):
        return

    lost = [
        before is not None and ((math.isinf(after) and not math.isinf(before)) or (after == 0 and before != 0))
        for before, after in zip(column.to_pylist(), narrow.to_pylist(), strict=True)
    ]
    if any(lost):
        yield Problem(pa.array(lost), "a number that is too large or too small for real")


def not_text(column: pa.Array[Any], _: ColumnType) -> Iterator[Problem]:
    """Find strings with a NUL character or invalid UTF-8, which Spark strings may contain."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        yield from _where(column.cast(_bytes_of(column.type)), _is_not_utf8, "bytes that are not UTF-8")
        return
    yield from _matching(
        pc.match_substring(column, "\0"), "a NUL character (0x00), which PostgreSQL cannot store: replace it"
    )


def too_long(column: Any, target: ColumnType) -> Iterator[Problem]:
    """Find strings with more characters than the column allows. PostgreSQL cuts off only surplus spaces."""
    if target.length is None or (pc.max(pc.utf8_length(column)).as_py() or 0) <= target.length:
        return
    limit = target.length
    reason = f"a string with more than {limit} characters, but the column is {target.sql}"
    yield from _where(column, lambda value: len(value.rstrip(" ")) > limit, reason)


def not_uuid(column: pa.Array[Any], _: ColumnType) -> Iterator[Problem]:
    """Find strings that PostgreSQL does not accept as a UUID."""
    yield from _matching(pc.invert(pc.match_substring_regex(column, _UUID)), "a string that is not a UUID")


def not_label(column: pa.Array[Any], target: ColumnType) -> Iterator[Problem]:
    """Find strings that are not one of the enumeration's labels."""
    unknown = pc.is_null(pc.index_in(column, value_set=texts(target.labels).cast(column.type)))
    shown = ", ".join(map(repr, target.labels[:10])) + (", …" if len(target.labels) > 10 else "")  # noqa: PLR2004
    yield from _matching(
        pc.and_(unknown, pc.is_valid(column)), f"a string that is not a label of {target.sql} ({shown})"
    )


def not_json(column: pa.Array[Any], target: ColumnType) -> Iterator[Problem]:
    """Find strings that are not JSON. ``jsonb`` cannot store a NUL character or half of a surrogate pair either."""
    is_bad = _is_no_jsonb if target.kind == "jsonb" else _is_no_json
    yield from _where(column, is_bad, f"a string that {target.kind} cannot store")


def out_of_calendar(column: pa.Array[Any], _: ColumnType) -> Iterator[Problem]:
    """Find dates and times outside the years 1 to 9999, the range that Spark and all clients support."""
    numbers, years = counted(column)
    yield from _outside(numbers, years.start, years.stop - 1, "a date outside the years 1 to 9999")


def _outside(column: pa.Array[Any], lowest: int, highest: int, reason: str) -> Iterator[Problem]:
    # Python compares the extremes, because an Arrow scalar would import pandas.
    extremes: Any = pc.min_max(column).as_py()
    if extremes["min"] is not None and (extremes["min"] < lowest or extremes["max"] > highest):
        yield from _where(column, lambda value: not lowest <= value <= highest, reason)


def _matching(mask: pa.Array[Any], reason: str) -> Iterator[Problem]:
    if pc.any(mask, min_count=0).as_py():
        yield Problem(mask, reason)


def _where(column: pa.Array[Any], is_bad: Callable[[Any], bool], reason: str) -> Iterator[Problem]:
    found = [value is not None and is_bad(value) for value in column.to_pylist()]
    if any(found):
        yield Problem(pa.array(found), reason)


def _bytes_of(kind: pa.DataType) -> pa.DataType:
    return pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()


def _is_not_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return True
    return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


#: The decoder returns every number as text, so that Python neither rounds it nor rejects its length.
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)


def _is_no_json(value: str) -> bool:
    try:
        _DECODER.decode(value)
    except RecursionError:
        return False  # only the server knows its own depth limit
    except ValueError:
        return True
    return False


def _is_no_jsonb(value: str) -> bool:
    if _is_no_json(value):
        return True
    if "\\u" not in value:
        return False
    try:
        shown = json.dumps(_DECODER.decode(value), ensure_ascii=False)
        shown.encode()
    except RecursionError:
        return False
    except UnicodeEncodeError:
        return True
    return _ESCAPED_NUL.search(shown) is not None
