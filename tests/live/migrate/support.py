"""A pipeline as it was before the migration: Spark from a topic to a topic, with a function of the user's in foreachBatch."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from sinks.kafka_legacy import AtLeastOnceKafkaSink
from tests.live.pipeline import create_topic
from tests.reader import committed, consumer_of, counted, read_to_end
from twopc.testing.kill_loop import KafkaTopic
from twopc.testing.kill_loop.records import key_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


#: Spark asks with a request that 0.10 does not have (describeTopics) unless it is told to use its consumer.
FOR_OLD_BROKERS: Final = {"spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "true"}


@dataclass
class OldTopic(KafkaTopic):
    """The kill loop's source on a broker without idempotent producers; the topic is there."""

    def feed(self, numbers: range) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        for number in numbers:
            producer.produce(self.topic, str(number), key_of(number, self.keys), number % self.keys % self.partitions)
        assert producer.flush(60) == 0


class OldPipeline:
    """One query over any number of runs.

    Attributes:
        given: every value that it was fed.
    """

    def __init__(self, source_servers: str, root: Path, *, servers: str | None = None, partitions: int = 4) -> None:
        self.name = f"m{uuid.uuid4().hex[:10]}"
        self.source_servers = source_servers
        self.servers = servers or source_servers
        self.checkpoint = root / "checkpoint"
        self.source = create_topic(source_servers, f"{self.name}-in", partitions)
        self.topic = create_topic(self.servers, f"{self.name}-out", partitions)
        self.given: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": source_servers, "partitioner": "murmur2_random", "log_level": 0}
        )

    def sink(self) -> AtLeastOnceKafkaSink:
        return AtLeastOnceKafkaSink(bootstrap_servers=self.servers, topic=self.topic)

    def feed(self, count: int, *, keys: int = 23, values: int | None = None) -> None:
        """Add records; with ``values`` there are so many different ones only, so that equal rows occur."""
        for _ in range(count):
            number = len(self.given)
            text = f"v{number % values if values else number:05d}"
            self.given.append(text)
            self._producer.produce(self.source, text.encode(), f"k{int(text[1:]) % keys}".encode())
        assert self._producer.flush(60) == 0

    def frame(self, spark: SparkSession, max_offsets: int | None) -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.source_servers)
        reader = reader.option("subscribe", self.source).option("startingOffsets", "earliest")
        if max_offsets is not None:
            reader = reader.option("maxOffsetsPerTrigger", max_offsets)
        return reader.load().select("key", "value")

    def run(
        self,
        spark: SparkSession,
        write: Callable[[DataFrame, int], object],
        *,
        max_offsets: int | None = None,
    ) -> None:
        """Process all input. Raises the error that stops the query."""
        self.complete(self.frame(spark, max_offsets).writeStream.foreachBatch(write))  # type: ignore[arg-type]

    def complete(self, writer: DataStreamWriter) -> None:
        """Start the query and wait for its end. Raises the error that stops it."""
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def commit_file(self, batch_id: int) -> Path:
        return self.checkpoint / "commits" / str(batch_id)

    def of_batch(self, batch_id: int) -> list[str]:
        """The input of a batch, by its offsets in the checkpoint."""
        ends = self._offsets(batch_id)
        starts = self._offsets(batch_id - 1)
        with closing(consumer_of(self.source_servers)) as consumer:
            messages = [
                message
                for message in read_to_end(consumer, self.source)
                if starts.get(str(message.partition()), 0)
                <= (message.offset() or 0)
                < ends.get(str(message.partition()), 0)
            ]
        return sorted(counted(messages).elements())

    def _offsets(self, batch_id: int) -> dict[str, Any]:
        file = self.checkpoint / "offsets" / str(batch_id)
        if not file.exists():
            return {}
        return dict(json.loads(file.read_text().splitlines()[-1])[self.source])

    def visible(self) -> Counter[str]:
        """What an independent reader sees of the output."""
        return committed(self.servers, self.topic)
