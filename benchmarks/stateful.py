"""Measure a small stateful batch. Its last stage has one partition for each partition of its state, by default 200.

``make bench ARGS="--only stateful"``. The query drops duplicates by key, but its source has none. By default, the driver writes a
small batch; with *two phases*, tasks write the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from benchmarks.queries import WARM_UP_BATCHES
from benchmarks.streaming import case_of, queries, sides_of, warm_up
from benchmarks.turns import in_turn
from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from benchmarks.measured import Case
    from benchmarks.settings import Settings

TITLE: Final = "addBatch of a small stateful batch, 200 partitions"
X_LABEL: Final = ""
_SIZES: Final = (100, 2_000)
_BATCHES: Final = 5


def cases(_: Settings) -> dict[str, int]:
    """Return each case's rows per batch, by the case's name."""
    return {counted(rows, "row"): rows for rows in _SIZES}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each size."""
    with queries() as bench:
        warm_up(bench, settings)
        for name, rows in settings.wanted(cases(settings)):
            source = bench.source(settings.rows(rows), WARM_UP_BATCHES + (1 if settings.quick else _BATCHES))
            sides = sides_of(bench, replace(source, query=_without_duplicates), settings, two_phases=True)
            yield case_of(name, in_turn(settings.rounds, sides)[0])
            bench.drop(source)


def _without_duplicates(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["key"])
