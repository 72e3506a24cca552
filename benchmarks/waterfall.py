"""Measure the steps of a direct batch and of a batch that tasks write, and compare them with functions that do less.

A ``foreachBatch`` function that does nothing shows Spark's own overhead. A function that only collects the rows shows the minimum
time for a driver that receives them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measured import COLLECTS, TWO_PHASES, TWOPC, Case
from benchmarks.queries import WARM_UP_BATCHES
from benchmarks.streaming import SPARK, case_name, queries
from benchmarks.turns import in_turn
from twopc.batch_transaction import BatchTransaction
from twopc.integration.spark import ExactlyOnce, engine
from twopc.integration.spark.shuffles import Shuffles
from twopc.integration.spark.task import PrepareTask
from twopc.participants import Participants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from benchmarks.queries import Queries, Source
    from benchmarks.settings import Settings

TITLE: Final = "Where a batch's time goes: Spark's addBatch and its steps"
X_LABEL: Final = ""
NOTHING: Final = "a function that does nothing"
#: The number of rows per batch, and the number of batches that count.
_SIZES: Final = ((2_000, 12), (20_000, 8), (400_000, 3))
#: The driver's steps in order: each step's name, and the function that is timed.
_STEPS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("collect (plan, read, bring the rows to the driver)", engine, "collect"),
    ("tasks (plan, read, write, vote)", engine, "_run"),
    ("write in the driver, and vote", PrepareTask, "execute"),
    ("look for stages that ran twice", Shuffles, "check"),
    ("confirm", Participants, "confirm"),
    ("decide", BatchTransaction, "decide"),
    ("commit and prove", BatchTransaction, "commit"),
    ("sweep", BatchTransaction, "finish"),
)
_CALL: Final = ("exactly_once()'s function in total", ExactlyOnce, "__call__")


@dataclass(frozen=True)
class _Ran:
    median_ms: float
    counted: int
    steps: dict[str, float]


def cases(_: Settings) -> dict[str, tuple[int, int]]:
    """Return each case's rows per batch and number of batches, by the case's name."""
    return {case_name(rows): (rows, batches) for rows, batches in _SIZES}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each size."""
    with queries() as bench:
        for name, (rows, batches) in settings.wanted(cases(settings)):
            source = bench.source(settings.rows(rows), WARM_UP_BATCHES + (1 if settings.quick else batches))
            ran, _ = in_turn(settings.rounds, _sides(bench, source, settings), warm_up=1)
            bench.drop(source)
            facts: dict[str, dict[str, float]] = {}
            for side, runs in ran.items():
                for step in runs[0].steps:
                    facts.setdefault(f"ms: {step}", {})[side] = statistics.median(run.steps[step] for run in runs)
            yield Case(
                name=name,
                unit="ms",
                samples={side: [run.median_ms for run in runs] for side, runs in ran.items()},
                counted={side: count for side, runs in ran.items() if (count := sum(run.counted for run in runs))},
                facts=facts,
            )


def _sides(bench: Queries, source: Source, settings: Settings) -> dict[str, Callable[[], _Ran]]:
    sides = {
        SPARK: lambda: _built_in(bench, source),
        NOTHING: lambda: _Ran(statistics.median(bench.function(source, _nothing)), 0, {}),
        COLLECTS: lambda: _Ran(statistics.median(bench.function(source, _collect)), 0, {}),
        TWOPC: lambda: _exactly_once(bench, source, settings.exactly_once),
    }
    apart = settings.two_phases
    if apart is not None:
        sides[TWO_PHASES] = lambda: _exactly_once(bench, source, apart)
    return sides


def _nothing(_frame: DataFrame, _batch_id: int) -> None:
    pass


def _collect(frame: DataFrame, _batch_id: int) -> None:
    frame.toArrow()


def _built_in(bench: Queries, source: Source) -> _Ran:
    ran = bench.built_in(source)
    return _Ran(ran.median_ms, ran.output.records, {})


def _exactly_once(bench: Queries, source: Source, settings: dict[str, Any]) -> _Ran:
    with _timed() as times_ms:
        ran = bench.exactly_once(source, settings)
    # Warm-up batches do not count, so take only the last times of each step, one for each batch that counts.
    count = len(ran.add_batch_ms)
    steps = {name: statistics.median(found[-count:]) for name, found in times_ms.items() if len(found) >= count}
    return _Ran(ran.median_ms, ran.output.records, steps)


@contextlib.contextmanager
def _timed() -> Iterator[dict[str, list[float]]]:
    """Record how long each call to each step takes, in ms."""
    times_ms: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                times_ms[name].append(1000 * (time.perf_counter() - began))

        return call

    previous = [(owner, name, getattr(owner, name)) for _, owner, name in (*_STEPS, _CALL)]
    for step, owner, name in (*_STEPS, _CALL):
        setattr(owner, name, timed(step, getattr(owner, name)))
    try:
        yield times_ms
    finally:
        for owner, name, function in previous:
            setattr(owner, name, function)
