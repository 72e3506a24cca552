"""``twopc demo`` behind its options: a broker, a query with this toolkit, the same with Spark's sink, the verdicts."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from integration.demo.chaos import BATCHES_A_KILL, Kill, outside_kills, protocol_kills
from integration.demo.judge import judge
from integration.demo.pipeline import Pipeline
from integration.demo.query import QuerySpec
from integration.demo.records import Topics
from integration.demo.report import Outcome, Report
from integration.services.errors import ServiceError
from integration.services.java import java_home
from integration.services.kafka import LocalKafka
from integration.services.spark_class_data import driver_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Largest default batch: a kill undoes at most one batch.
_LARGEST_BATCH: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of ``twopc demo``.

    Attributes:
        rows: records for each query.
        kills: how often to kill each query.
        seed: determines the kills.
        partitions: of each topic, and so tasks per batch.
        batch_rows: records per batch; None: such that each run between two kills has several batches.
        shuffle: repartition by key before the sink.
        baseline: also run Spark's built-in sink.
    """

    rows: int
    kills: int
    seed: int
    partitions: int
    batch_rows: int | None
    shuffle: bool
    baseline: bool

    @property
    def rows_in_a_batch(self) -> int:
        """``batch_rows`` or its default."""
        return self.batch_rows or min(_LARGEST_BATCH, max(1, self.rows // (BATCHES_A_KILL * (self.kills + 1))))


def main(options: DemoOptions, *, as_json: bool) -> int:
    """Run the demo and print its report; return the exit status.

    Args:
        options: of the command line.
        as_json: print one JSON object to stdout, everything else to stderr.
    """
    stderr = Console(stderr=True, highlight=False)
    console = stderr if as_json else Console(highlight=False)
    try:
        report = run_demo(options, console)
    except (ServiceError, KafkaException) as error:
        stderr.print(f"twopc demo failed (seed {options.seed}): {error}", style="red", markup=False, soft_wrap=True)
        return 1
    report.show(console)
    if as_json:
        typer.echo(json.dumps(report.facts()))
    return 0 if report.ours.verdict.is_exactly_once else 1


def run_demo(options: DemoOptions, console: Console) -> Report:
    """Run the demo. Everything that it started has ended when it returns or raises.

    Raises:
        ServiceError: Java, jars or the broker are missing, or a query failed.
        KafkaException: the broker failed.
    """
    java = java_home()
    console.print(
        f"twopc demo: {options.rows:,} records in batches of {options.rows_in_a_batch:,}, {options.kills} kills, "
        f"seed {options.seed}"
    )
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(_ended_by_signals())
        temporary = tempfile.TemporaryDirectory(prefix="twopc-demo-", ignore_cleanup_errors=True)
        directory = Path(cleanup.enter_context(temporary))
        with console.status("starting Kafka"):
            kafka = cleanup.enter_context(LocalKafka(data_dir=directory / "kafka"))
        console.print(f"Kafka {kafka.version} is running at {kafka.bootstrap_servers}")
        with console.status("preparing Spark (first run only)"):
            flags = driver_flags()
        setup = _Setup(options, kafka.bootstrap_servers, directory, str(java), flags, console)
        ours = setup.run("twopc", protocol_kills(options.seed, options.kills), exactly_once=True)
        baseline = None
        if options.baseline:
            baseline = setup.run("spark-sink", outside_kills(options.seed, options.kills), exactly_once=False)
    return Report(seed=options.seed, ours=ours, baseline=baseline)


@dataclass(frozen=True)
class _Setup:
    """What all queries share."""

    options: DemoOptions
    bootstrap_servers: str
    directory: Path
    java: str
    jvm_flags: str
    console: Console

    def run(self, name: str, kills: Sequence[Kill], *, exactly_once: bool) -> Outcome:
        """Run one query and judge its output."""
        topics = Topics(self.bootstrap_servers, f"{name}-source", f"{name}-output")
        topics.create(self.options.partitions)
        scratch = self.directory / name
        scratch.mkdir()
        spec = QuerySpec(
            bootstrap_servers=self.bootstrap_servers,
            source=topics.source,
            output=topics.output,
            checkpoint=str(scratch / "checkpoint"),
            exactly_once=exactly_once,
            batch_rows=self.options.rows_in_a_batch,
            shuffle=self.options.partitions if self.options.shuffle else 0,
            scratch=str(scratch),
            java_home=self.java,
            jvm_flags=self.jvm_flags,
        )
        with _progress(self.console) as progress:
            bar = progress.add_task(f"{name}: killed 0 of {len(kills)}", total=self.options.rows)

            def killed(step: str) -> None:
                done = len(pipeline.steps)
                progress.update(bar, description=f"{name}: killed {done} of {len(kills)}")
                self.console.print(f"{name}: kill {done} of {len(kills)}, {_described(step)}", markup=False)

            pipeline = Pipeline(
                topics=topics,
                spec=spec,
                rows=self.options.rows,
                logs=scratch,
                on_progress=lambda processed: progress.update(bar, completed=processed),
                on_kill=killed,
            )
            pipeline.run(kills)
            progress.update(bar, description=f"{name}: reading its output", completed=0)
            verdict = judge(topics, lambda read: progress.update(bar, completed=min(read, self.options.rows)))
            progress.update(bar, description=f"{name}: done", completed=self.options.rows)
        return Outcome(verdict=verdict, kill_steps=tuple(pipeline.steps), seconds=pipeline.seconds)


def _described(step: str) -> str:
    point, _, number = step.partition("@")
    return f"from outside after {number} records" if point == "outside" else f"at crash point {point}, pass {number}"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and a closed terminal raise an exception, as Ctrl-C does, so that everything is cleaned up."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda received, _: sys.exit(128 + received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
