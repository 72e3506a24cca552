"""Decide whether staged values stay the same if a column's type has changed since they were staged.

When a column's type is altered, ``USING`` may convert the values that are already in the table. PostgreSQL's own casts, which
an INSERT uses, may convert the staged values differently. So the sink accepts a changed type only if no value changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.sinks.postgres.values import INTEGERS

if TYPE_CHECKING:
    from twopc.sinks.postgres.target import ColumnType

#: The largest number of digits of each integer type.
_DIGITS: Final = {kind: len(str(2 ** (bits - 1))) for kind, bits in INTEGERS.items()}
_TEXTS: Final = frozenset({"varchar", "text"})


def keeps_values(staged: ColumnType, now: ColumnType) -> bool:
    """Return whether a cast from ``staged`` to ``now`` leaves every value the same."""
    if staged.sql == now.sql:
        return True
    if staged.is_array or now.is_array:
        return False
    if staged.kind in _TEXTS and now.kind in _TEXTS:
        return now.length is None or (staged.length is not None and staged.length <= now.length)
    if staged.kind in _DIGITS and now.kind in _DIGITS:
        return _DIGITS[staged.kind] <= _DIGITS[now.kind]
    if now.kind == "numeric":
        return _fits_numeric(staged, now)
    return (staged.kind, now.kind) == ("float4", "float8")


def _fits_numeric(staged: ColumnType, now: ColumnType) -> bool:
    if staged.kind not in {*_DIGITS, "numeric"}:
        return False
    if now.precision is None:
        return True
    digits = _DIGITS.get(staged.kind, staged.precision)
    if digits is None:
        return False
    return staged.scale <= now.scale and digits - staged.scale <= now.precision - now.scale
