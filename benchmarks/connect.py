"""Compare Spark Connect with a classic session: batches from Kafka to Kafka, and functions that write nothing.

``make bench ARGS="--only connect"``. Each run is a separate process with its own session and, under Spark Connect, its own
server. The time is Spark's ``addBatch``, without the first batches.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from benchmarks.counting import count
from benchmarks.durations import durations_ms
from benchmarks.measured import TWOPC, Case, Missing
from benchmarks.topics import Topics
from benchmarks.turns import in_turn
from twopc.counted import counted
from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.services.java import java_home
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink
from twopc.testing.kill_loop.run import spark_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from benchmarks.settings import Settings

TITLE: Final = "Spark Connect: addBatch of a batch, beside a classic session"
X_LABEL: Final = ""
#: The rows per batch, and the number of measured batches in a run.
_SIZES: Final = ((2_000, 12), (400_000, 3))
_WARM_UP_BATCHES: Final = 3
_ROOT: Final = Path(__file__).parents[1]
#: The functions, by their names in the results.
_KINDS: Final = {
    "exactly once": TWOPC,
    "collects": "a function that collects",
    "nothing": "a function that does nothing",
}


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One query.

    Attributes:
        is_connect: whether the query runs in a Spark Connect session.
        kind: the function, see :data:`_KINDS`.
        bootstrap_servers: the broker's address.
        source: the topic to read from.
        most_offsets: Spark's limit for a batch, in offsets.
        output: the topic to write to.
        directory: the directory for all files.
    """

    is_connect: bool
    kind: str
    bootstrap_servers: str
    source: str
    most_offsets: int
    output: str
    directory: str

    def times_ms(self) -> list[float]:
        """Run the query in a separate process; return its batches' times in ms."""
        environment = {
            **spark_environment(str(java_home())),
            "PYTHONPATH": str(_ROOT),
            "SPARK_TESTING": "1",  # with this variable, the Spark Connect server takes any free port
        }
        command = [sys.executable, "-m", __name__, json.dumps(asdict(self))]
        done = subprocess.run(command, cwd=self.directory, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.kind}, is_connect={self.is_connect}: {done.stderr[-3000:]}")
        times: list[float] = json.loads(done.stdout.splitlines()[-1])
        return times

    def execute(self) -> list[float]:
        """Run the query in this process; return its batches' times in ms."""
        spark = self._session()
        stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap_servers)
        stream = stream.option("subscribe", self.source).option("startingOffsets", "earliest")
        rows = stream.option("kafka.fetch.max.wait.ms", 20).option("maxOffsetsPerTrigger", self.most_offsets)
        checkpoint = f"{self.directory}/{uuid.uuid4().hex}"
        writer = rows.load().select("key", "value").writeStream.foreachBatch(self._function(checkpoint))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        times = durations_ms(query, "addBatch", warm_up=_WARM_UP_BATCHES)
        spark.stop()
        return times

    def _session(self) -> SparkSession:
        builder = (
            SparkSession.builder.remote("local[2]") if self.is_connect else SparkSession.builder.master("local[2]")
        )
        settings = {
            "spark.jars": ",".join(map(str, spark_kafka_jars())),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": f"{self.directory}/local",
            "spark.sql.warehouse.dir": f"{self.directory}/warehouse",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def _function(self, checkpoint: str) -> Callable[[DataFrame, int], None]:
        if self.kind == "exactly once":
            name = f"b{uuid.uuid4().hex[:8]}"
            sink = KafkaSink(name=name, bootstrap_servers=self.bootstrap_servers, topic=self.output)
            return exactly_once(sink, checkpoint_location=checkpoint)
        return _collect if self.kind == "collects" else _ignore


def _collect(batch: DataFrame, batch_id: int) -> None:
    del batch_id
    batch.toArrow()


def _ignore(batch: DataFrame, batch_id: int) -> None:
    del batch, batch_id


def cases(_: Settings) -> dict[str, tuple[int, int]]:
    """Return each case's rows per batch and number of batches, by the case's name."""
    return {counted(rows, "row"): (rows, batches) for rows, batches in _SIZES}


def measure(settings: Settings) -> Iterator[Case | Missing]:
    """Yield a case for each size."""
    with (
        LocalKafka(heap="1g") as kafka,
        tempfile.TemporaryDirectory(prefix="twopc-bench-", ignore_cleanup_errors=True) as directory,
    ):
        topics = Topics(kafka.bootstrap_servers, 2)
        for name, (rows, batches) in settings.wanted(cases(settings)):
            yield _case(topics, directory, settings, name, (settings.rows(rows), 1 if settings.quick else batches))


def _case(topics: Topics, directory: str, settings: Settings, name: str, size: tuple[int, int]) -> Case:
    rows, batches = size
    total = rows * (_WARM_UP_BATCHES + batches)
    source = topics.fill(total)
    records: dict[str, int] = {}

    def run(kind: str, side: str, *, is_connect: bool) -> float:
        output = topics.create()
        times_ms = _Run(
            is_connect=is_connect,
            kind=kind,
            bootstrap_servers=topics.bootstrap_servers,
            source=source,
            most_offsets=rows + topics.partition_count(source),
            output=output,
            directory=directory,
        ).times_ms()
        if kind == "exactly once":
            found = count(topics.bootstrap_servers, output, expected=total)
            records[side] = records.get(side, 0) + found.records
        topics.delete(output)
        return median(times_ms)

    sides = {
        f"{side}{'' if is_connect else ', classic'}": (kind, is_connect)
        for kind, side in _KINDS.items()
        for is_connect in (True, False)
    }
    ran, _ = in_turn(
        settings.rounds,
        {
            side: lambda k=kind, s=side, c=is_connect: run(k, s, is_connect=c)  # type: ignore[misc] # mypy cannot infer a default's type
            for side, (kind, is_connect) in sides.items()
        },
    )
    topics.delete(source)
    return Case(name=name, unit="ms", samples=ran, counted=records)


if __name__ == "__main__":
    # Functions are pickled by name, so they must come from the imported module and not from ``__main__``.
    from benchmarks.connect import _Run as Run

    sys.stdout.write(json.dumps(Run(**json.loads(sys.argv[1])).execute()) + "\n")
