"""Measure a large batch's cost for different numbers of shuffle partitions: 200,000 rows of 100 bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.queries import WARM_UP_BATCHES
from benchmarks.scale import counted_queries
from benchmarks.streaming import case_of, sides_of
from benchmarks.turns import in_turn
from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from benchmarks.measured import Case
    from benchmarks.settings import Settings

TITLE: Final = "Spark's addBatch time for 200,000 rows"
X_LABEL: Final = "number of shuffle partitions"
#: 200 is Spark's default.
_PARTITIONS: Final = (2, 64, 200)
_ALL_PARTITIONS: Final = (2, 16, 64, 200, 1_000)
_ROWS: Final = 200_000
_BATCHES: Final = 3


def cases(settings: Settings) -> dict[str, int]:
    """Return each case's number of shuffle partitions, by the case's name."""
    counts = _ALL_PARTITIONS if settings.whole else _PARTITIONS
    return {counted(count, "partition"): count for count in counts}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each number of shuffle partitions. The source has two partitions."""
    with counted_queries(settings) as bench:
        batches = WARM_UP_BATCHES + (1 if settings.quick else _BATCHES)
        source = bench.source(settings.rows(_ROWS), batches)
        for name, count in settings.wanted(cases(settings)):
            ran, _ = in_turn(
                settings.rounds,
                sides_of(bench, replace(source, query=partial(shuffled, count)), settings, two_phases=True),
            )
            yield case_of(name, ran, x=count)
        bench.drop(source)


def shuffled(partitions: int, rows: DataFrame) -> DataFrame:
    """Shuffle the rows evenly into this number of partitions."""
    return rows.repartition(partitions, "key")
