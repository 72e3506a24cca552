"""Stream from Kafka to Kafka with this project and with Spark's at-least-once Kafka sink, in turn, in one Spark session.

The benchmark compares Spark's ``addBatch`` time for each batch, except each run's first few. To run all sizes, use
``make bench ARGS="--only streaming"``. To run one size, use
``.venv/bin/python benchmarks/streaming.py --batch-rows 2000 --batches 20 --pairs 3``.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.measured import TWO_PHASES, TWOPC, Case
from benchmarks.queries import WARM_UP_BATCHES, Queries
from benchmarks.report import comparison, console
from benchmarks.session import spark_session
from benchmarks.settings import Settings, parsed
from benchmarks.topics import Topics
from benchmarks.turns import in_turn
from twopc.counted import counted
from twopc.integration.services.kafka import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.queries import Ran, Source

TITLE = "Spark's addBatch time from Kafka to Kafka"
X_LABEL = "number of rows per batch"
SPARK = "Spark's own sink (at least once)"
#: Rows per batch, and the number of batches in a run that count: enough for a median, but few enough for a run of minutes.
SIZES = ((100, 12), (2_000, 12), (20_000, 8), (100_000, 5), (400_000, 3))
#: The sizes at which two phases have their own goal.
_TWO_PHASE_SIZES = (2_000, 400_000)
_WARM_UP_ROWS = 2_000


@contextlib.contextmanager
def queries(partitions: int = 2, jvm_flags: tuple[str, ...] = ()) -> Iterator[Queries]:
    """Yield queries on a new broker and in a new session."""
    with (
        LocalKafka(heap="1g", jvm_flags=jvm_flags) as kafka,
        tempfile.TemporaryDirectory(prefix="twopc-bench-", ignore_cleanup_errors=True) as name,
        spark_session(Path(name)) as spark,
    ):
        yield Queries(spark, Topics(kafka.bootstrap_servers, partitions), Path(name))


def case_name(rows: int) -> str:
    """Name the case with this number of rows per batch."""
    return counted(rows, "row")


def case_of(name: str, ran: dict[str, list[Ran]], *, x: float | None = None) -> Case:
    """Build the case from these runs."""
    facts: dict[str, dict[str, float]] = {}
    for side, runs in ran.items():
        for fact in dict.fromkeys(fact for run in runs for fact in run.facts):
            values = [run.facts[fact] for run in runs if fact in run.facts]
            facts.setdefault(fact, {})[side] = statistics.median(values)
    return Case(
        name=name,
        unit="ms",
        x=x,
        samples={side: [run.median_ms for run in runs] for side, runs in ran.items()},
        counted={side: sum(run.output.records for run in runs) for side, runs in ran.items()},
        facts=facts,
    )


def sides_of(
    bench: Queries, source: Source, settings: Settings, *, two_phases: bool = False
) -> dict[str, Callable[[], Ran]]:
    """Return the sides: this project with its settings, Spark's own sink, and two phases if they are not the default."""
    sides: dict[str, Callable[[], Ran]] = {
        TWOPC: lambda: bench.exactly_once(source, settings.exactly_once),
        SPARK: lambda: bench.built_in(source),
    }
    apart = settings.two_phases
    if two_phases and apart is not None:
        sides[TWO_PHASES] = lambda: bench.exactly_once(source, apart)
    return sides


def warm_up(bench: Queries, settings: Settings) -> None:
    """Run each side once, so that the JVMs have compiled their code before the first case."""
    source = bench.source(_WARM_UP_ROWS, WARM_UP_BATCHES + 2)
    in_turn(1, sides_of(bench, source, settings, two_phases=True))
    bench.drop(source)


def cases(_: Settings) -> dict[str, tuple[int, int]]:
    """Return each case's rows per batch and number of batches, by the case's name."""
    return {case_name(rows): (rows, batches) for rows, batches in SIZES}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each size."""
    with queries() as bench:
        warm_up(bench, settings)
        for name, (rows, batches) in settings.wanted(cases(settings)):
            source = bench.source(settings.rows(rows), WARM_UP_BATCHES + (1 if settings.quick else batches))
            sides = sides_of(bench, source, settings, two_phases=rows in _TWO_PHASE_SIZES)
            yield case_of(name, in_turn(settings.rounds, sides)[0], x=rows)
            bench.drop(source)


def main(  # noqa: PLR0913, PLR0917 - the options of the command line
    batch_rows: Annotated[int, typer.Option(min=1, help="Records per batch.")] = 2000,
    batches: Annotated[int, typer.Option(min=WARM_UP_BATCHES + 1, help="Batches per run.")] = 20,
    pairs: Annotated[int, typer.Option(min=1, help="How often each sink runs. The sinks take turns.")] = 3,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions in the source topic and in the output topic.")] = 2,
    value_bytes: Annotated[int, typer.Option(min=1, help="Bytes per value.")] = 100,
    setting: Annotated[list[str] | None, typer.Option(help="A setting of exactly_once(), name=value.")] = None,
) -> None:
    """Compare this project's speed with that of Spark's own Kafka sink, at one size."""
    chosen: dict[str, Any] = parsed(setting or [])
    with queries(partitions) as bench:
        source = bench.source(batch_rows, batches, value_bytes=value_bytes)
        sides = sides_of(bench, source, Settings(exactly_once=chosen))
        case = case_of(case_name(batch_rows), in_turn(pairs, sides)[0])
    title = f"addBatch, {batch_rows} rows per batch, {partitions} partitions, medians of {pairs} pairs"
    console.print(comparison(title, [case]))


if __name__ == "__main__":
    typer.run(main)
