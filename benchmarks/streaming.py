"""Kafka -> Spark -> Kafka: this toolkit and Spark's at-least-once Kafka sink, alternately, in one Spark session.

``make bench`` or ``.venv/bin/python benchmarks/streaming.py --batch-rows 2000 --batches 20 --pairs 3``. Compares Spark's
``addBatch`` time of each batch, without the first ones of a run. Each pair gives one ratio of medians.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from integration.services.jars import spark_kafka_jars
from integration.services.java import java_home
from integration.services.kafka import LocalKafka
from integration.spark import exactly_once
from sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WARM_UP_BATCHES = 3
VALUE = b"x" * 100
console = Console(stderr=True)


class Bench:
    """One broker, one Spark session, one source topic; runs queries over it."""

    def __init__(self, kafka: LocalKafka, directory: Path, partitions: int) -> None:
        self._servers = kafka.bootstrap_servers
        self._directory = directory
        self._partitions = partitions
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        self._spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", ",".join(map(str, spark_kafka_jars())))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("ERROR")
        self._admin = AdminClient({"bootstrap.servers": self._servers})

    def topic(self) -> str:
        """Create a topic; return its name."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(name, self._partitions, 1)])[name].result()
        return name

    def fill(self, rows: int) -> str:
        """Create a topic with ``rows`` records of 100 bytes; return its name."""
        name = self.topic()
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 20})
        for number in range(rows):
            while True:
                try:
                    producer.produce(name, VALUE, b"%d" % (number % 1000))
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        return name

    def source(self, topic: str, batch_rows: int) -> DataFrame:
        """The stream that both sinks write."""
        stream = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._servers)
        stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
        return stream.option("maxOffsetsPerTrigger", batch_rows).load().select("key", "value")

    def exactly_once(self, rows: DataFrame) -> list[float]:
        """Run with this toolkit; return ``addBatch`` of each batch, in ms."""
        checkpoint = str(self._directory / uuid.uuid4().hex)
        sink = KafkaSink(name=f"b{uuid.uuid4().hex[:8]}", bootstrap_servers=self._servers, topic=self.topic())
        writer = rows.writeStream.foreachBatch(exactly_once(sink, checkpoint_location=checkpoint))
        return self._run(writer, checkpoint)

    def built_in(self, rows: DataFrame) -> list[float]:
        """Run with Spark's Kafka sink; return ``addBatch`` of each batch, in ms."""
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", self._servers)
        return self._run(writer.option("topic", self.topic()), str(self._directory / uuid.uuid4().hex))

    @staticmethod
    def _run(writer: DataStreamWriter, checkpoint: str) -> list[float]:
        query: StreamingQuery = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        progress: list[Any] = list(query.recentProgress)
        return [entry["durationMs"]["addBatch"] for entry in progress if entry["numInputRows"]][WARM_UP_BATCHES:]


def main(
    batch_rows: Annotated[int, typer.Option(min=1, help="Records per batch.")] = 2000,
    batches: Annotated[int, typer.Option(min=WARM_UP_BATCHES + 1, help="Batches per run.")] = 20,
    pairs: Annotated[int, typer.Option(min=1, help="Runs of each sink, alternately.")] = 3,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of source and output topic.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Compare the speed of this toolkit and of Spark's Kafka sink."""
    with LocalKafka(jvm_flags=()) as kafka, tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)  # Spark writes files to the working directory
        bench = Bench(kafka, Path(directory), partitions)
        console.print(f"writing {batch_rows * batches} records to the source")
        source = bench.fill(batch_rows * batches)
        results = []
        for number in range(1, pairs + 1):
            ours = statistics.median(bench.exactly_once(bench.source(source, batch_rows)))
            theirs = statistics.median(bench.built_in(bench.source(source, batch_rows)))
            console.print(f"pair {number}: twopc {ours:.0f} ms, Spark's sink {theirs:.0f} ms")
            results.append({"exactly_once_ms": ours, "built_in_ms": theirs, "ratio": ours / theirs})
    ratios = sorted(result["ratio"] for result in results)
    if as_json:
        print(json.dumps({"batch_rows": batch_rows, "pairs": results, "ratio": statistics.median(ratios)}))  # noqa: T201
        return
    table = Table(title=f"addBatch, {batch_rows} rows per batch, {partitions} tasks, medians of {len(results)} pairs")
    for column in ("sink", "ms", "ratio to Spark's sink (min-max)"):
        table.add_column(column)
    for label, key in (
        ("twopc, exactly once", "exactly_once_ms"),
        ("Spark's Kafka sink, at least once", "built_in_ms"),
    ):
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})" if key[0] == "e" else "1"
        table.add_row(label, f"{statistics.median(result[key] for result in results):.0f}", spread)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
