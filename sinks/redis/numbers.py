"""Convert numbers to command arguments, and reject the numbers that Redis would silently change.

Redis stores a score as a double. ``INCRBYFLOAT`` calculates with C's ``long double``, and keeps 17 decimals.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from twopc.errors import BadRecordError
from twopc.sinks.columns import numbers

if TYPE_CHECKING:
    from collections.abc import Callable

#: The digits after the decimal point that ``INCRBYFLOAT`` keeps.
_DECIMALS: Final = 17
#: The digits that a ``long double`` of 80 bits keeps (``LDBL_DIG``), and the integers that it represents exactly.
_DIGITS: Final = 18
_WHOLE: Final = 2**64
#: This precision is exact for every Arrow decimal.
_EXACT: Final = Context(prec=80)
#: If a number's text has at most this many characters and no exponent, Redis does not change the number.
_SHORT: Final = 15


def scores(rows: pa.RecordBatch, name: str) -> list[bytes]:
    """Convert a column of numbers, each of which a double must represent.

    A fraction such as 0.1 is accepted if it is the shortest text of its double.

    Raises:
        SchemaError: the column is missing, or does not contain numbers.
        BadRecordError: a value is null, not finite, or not a double.
    """
    return _encoded(rows, name, _objection_to_score)


def increments(rows: pa.RecordBatch, name: str) -> list[bytes]:
    """Convert a column of increments. A new counter must keep every digit of a decimal or an integer.

    Doubles may be rounded, because they are not exact anyway.

    Raises:
        SchemaError: the column is missing, or does not contain numbers.
        BadRecordError: a value is null or not finite, or a decimal or an integer has too many digits.
    """
    return _encoded(rows, name, _objection_to_increment)


def _objection_to_score(number: Decimal, name: str) -> str:
    score = float(number)
    if number == (int(score) if _is_whole(number) else Decimal(repr(score))):
        return ""
    return (
        f"Redis stores a score as a double, which would be {score!r}. If this score is good enough, cast the column in the "
        f"DataFrame: double({name}). Otherwise, store the number in the member, or use a smaller number as the score"
    )


def _objection_to_increment(number: Decimal, name: str) -> str:
    _, digits, exponent = _EXACT.normalize(number).as_tuple()
    assert isinstance(exponent, int)  # the number is finite
    if exponent < -_DECIMALS:
        return f"INCRBYFLOAT keeps only {_DECIMALS} digits after the decimal point. {_rounding(number, name)}"
    if len(digits) > _DIGITS and not (_is_whole(number) and number.copy_abs() <= _WHOLE):
        return f"INCRBYFLOAT calculates with only {_DIGITS} digits. {_rounding(number, name)}"
    return ""


def _rounding(number: Decimal, name: str) -> str:
    before = max(number.adjusted() + 1, 0)
    return (
        f"Round the column in the DataFrame: round({name}, {min(_DECIMALS, _DIGITS - before)}). If other numbers have more "
        f"digits before the decimal point, pass {_DIGITS} minus the largest such digit count as the second argument. If about 15 "
        f"digits are enough, you can instead cast the column: double({name})"
    )


def _encoded(rows: pa.RecordBatch, name: str, objection_to: Callable[[Decimal, str], str]) -> list[bytes]:
    words = numbers(rows, name)
    if _is_floating(rows, name):
        return words
    for row, word in enumerate(words):
        if len(word) > _SHORT or b"E" in word or b"e" in word:
            objection = objection_to(Decimal(word.decode()), name)
            if objection:
                raise BadRecordError(
                    f"column {name!r} contains {word.decode()} in row {row} of an Arrow batch of {len(words)} rows, but "
                    f"{objection}"
                )
    return words


def _is_whole(number: Decimal) -> bool:
    return number == number.to_integral_value()


def _is_floating(rows: pa.RecordBatch, name: str) -> bool:
    kind = rows.schema.field(name).type
    return pa.types.is_floating(kind.value_type if isinstance(kind, pa.DictionaryType) else kind)
