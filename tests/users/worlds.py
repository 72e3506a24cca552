"""Where a program runs: its input, its topics, its directories."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as sf

from tests.live.pipeline import create_topic
from tests.reader import consumer_of, partitions_of, records
from twopc.sinks.kafka import KafkaSink
from twopc.testing.checkers.open_transactions import left_open, states_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.users.program import Program
    from tests.users.reference import Rows

SCHEMA: Final = "id STRING, tenant STRING, n BIGINT, at TIMESTAMP"
_FIRST_FILE_AT: Final = 1_600_000_000
_NAMES: Final = ("one", "two")
_PARTITIONS: Final = 2
#: How long the coordinator may take to finish a request that it has already answered.
_REST_S: Final = 5.0


@dataclass(frozen=True)
class World:
    """A program's input and output on a broker.

    Attributes:
        bootstrap_servers: the address of the broker.
        directory: the directory of everything on disk.
        name: begins every name on the broker.
        source: ``files`` or ``kafka``.
        sinks: how many there are.
        most: the maximum number of a topic's records in a batch.
    """

    bootstrap_servers: str
    directory: Path
    name: str
    source: str
    sinks: int
    most: int

    @property
    def topics(self) -> list[str]:
        """The outputs."""
        return [f"{self.name}-{name}" for name in _NAMES[: self.sinks]]

    def sink(self, number: int) -> KafkaSink:
        topic = self.topics[number]
        return KafkaSink(name=topic, bootstrap_servers=self.bootstrap_servers, topic=topic, timeout_ms=20_000)

    def source_of(self, spark: SparkSession) -> DataFrame:
        """The stream that the program reads."""
        if self.source == "files":
            reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
            return reader.json(str(self.directory / "source"))
        kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap_servers)
        kafka = kafka.option("subscribe", f"{self.name}-in").option("startingOffsets", "earliest")
        kafka = kafka.option("maxOffsetsPerTrigger", self.most)
        parsed = kafka.load().select(sf.from_json(sf.col("value").cast("string"), SCHEMA).alias("row"))
        return parsed.select("row.*")

    def visible(self) -> dict[str, Rows]:
        """The rows that readers see in each sink."""
        return {
            topic: Counter((one.key() or b"", one.value() or b"") for one in records(self.bootstrap_servers, topic))
            for topic in self.topics
        }

    def open_transactions(self) -> list[str]:
        """Find what holds back readers: open transactions, and partitions whose last stable offset is behind."""
        found = [violation.what for violation in left_open(states_of(self.bootstrap_servers, self.name))]
        return found + [behind for topic in self.topics for behind in self._behind(topic)]

    def at_rest(self) -> list[str]:
        """Find the transactions that are still open after the coordinator has had time to end them."""
        deadline = time.monotonic() + _REST_S
        while found := self.open_transactions():
            if time.monotonic() > deadline:
                return found
        return []

    def _behind(self, topic: str) -> list[str]:
        found = []
        stable, all_of_it = (
            consumer_of(self.bootstrap_servers),
            consumer_of(self.bootstrap_servers, isolation="read_uncommitted"),
        )
        try:
            for partition in partitions_of(stable, topic):
                place = TopicPartition(topic, partition)
                ends = [one.get_watermark_offsets(place, timeout=30)[1] for one in (stable, all_of_it)]
                if ends[0] < ends[1]:
                    found.append(f"{topic}-{partition} is readable up to {ends[0]} of {ends[1]}")
        finally:
            stable.close()
            all_of_it.close()
        return found

    def delete(self) -> None:
        """Delete its topics, so that thousands of programs need no larger broker."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        mine = [name for name in admin.list_topics(timeout=30).topics if self.name in name]
        for deleted in admin.delete_topics(mine).values() if mine else ():
            deleted.result()


def world_of(program: Program, bootstrap_servers: str, directory: Path, name: str) -> World:
    """Make a program's input and outputs."""
    most = max(2, sum(map(len, program.batches)) // len(program.batches))
    world = World(bootstrap_servers, directory, name, program.source, program.sinks, most)
    for topic in world.topics:
        create_topic(bootstrap_servers, topic, _PARTITIONS)
    if program.source == "files":
        _write_files(directory, program.batches)
    else:
        _write_topic(bootstrap_servers, f"{name}-in", [row for rows in program.batches for row in rows])
    return world


def _write_files(directory: Path, batches: Sequence[Sequence[dict[str, Any]]]) -> None:
    source = directory / "source"
    source.mkdir(parents=True)
    for number, rows in enumerate(batches):
        path = source / f"{number:03d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(
            path, (_FIRST_FILE_AT + number, _FIRST_FILE_AT + number)
        )  # Spark takes files in the order of their times


def _write_topic(bootstrap_servers: str, topic: str, rows: Sequence[dict[str, Any]]) -> None:
    create_topic(bootstrap_servers, topic, _PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0, "enable.idempotence": True})
    for number, row in enumerate(rows):
        producer.produce(topic, json.dumps(row), partition=number % _PARTITIONS)
    producer.flush()
