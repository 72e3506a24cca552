"""Measure how a batch's cost grows along one dimension, including the broker's counts and the peak memory."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.broker import counting_broker
from benchmarks.queries import WARM_UP_BATCHES, Queries
from benchmarks.session import spark_session
from benchmarks.streaming import case_of, sides_of, warm_up
from benchmarks.topics import Topics
from benchmarks.turns import in_turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measured import Case
    from benchmarks.settings import Settings

_BATCHES = 5


@contextlib.contextmanager
def counted_queries(settings: Settings) -> Iterator[Queries]:
    """Yield queries on a measured broker and in a session, both warmed up."""
    with (
        counting_broker() as broker,
        tempfile.TemporaryDirectory(prefix="twopc-bench-", ignore_cleanup_errors=True) as name,
        spark_session(Path(name)) as spark,
    ):
        bench = Queries(spark, Topics(broker.bootstrap_servers, 2), Path(name), broker)
        warm_up(bench, settings)
        yield bench


def point(bench: Queries, settings: Settings, name: str, x: float, *, rows: int, value_bytes: int, tasks: int) -> Case:  # noqa: PLR0913 - the facts about one point
    """Measure one point on a curve for this project, for two phases if they are not the default, and for Spark's own sink."""
    batches = WARM_UP_BATCHES + (1 if settings.quick else _BATCHES)
    source = bench.source(rows, batches, value_bytes=value_bytes, partitions=tasks)
    ran, _ = in_turn(settings.rounds, sides_of(bench, source, settings, two_phases=True))
    bench.drop(source)
    return case_of(name, ran, x=x)
