"""Measure large batches after a shuffle if a partition has more rows or takes longer, or if the code after the shuffle is costly.

``make bench ARGS="--only skew"``. A task of this project writes several partitions, one after another, so a slow partition makes
the others of its task wait. Spark's own sink writes each partition in a separate task. ``--whole`` adds 64 and 1,000 partitions,
and a case with even batches of a million rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from benchmarks.queries import WARM_UP_BATCHES
from benchmarks.scale_shuffled import shuffled
from benchmarks.streaming import case_of, queries, sides_of, warm_up
from benchmarks.turns import in_turn
from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from benchmarks.measured import Case
    from benchmarks.settings import Settings

TITLE: Final = "Spark's addBatch time for large batches with uneven or costly partitions"
X_LABEL: Final = ""
#: 200 is Spark's default.
_PARTITIONS: Final = (200,)
_ALL_PARTITIONS: Final = (64, 200, 1_000)
_ROWS: Final = 200_000
_MANY_ROWS: Final = 1_000_000
_BATCHES: Final = 3
#: The slow partition takes about a second longer: about a hundred of its rows sleep.
_SLEEPS: Final = 100
_SLEEP_MS: Final = 10
_NUMBER: Final = "CAST(CAST(key AS STRING) AS BIGINT)"
#: How often the costly code hashes each row. In the JVM and in Python, this takes roughly 15 µs.
_SQL_HASHES: Final = 20
_PYTHON_HASHES: Final = 20


@dataclass(frozen=True)
class Work:
    """One case's work.

    Attributes:
        rows: the number of rows in a batch.
        partitions: the number of partitions into which the query shuffles the rows.
        query: what the query does with the rows, for a number of partitions.
    """

    rows: int
    partitions: int
    query: Callable[[int, DataFrame], DataFrame]


def cases(settings: Settings) -> dict[str, Work]:
    """Return each case's work, by the case's name."""
    counts = _ALL_PARTITIONS if settings.whole else _PARTITIONS
    found = {
        f"{name}, {counted(count, 'partition')}": Work(_ROWS, count, query)
        for name, query in _QUERIES.items()
        for count in counts
    }
    if settings.whole:
        found[f"{counted(_MANY_ROWS, 'row')}, 200 partitions"] = Work(_MANY_ROWS, 200, shuffled)
    return found


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each kind of work and number of partitions."""
    with queries() as bench:
        warm_up(bench, settings)
        for name, work in settings.wanted(cases(settings)):
            source = bench.source(settings.rows(work.rows), WARM_UP_BATCHES + (1 if settings.quick else _BATCHES))
            sides = sides_of(bench, replace(source, query=partial(work.query, work.partitions)), settings)
            yield case_of(name, in_turn(settings.rounds, sides, warm_up=1)[0])
            bench.drop(source)


def _skewed(partitions: int, rows: DataFrame) -> DataFrame:
    """Put every second row into the same partition."""
    return rows.repartition(partitions, sf.expr(f"IF({_NUMBER} % 2 = 0, -1, {_NUMBER})"))


def _one_slow(partitions: int, rows: DataFrame) -> DataFrame:
    """Make the middle partition slow, without using a core."""
    one_in = max(1, _ROWS // partitions // _SLEEPS)
    sleeps = f"spark_partition_id() = {partitions // 2} AND {_NUMBER} % {one_in} = 0"
    # Spark returns the text "null" for a method without a result, so the condition is false.
    is_null = f"java_method('java.lang.Thread', 'sleep', {_SLEEP_MS}L) IS NULL"
    return shuffled(partitions, rows).selectExpr("key", f"IF({sleeps} AND {is_null}, NULL, value) AS value")


def _costly_sql(partitions: int, rows: DataFrame) -> DataFrame:
    digest = f"aggregate(sequence(1, {_SQL_HASHES}), CAST(value AS STRING), (text, _) -> sha2(text, 256))"
    return shuffled(partitions, rows).selectExpr("key", f"IF({digest} = '', NULL, value) AS value")


def _costly_python(partitions: int, rows: DataFrame) -> DataFrame:
    # Spark sends a nested function by value, like a notebook's. Otherwise, each worker would import this module.
    def hashed(value: bytes) -> bytes:
        digest = bytes(value)
        for _ in range(_PYTHON_HASHES):
            digest = hashlib.sha256(digest).digest()
        return value if digest else digest

    return shuffled(partitions, rows).select("key", sf.udf(hashed, "binary")("value").alias("value"))


_QUERIES: Final = {
    "half of the rows in one partition": _skewed,
    "one slow partition": _one_slow,
    "a costly SQL expression": _costly_sql,
    "a costly Python UDF": _costly_python,
}
