"""Compare the Iceberg and Delta sinks with Spark's own streaming writers, in turn, in one session.

``make bench ARGS="--only lakehouse"``. All sides write the same rows as Parquet files to new tables. In each batch, two tasks
write one file each. The time is Spark's ``addBatch``, without the first batches. Iceberg's tables are in a REST catalog. Spark
counts each table's rows with the formats' own libraries.
"""

from __future__ import annotations

import tempfile
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.file_queries import FileQueries
from benchmarks.measured import TWOPC, Case
from benchmarks.memory import Held
from benchmarks.outputs import Delta, Iceberg, lakehouse_session
from benchmarks.turns import in_turn
from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from benchmarks.outputs import Lakehouse
    from benchmarks.settings import Settings

TITLE: Final = "Iceberg and Delta Lake: Spark's addBatch of a batch, by the sinks and by Spark's own streaming writers"
X_LABEL: Final = ""
SPARK: Final = "Spark's own writer"
#: The rows per batch, and the number of measured batches in a run.
_SIZES: Final = ((20_000, 8), (1_000_000, 3))
_MEMORY: Final = "peak memory of a Python worker, MiB"


def cases(_: Settings) -> dict[str, tuple[type[Lakehouse], int, int]]:
    """Return each case's format, rows per batch and number of batches, by the case's name."""
    return {
        f"{kind.title}, {counted(rows, 'row')}": (kind, rows, batches)
        for rows, batches in _SIZES
        for kind in (Iceberg, Delta)
    }


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each format and size."""
    with (
        tempfile.TemporaryDirectory(prefix="twopc-bench-", ignore_cleanup_errors=True) as name,
        lakehouse_session(Path(name)) as (spark, uri),
    ):
        outputs = {Iceberg: Iceberg(spark, uri), Delta: Delta(spark, Path(name) / "delta")}
        for (rows, batches), sized in groupby(settings.wanted(cases(settings)), lambda case: case[1][1:]):
            queries = FileQueries(spark, Path(name), settings.rows(rows), 1 if settings.quick else batches)
            for case, (kind, *_) in sized:
                yield _case(spark, queries, case, outputs[kind], settings)


def _case(spark: SparkSession, queries: FileQueries, name: str, output: Lakehouse, settings: Settings) -> Case:
    memory: list[float] = []

    def exactly_once() -> float:
        held = Held(spark.sparkContext)
        took_ms = queries.exactly_once(output, settings.exactly_once)
        memory.append(held.facts().get(_MEMORY, 0))
        return took_ms

    sides: dict[str, Any] = {TWOPC: exactly_once, SPARK: lambda: queries.other(output, output.start)}
    ran, _ = in_turn(settings.rounds, sides, warm_up=1)
    return Case(
        name=name,
        unit="ms",
        samples=ran,
        counted={side: queries.expected * len(found) for side, found in ran.items()},
        facts={_MEMORY: {TWOPC: max(memory)}} if any(memory) else {},
    )
