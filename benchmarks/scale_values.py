"""Measure a batch's cost for values of 10 bytes to 100 kB, with at most 10 MB per batch, in two tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.scale import counted_queries, point
from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measured import Case
    from benchmarks.settings import Settings

TITLE: Final = "Spark's addBatch time"
X_LABEL: Final = "number of bytes per value"
_BYTES: Final = (10, 100, 1_000, 10_000, 100_000)
_MOST_ROWS: Final = 10_000
_MOST_BYTES: Final = 10_000_000


def cases(_: Settings) -> dict[str, int]:
    """Return each case's bytes per value, by the case's name."""
    return {counted(size, "byte"): size for size in _BYTES}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each size."""
    with counted_queries(settings) as bench:
        for name, size in settings.wanted(cases(settings)):
            rows = min(_MOST_ROWS, _MOST_BYTES // size)
            yield point(bench, settings, name, size, rows=settings.rows(rows), value_bytes=size, tasks=2)
