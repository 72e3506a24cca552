"""Format dates and times for a Delta table's log. The inputs are numbers of days or microseconds since 1970."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import pyarrow as pa

_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the Delta time zone is UTC


def numbers(values: Any) -> Any:
    """Convert dates and times to numbers; return other values unchanged.

    The sink uses numbers because Python's time objects need a time zone database.
    """
    if pa.types.is_date(values.type):
        return values.cast(pa.int32())
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values


def date_text(days: int) -> str:
    """Format a date, given as the number of days since 1970."""
    return (_EPOCH + dt.timedelta(days=days)).date().isoformat()


def time_text(microseconds: int, *, separator: str = "T", precision: str = "microseconds") -> str:
    """Format a time without a zone, given as the number of microseconds since 1970."""
    return (_EPOCH + dt.timedelta(microseconds=microseconds)).isoformat(separator, precision)
