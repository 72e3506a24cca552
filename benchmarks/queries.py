"""Run streaming queries from Kafka to Kafka, with this project and with Spark's own sink, from the same source."""

from __future__ import annotations

import statistics
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.counting import count
from benchmarks.durations import durations_ms
from benchmarks.measured import TRIGGER_TIME
from benchmarks.memory import Held
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from benchmarks.broker import Broker, Counts
    from benchmarks.counting import Count
    from benchmarks.topics import Topics

WARM_UP_BATCHES = 3
#: Spark's source fetches ahead. So near the topic's end, with any sink, every batch waits for records that never arrive: by
#: default, half a second.
_FETCH_WAIT_MS = 20


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


@dataclass(frozen=True, kw_only=True)
class Source:
    """A filled topic.

    Attributes:
        topic: the topic's name.
        rows: the number of records in the topic.
        batch_rows: the number of rows in a batch.
        most_offsets: Spark's limit for a batch, in offsets. Spark rounds each partition's share down, so with ``batch_rows`` as
            the limit, a few records would remain for an extra batch.
        query: what the query does with the rows, which have the columns ``key`` and ``value``. It keeps every key.
    """

    topic: str
    rows: int
    batch_rows: int
    most_offsets: int
    query: Callable[[DataFrame], DataFrame] = _unchanged


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One query, from start to end.

    Attributes:
        add_batch_ms: Spark's ``addBatch`` time of each batch except the first few, in ms.
        output: the records that the reader found in the output.
        facts: the trigger time and, with a broker to read, the memory and the broker's counts.
    """

    add_batch_ms: list[float]
    output: Count
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def median_ms(self) -> float:
        """The median ``addBatch`` time, in ms."""
        return statistics.median(self.add_batch_ms)


class Queries:
    """Runs queries in one session, on one broker. Counts each output, and then deletes it.

    Args:
        spark: the session.
        topics: the broker's topics.
        directory: the directory for checkpoints.
        broker: reads the broker's own counts; None: the runs measure only times.
    """

    def __init__(self, spark: SparkSession, topics: Topics, directory: Path, broker: Broker | None = None) -> None:
        self._spark = spark
        self._broker = broker
        self.topics = topics
        self._servers = topics.bootstrap_servers
        self._directory = directory

    def source(self, batch_rows: int, batches: int, *, value_bytes: int = 100, partitions: int | None = None) -> Source:
        """Fill a topic with enough records for this number of batches."""
        rows = batch_rows * batches
        topic = self.topics.fill(rows, value_bytes=value_bytes, partitions=partitions)
        most = batch_rows + self.topics.partition_count(topic)
        return Source(topic=topic, rows=rows, batch_rows=batch_rows, most_offsets=most)

    def drop(self, source: Source) -> None:
        """Delete a source."""
        self.topics.delete(source.topic)

    def exactly_once(self, source: Source, settings: dict[str, Any]) -> Ran:
        """Run with this project."""
        checkpoint, output = self._checkpoint(), self.topics.create()
        name = f"b{uuid.uuid4().hex[:8]}"
        sink = KafkaSink(name=name, bootstrap_servers=self._servers, topic=output)
        each = exactly_once(sink, checkpoint_location=checkpoint, **settings)
        try:
            ran = self._run(self._rows(source).writeStream.foreachBatch(each), checkpoint, source, output)
        finally:
            each.close()
        # Not if the query failed: there may be no ledger yet, and this error would hide the query's.
        self.topics.delete(sink.ledger)
        return ran

    def built_in(self, source: Source) -> Ran:
        """Run with Spark's Kafka sink."""
        output = self.topics.create()
        writer = self._rows(source).writeStream.format("kafka").option("kafka.bootstrap.servers", self._servers)
        return self._run(writer.option("topic", output), self._checkpoint(), source, output)

    def function(self, source: Source, function: Callable[[DataFrame, int], None]) -> list[float]:
        """Run with a function that writes nothing. Return the ``addBatch`` times, in ms."""
        writer = self._rows(source).writeStream.foreachBatch(function)
        return durations_ms(_ended(writer, self._checkpoint()), "addBatch", warm_up=WARM_UP_BATCHES)

    def _checkpoint(self) -> str:
        return str(self._directory / uuid.uuid4().hex)

    def _rows(self, source: Source) -> DataFrame:
        stream = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._servers)
        stream = stream.option("subscribe", source.topic).option("startingOffsets", "earliest")
        stream = stream.option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        return source.query(stream.option("maxOffsetsPerTrigger", source.most_offsets).load().select("key", "value"))

    def _run(self, writer: DataStreamWriter, checkpoint: str, source: Source, output: str) -> Ran:
        held = Held(self._spark.sparkContext, self._servers) if self._broker else None
        before = self._broker.read() if self._broker else None
        query = _ended(writer, checkpoint)
        times_ms = durations_ms(query, "addBatch", warm_up=WARM_UP_BATCHES)
        trigger_ms = durations_ms(query, "triggerExecution", warm_up=WARM_UP_BATCHES)
        facts = {TRIGGER_TIME: statistics.median(trigger_ms)}
        if before and held:
            facts |= self._wire_facts(before, WARM_UP_BATCHES + len(times_ms)) | held.facts()
        counted = count(self._servers, output, expected=source.rows)
        self.topics.delete(output)
        return Ran(add_batch_ms=times_ms, output=counted, facts=facts)

    def _wire_facts(self, before: Counts, batches: int) -> dict[str, float]:
        """Compute the broker's counts per batch."""
        if self._broker is None:
            raise AssertionError("only a broker provides counts")
        since = self._broker.read().since(before)
        return {
            "requests per batch": since.all_requests / batches,
            "KiB on the wire per batch": since.wire_bytes / 1024 / batches,
        }


def _ended(writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
    query: StreamingQuery = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return query
