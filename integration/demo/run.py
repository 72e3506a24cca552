"""Run ``twopc demo`` with parsed options: run a query with twopc and a query with Spark's writers, and judge both queries."""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from twopc.integration.demo.plan import outside_kills, protocol_kills
from twopc.integration.demo.queries import as_guides_show, with_spark, with_twopc
from twopc.integration.demo.report import facts, is_exactly_once, show, sums
from twopc.integration.demo.stores import store_of
from twopc.integration.demo.stores.kafka import KEYS, KafkaOutput
from twopc.integration.services import ServiceError
from twopc.integration.services.class_data import driver_flags
from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.signals import ended_by_signals
from twopc.testing.kill_loop import KafkaTopic, Kill, KillLoop
from twopc.testing.kill_loop.connect import require_connect
from twopc.testing.kill_loop.kills import BATCHES_A_KILL, OF_CONNECT, aimed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.integration.demo.queries import Query
    from twopc.integration.demo.stores.store import Output, Store

#: The largest default batch size. A kill undoes at most one batch.
_LARGEST_BATCH: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of ``twopc demo``. ``twopc.integration.cli`` explains them."""

    rows: int
    kills: int
    seed: int
    partitions: int
    batch_rows: int | None
    shuffle: bool
    baseline: bool
    sinks: tuple[str, ...] = ("kafka",)
    connect: bool = False

    @property
    def rows_in_a_batch(self) -> int:
        """The number of rows in a batch. By default, several batches fit between two kills."""
        return self.batch_rows or min(_LARGEST_BATCH, max(1, self.rows // (BATCHES_A_KILL * (self.kills + 1))))


def main(options: DemoOptions, *, as_json: bool) -> int:
    """Run the demo, print its report, and return the exit status.

    Args:
        options: the command-line options.
        as_json: whether to print one JSON object to stdout and everything else to stderr.
    """
    stderr = Console(stderr=True, highlight=False)
    console = stderr if as_json else Console(highlight=False)
    try:
        ours, baseline = run_demo(options, console)
    except (ServiceError, KafkaException) as error:
        stderr.print(f"twopc demo failed (seed {options.seed}): {error}", style="red", markup=False, soft_wrap=True)
        return 1
    show(console, ours, baseline)
    if as_json:
        typer.echo(json.dumps({**ours, "baseline": baseline}))
    return 0 if is_exactly_once(ours) else 1


def run_demo(options: DemoOptions, console: Console) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Run the demo and return the facts about both queries.

    Before this function returns or raises, every process that it started has exited.

    Raises:
        ServiceError: Java, a package or a jar is missing, the broker did not start, or a query failed.
        KafkaException: the broker failed.
    """
    if options.connect:
        require_connect()
    console.print(
        f"twopc demo: {options.rows:,} records in batches of {options.rows_in_a_batch:,}; kills: {options.kills}; "
        f"seed: {options.seed}{'; under Spark Connect' if options.connect else ''}"
    )
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(ended_by_signals(ServiceError))
        temporary = tempfile.TemporaryDirectory(prefix="twopc-demo-", ignore_cleanup_errors=True)
        directory = Path(cleanup.enter_context(temporary))
        with console.status("starting Kafka"):
            kafka = cleanup.enter_context(LocalKafka(data_dir=directory / "kafka"))
        console.print(f"Kafka {kafka.version} is running at {kafka.bootstrap_servers}")
        with console.status("preparing Spark (first run only)"):
            driver_flags()
        stores = []
        for name in options.sinks:
            with console.status(f"starting {name}"):
                stores.append(cleanup.enter_context(store_of(name).started(directory / name, kafka.bootstrap_servers)))
        setup = _Setup(options, kafka.bootstrap_servers, stores, directory, console)
        kills = protocol_kills(options.seed, options.kills)
        ours = setup.run("twopc", with_twopc, aimed(kills, OF_CONNECT) if options.connect else kills)
        baseline = None
        if options.baseline:
            baseline = setup.run("spark-sink", _as_usual, outside_kills(options.seed, options.kills))
    return ours, baseline


def _as_usual(outputs: Sequence[Output], shuffle: int) -> Query:
    match outputs:
        case [KafkaOutput() as topic]:
            return with_spark(topic, shuffle)
        case _:
            return as_guides_show(outputs, shuffle)


@dataclass(frozen=True)
class _Setup:
    options: DemoOptions
    bootstrap_servers: str
    stores: Sequence[Store]
    directory: Path
    console: Console

    def run(self, name: str, make: Callable[[Sequence[Output], int], Query], kills: Sequence[Kill]) -> dict[str, Any]:
        options = self.options
        outputs = [store.output(name, options.partitions) for store in self.stores]
        for output in outputs:
            output.create()
        source = KafkaTopic(self.bootstrap_servers, f"{name}-source", options.partitions, KEYS)
        jars = [*spark_kafka_jars(), *(jar for store in self.stores for jar in store.jars)]
        spark = {"spark.app.name": "twopc-demo", "spark.jars": ",".join(map(str, jars))}
        for store in self.stores:
            spark |= store.settings
        directory = self.directory / name
        with _progress(self.console) as progress:
            bar = progress.add_task(f"{name}: killed 0 of {len(kills)}", total=options.rows)

            def finished(batch_id: int) -> None:
                progress.update(bar, completed=_processed(directory / "checkpoint", batch_id))

            def killed(step: str) -> None:
                done = f"{len(loop.kills)} of {len(kills)}"
                progress.update(bar, description=f"{name}: killed {done}")
                self.console.print(f"{name}: kill {done}, {_described(step)}", markup=False)

            def read(count: int) -> None:
                progress.update(bar, completed=min(count, options.rows))

            loop = KillLoop(
                read=lambda: outputs[0].numbers(options.rows, read),
                query=make(outputs, options.partitions if options.shuffle else 0),
                source=source,
                directory=directory,
                rows=options.rows,
                batch_rows=options.rows_in_a_batch,
                keys=KEYS,
                spark=spark,
                connect=options.connect,
                written=outputs[-1].written,
                insists=True,
                on_batch=finished,
                on_kill=killed,
            )
            loop.run(kills)
            found = {}
            for output in outputs:
                progress.update(bar, description=f"{name}: reading the output", completed=0)
                unfinished = output.unfinished()
                outcome = loop.outcome(options.seed, output.numbers(options.rows, read))
                if not output.has_order:
                    outcome = replace(outcome, out_of_order=())
                found[output.title] = facts(outcome, unfinished)
            progress.update(bar, description=f"{name}: done", completed=options.rows)
        return sums(found)


def _processed(checkpoint: Path, batch_id: int) -> int:
    """Return the number of records in this batch and all earlier batches.

    The last line of a batch's offsets is ``{topic: {partition: offset}}``.
    """
    (of_partition,) = json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]).values()
    return sum(of_partition.values())


def _described(step: str) -> str:
    step, _, victim = step.partition(" ")
    point, _, number = step.partition("@")
    when = (
        f"from outside the query after {number} records"
        if point == "outside"
        else f"at crash point {point}, pass {number}"
    )
    return f"{when} {victim}".rstrip()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
