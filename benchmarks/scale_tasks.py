"""Measure a batch's cost with 1 to 64 tasks: 6,400 rows of 100 bytes. Each core runs one task at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.scale import counted_queries, point
from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measured import Case
    from benchmarks.settings import Settings

TITLE: Final = "Spark's addBatch time"
X_LABEL: Final = "number of tasks per batch"
_TASKS: Final = (1, 4, 16, 64)
_ALL_TASKS: Final = (1, 2, 4, 8, 16, 32, 64)
_ROWS: Final = 6_400


def cases(settings: Settings) -> dict[str, int]:
    """Return each case's number of tasks, by the case's name."""
    return {counted(tasks, "task"): tasks for tasks in (_ALL_TASKS if settings.whole else _TASKS)}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each number of tasks."""
    with counted_queries(settings) as bench:
        for name, tasks in settings.wanted(cases(settings)):
            yield point(bench, settings, name, tasks, rows=settings.rows(_ROWS), value_bytes=100, tasks=tasks)
