"""Cache a batch's row format, so that the driver reads the table at most once every 30 s."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

SettingsT = TypeVar("SettingsT")
FormatT = TypeVar("FormatT")

#: After the table has been altered, rows that now fit must soon stop going to the dead letters.
_FRESH_S: Final = 30


def fresh(read: Callable[[SettingsT, pa.Schema], FormatT]) -> Callable[[SettingsT, pa.Schema], FormatT]:
    """Cache a function's results for up to 30 s."""

    @functools.lru_cache(maxsize=100)
    def remembered(settings: SettingsT, schema: pa.Schema, _: float) -> FormatT:
        return read(settings, schema)

    @functools.wraps(read)
    def row_format(settings: SettingsT, schema: pa.Schema) -> FormatT:
        return remembered(settings, schema, time.monotonic() // _FRESH_S)

    return row_format
