"""A pipeline from before the migration: Spark copies one topic to another, with the user's function in foreachBatch."""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner, Result

from tests.live.pipeline import create_topic
from tests.live.spark_support import message_of
from tests.reader import committed, consumer_of, counted, read_to_end, records
from twopc import AdoptQuery
from twopc.integration.cli import app
from twopc.integration.migrate import TakeOver
from twopc.integration.spark import exactly_once, intercepted
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka_legacy import AtLeastOnceKafkaSink
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


#: Makes Spark fetch offsets with a consumer. By default, it sends a request that Kafka 0.10 does not know
#: (describeTopics).
FOR_OLD_BROKERS: Final = {"spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "true"}


class StopError(Exception):
    """The error that ends a query in these tests, like a crash."""


class OldPipeline:
    """One query over any number of runs.

    Attributes:
        given: every value that it was fed.
        location: the checkpoint location, as passed to the commands.
    """

    def __init__(self, source_servers: str, root: Path, *, servers: str | None = None, partitions: int = 4) -> None:
        self.name = f"m{uuid.uuid4().hex[:10]}"
        self.source_servers = source_servers
        self.servers = servers or source_servers
        self.checkpoint = root / "checkpoint"
        self.location = str(self.checkpoint)
        self.source = create_topic(source_servers, f"{self.name}-in", partitions)
        self.topic = create_topic(self.servers, f"{self.name}-out", partitions)
        self.given: list[str] = []
        self.columns: tuple[str, ...] = ("key", "value")
        self._producer = Producer(
            {"bootstrap.servers": source_servers, "partitioner": "murmur2_random", "log_level": 0}
        )

    def sink(self) -> AtLeastOnceKafkaSink:
        return AtLeastOnceKafkaSink(bootstrap_servers=self.servers, topic=self.topic)

    def feed(self, count: int, *, keys: int = 23, values: int | None = None) -> None:
        """Add records. ``values`` limits the number of different values, so that equal rows occur."""
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
        return reader.load().selectExpr(*self.columns)

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

    def fail(
        self, spark: SparkSession, write: Callable[[DataFrame, int], object], *, max_offsets: int | None = None
    ) -> str:
        """The message of the error that stops the query."""
        with pytest.raises(StreamingQueryException) as raised:
            self.run(spark, write, max_offsets=max_offsets)
        return message_of(raised.value)

    def run_with_sparks_sink(self, spark: SparkSession, *, fails: bool = False) -> None:
        """Process all input with Spark's own Kafka sink; ``fails``: one task fails after its rows, the others do not."""
        frame = self.frame(spark, None)
        if fails:
            frame = frame.mapInArrow(_fail, frame.schema)
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        self.complete(writer.option("topic", self.topic))

    # -- the new sink --------------------------------------------------------------------------------------------------

    @property
    def query_id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def command(self, name: str, *words: str) -> dict[str, Any]:
        """The JSON output of ``twopc migrate``."""
        result = self._result_of(name, "--json", *words)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    def refused(self, name: str, *words: str) -> str:
        """The reason why ``twopc migrate`` refuses, on one line."""
        result = self._result_of(name, *words)
        assert result.exit_code == 2, result.output
        return " ".join(result.output.split())

    def _result_of(self, name: str, *words: str) -> Result:
        given = ["--bootstrap-servers", self.servers, "--sink", self.name, "--checkpoint", self.location]
        return CliRunner().invoke(app, ["migrate", name, *given, *words])

    def cut_over(self, *words: str) -> dict[str, Any]:
        return self.command("cutover", "--topic", self.topic, *words)

    def new_sink(self) -> KafkaSink:
        return KafkaSink(name=self.name, bootstrap_servers=self.servers, topic=self.topic, timeout_ms=20_000)

    def run_new(
        self,
        spark: SparkSession,
        *,
        dry_run: bool = False,
        max_offsets: int | None = 40,
        before: Callable[[int], object] = lambda _: None,
        **settings: Any,
    ) -> None:
        """Process all input with the transactional sink; ``before`` is called with each batch's number."""
        sink = self.new_sink()
        taken = TakeOver(sink, dry_run=dry_run)
        each = exactly_once(sink, interceptors=[taken], **{"override": AdoptQuery(self.query_id), **settings})

        def write(batch: DataFrame, batch_id: int) -> None:
            before(batch_id)
            each(batch, batch_id)

        try:
            self.run(spark, write, max_offsets=max_offsets)
        finally:
            each.close()

    def fail_new(self, spark: SparkSession, **options: Any) -> str:
        with pytest.raises(StreamingQueryException) as raised:
            self.run_new(spark, **options)
        return message_of(raised.value)

    def fail_new_at(self, spark: SparkSession, point: str, **options: Any) -> None:
        """Stop the new query with an error at a crash point, which leaves the same state as a crash there."""
        crash_points.arm_from(f"{point}=raise")
        try:
            assert "InjectedFault" in self.fail_new(spark, **options)
        finally:
            crash_points.disarm()

    def run_old(self, spark: SparkSession, *, max_offsets: int | None = 40) -> None:
        """Process all input with the old sink, after a rollback."""
        self.run(spark, intercepted(self.sink(), TakeOver(self.new_sink())), max_offsets=max_offsets)

    def write_directly(self, value: str, key: str | None = None) -> None:
        """A record from another producer."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        producer.produce(self.topic, value, key)
        assert producer.flush(60) == 0

    # -- the output ----------------------------------------------------------------------------------------------------

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
        """The output as an independent reader sees it."""
        return committed(self.servers, self.topic)

    def visible_ids(self) -> Counter[str]:
        """Count the visible JSON values by their ``id`` field."""
        return Counter(json.loads(value)["id"] for value in self.visible().elements())

    def require_order(self) -> None:
        """Check that the records of each key are in input order."""
        by_key: dict[bytes, list[bytes]] = defaultdict(list)
        for message in records(self.servers, self.topic):
            by_key[message.key() or b""].append(message.value() or b"")
        assert all(values == sorted(values) for values in by_key.values())


def _fail(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Fail in the first task, before its first row, once the others have written theirs."""
    context = TaskContext.get()
    if context is not None and context.partitionId() == 3:
        raise RuntimeError("the task fails")
    yield from batches
