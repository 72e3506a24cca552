"""Measure how the number of shuffle partitions changes a large batch's cost, for all sinks except Kafka's.

``make bench ARGS="--only shuffledsinks"``. Each case alternates between many partitions and two. According to the goal, a batch
with many partitions takes at most 1.3 times as long. Spark's default is 200. A function that only counts the rows shows the
cost of the shuffle alone. It has as many tasks as a sink has writers, by default two for each slot. The slots run them in two
waves, and the sides with one task for each slot show the cost of the second wave.
"""

from __future__ import annotations

import contextlib
import tempfile
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.file_queries import FileQueries
from benchmarks.measured import TWOPC, Case
from benchmarks.outputs import ONE_REGION, Delta, HBase, Iceberg, Output, Postgres, Redis, lakehouse_session
from benchmarks.postgres_sink import SERVER
from benchmarks.turns import in_turn
from twopc import CheckpointConfig
from twopc.integration.services.hbase import LocalHBase
from twopc.integration.services.postgres import LocalPostgres
from twopc.integration.services.redis import LocalRedis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from benchmarks.settings import Settings

TITLE: Final = "addBatch of 100,000 rows by number of shuffle partitions, other sinks"
X_LABEL: Final = ""
TWO: Final = "twopc, 2 partitions"
ONE_WAVE: Final = "twopc, one task per slot"
COUNT: Final = "a function that counts the rows"
COUNT_TWO: Final = "a function that counts the rows, 2 partitions"
COUNT_ONE_WAVE: Final = "a function that counts the rows, one task per slot"
_STORES: Final = ("Redis", "HBase", "PostgreSQL", "Iceberg", "Delta")
_PARTITIONS: Final = (64, 200)
_ROWS: Final = 100_000
_BATCHES: Final = 3


def cases(_: Settings) -> dict[str, tuple[str, int]]:
    """Return each case's store and number of shuffle partitions, by the case's name."""
    return {f"{store}, {count} partitions": (store, count) for store in _STORES for count in _PARTITIONS}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each sink and number of partitions."""
    with (
        tempfile.TemporaryDirectory(prefix="twopc-bench-", ignore_cleanup_errors=True) as name,
        lakehouse_session(Path(name)) as (spark, uri),
    ):
        queries = FileQueries(spark, Path(name), settings.rows(_ROWS), 1 if settings.quick else _BATCHES)
        for store, of_store in groupby(settings.wanted(cases(settings)), lambda case: case[1][0]):
            with _started(store, spark, uri, Path(name)) as output:
                for case, (_, count) in of_store:
                    yield _case(queries, case, output, count, settings)


def _case(queries: FileQueries, name: str, output: Output, partitions: int, settings: Settings) -> Case:
    one_wave = {**settings.exactly_once, "checkpoints": CheckpointConfig(max_writers=queries.slots)}
    sides = {
        TWOPC: lambda: queries.exactly_once(output, settings.exactly_once, partitions=partitions),
        ONE_WAVE: lambda: queries.exactly_once(output, one_wave, partitions=partitions),
        TWO: lambda: queries.exactly_once(output, settings.exactly_once, partitions=2),
        COUNT: lambda: queries.counting(partitions),
        COUNT_ONE_WAVE: lambda: queries.counting(partitions, tasks=queries.slots),
        COUNT_TWO: lambda: queries.counting(2),
    }
    ran, _ = in_turn(settings.rounds, sides, warm_up=1)
    counted = {side: queries.expected * len(found) for side, found in ran.items() if side in {TWOPC, ONE_WAVE, TWO}}
    return Case(name=name, unit="ms", samples=ran, counted=counted)


@contextlib.contextmanager
def _started(store: str, spark: SparkSession, uri: str, directory: Path) -> Iterator[Output]:
    """Start one sink's server, which runs only during that sink's cases."""
    match store:
        case "Redis":
            with LocalRedis() as redis:
                yield Redis(redis)
        case "HBase":
            with LocalHBase(heap="1g", properties=ONE_REGION) as hbase:
                yield HBase(hbase.zookeeper)
        case "PostgreSQL":
            with LocalPostgres(options=SERVER) as postgres:
                yield Postgres(postgres.dsn)
        case "Iceberg":
            yield Iceberg(spark, uri)
        case _:
            yield Delta(spark, directory / "delta")
