"""Find dates and times outside the years 1 to 9999, the range that Spark and all clients support.

Python supports no other dates, and Arrow's text keeps only 16 bits of the year. Error messages therefore show the number of
units since 1970-01-01.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

#: The days from 0001-01-01 to 9999-12-31.
_DAYS: Final = range(-719_162, 2_932_897)
#: The name of each of Arrow's time units, and the number of these units in a day.
_UNITS: Final = {
    "s": ("seconds", 86_400),
    "ms": ("milliseconds", 86_400_000),
    "us": ("microseconds", 86_400_000_000),
    "ns": ("nanoseconds", 86_400_000_000_000),
}


def counted(column: Any) -> tuple[Any, range]:
    """Convert dates or timestamps to integers. Return the integers, and the range that stands for the years 1 to 9999."""
    if pa.types.is_date(column.type):
        return column.cast(pa.date32()).cast(pa.int32()), _DAYS
    _, per_day = _UNITS[column.type.unit]
    return column.cast(pa.int64()), range(_DAYS.start * per_day, _DAYS.stop * per_day)


def count_text(column: Any, row: int) -> str:
    """Return the text that an error message shows for a date or timestamp."""
    numbers, _ = counted(column.slice(row, 1))
    unit = "days" if pa.types.is_date(column.type) else _UNITS[column.type.unit][0]
    return f"{numbers[0].as_py()} {unit} since 1970-01-01"
