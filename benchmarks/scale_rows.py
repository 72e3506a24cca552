"""Measure a batch's cost for 10^2 to 10^6 rows of 100 bytes, in two tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.scale import counted_queries, point
from benchmarks.streaming import case_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measured import Case
    from benchmarks.settings import Settings

TITLE: Final = "Spark's addBatch time"
X_LABEL: Final = "number of rows per batch"
_ROWS: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
_WORKER: Final = "peak memory of a Python worker, MiB"
_BASE_ROWS: Final = 100_000
_GROWTH: Final = "increase in worker memory from 100,000 rows, MiB"


def cases(_: Settings) -> dict[str, int]:
    """Return each case's number of rows, by the case's name."""
    return {case_name(rows): rows for rows in _ROWS}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each number of rows. The largest case also shows how much a worker's memory grew."""
    base: dict[str, float] = {}
    with counted_queries(settings) as bench:
        for name, rows in settings.wanted(cases(settings)):
            found = point(bench, settings, name, rows, rows=settings.rows(rows), value_bytes=100, tasks=2)
            workers = found.facts.get(_WORKER, {})
            if rows == _BASE_ROWS:
                base = workers
            if rows > _BASE_ROWS and base:
                growth = {side: peak - base[side] for side, peak in workers.items() if side in base}
                found.facts[_GROWTH] = growth
            yield found
