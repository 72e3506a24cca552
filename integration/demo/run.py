"""The demo from start to end: a broker, the pipeline with this toolkit, the same with Spark's own sink, the verdicts."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from integration.demo.chaos import BATCHES_A_KILL, Kill, outside_kills, protocol_kills
from integration.demo.judge import verify
from integration.demo.pipeline import Pipeline
from integration.demo.query import QuerySpec
from integration.demo.records import Topics
from integration.demo.report import Outcome, Report
from integration.services.java import java_home
from integration.services.kafka import LocalKafka
from integration.services.spark_class_data import driver_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

#: A batch is never larger by default, however many rows there are: what a kill undoes is a batch.
_LARGEST_BATCH: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What the user of ``twopc demo`` asks for.

    Attributes:
        rows: records through each pipeline.
        kills: how often each is killed.
        seed: what the kills are drawn from.
        partitions: of every topic, and so tasks of a batch.
        batch_rows: records in a batch; by default so many that each run between two kills has several batches.
        shuffle: repartition by key before the sink.
        baseline: run Spark's own sink, too.
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


def run_demo(options: DemoOptions, console: Console) -> Report:
    """Run it. Whatever happens, nothing that was started outlives the call.

    Raises:
        ServiceError: no Java, no jars, no broker; or a query ended by itself.
    """
    java = java_home()
    console.print(
        f"twopc demo: {options.rows:,} records, {options.kills} kills, seed {options.seed}, "
        f"batches of {options.rows_in_a_batch:,}"
    )
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(_ended_by_signals())
        temporary = tempfile.TemporaryDirectory(prefix="twopc-demo-", ignore_cleanup_errors=True)
        directory = Path(cleanup.enter_context(temporary))
        with console.status("starting Kafka"):
            kafka = cleanup.enter_context(LocalKafka(data_dir=directory / "kafka"))
        console.print(f"Kafka {kafka.version} is up at {kafka.bootstrap_servers}")
        with console.status("preparing Spark's quick start, once"):
            flags = driver_flags()
        stage = _Stage(options, kafka.bootstrap_servers, directory, str(java), flags, console)
        ours = stage.play("twopc", protocol_kills(options.seed, options.kills), exactly_once=True)
        baseline = None
        if options.baseline:
            baseline = stage.play("spark-sink", outside_kills(options.seed, options.kills), exactly_once=False)
    return Report(seed=options.seed, ours=ours, baseline=baseline)


@dataclass(frozen=True)
class _Stage:
    """Where pipelines run."""

    options: DemoOptions
    bootstrap_servers: str
    directory: Path
    java: str
    jvm_flags: str
    console: Console

    def play(self, name: str, kills: Sequence[Kill], *, exactly_once: bool) -> Outcome:
        """Run one pipeline and look at what it wrote."""
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
                self.console.print(f"{name}: kill {done} of {len(kills)}: {step}", markup=False)

            pipeline = Pipeline(
                topics=topics,
                spec=spec,
                rows=self.options.rows,
                logs=scratch,
                on_progress=lambda processed: progress.update(bar, completed=processed),
                on_kill=killed,
            )
            pipeline.run(kills)
            progress.update(bar, description=f"{name}: verifying", completed=0)
            verdict = verify(topics, lambda read: progress.update(bar, completed=min(read, self.options.rows)))
            progress.update(bar, description=f"{name}: verified", completed=self.options.rows)
        return Outcome(verdict=verdict, kill_steps=tuple(pipeline.steps), seconds=pipeline.seconds)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the demo as Ctrl-C does: by an exception, which cleans up on its way."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda received, _: sys.exit(128 + received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
