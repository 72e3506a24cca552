"""A query over files of JSON lines into chosen sinks, and what these sinks contain."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.live.pipeline import create_topic
from tests.live.spark_support import finish, message_of
from tests.reader import committed
from twopc.integration.spark import ExactlyOnce, exactly_once
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.live.redis.services import RedisService


_FIRST_FILE_AT = 1_600_000_000


@dataclasses.dataclass
class Query:
    """A query over files of JSON lines, one batch per file, into chosen sinks."""

    spark: SparkSession
    directory: Path
    sinks: tuple[Any, ...]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    schema: str = "id STRING, n BIGINT"
    function: Callable[[ExactlyOnce], Callable[[DataFrame, int], None]] = lambda each: each
    plan: Callable[[DataFrame], DataFrame] = lambda frame: frame
    output_mode: str = "append"

    def feed(self, *rows: dict[str, Any]) -> None:
        """Add one batch."""
        source = self.directory / "source"
        source.mkdir(exist_ok=True)
        name = f"{len(list(source.iterdir())):06d}.json"
        (self.directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        at = _FIRST_FILE_AT + len(list(source.iterdir()))  # Spark reads files in the order of their modification times
        os.utime(self.directory / name, (at, at))
        (self.directory / name).rename(source / name)

    def run(self, *expressions: str) -> None:
        """Process all fed batches. Raises the error that stops the query."""
        finish(*self.start(*expressions))

    def start(self, *expressions: str) -> tuple[StreamingQuery, ExactlyOnce]:
        """Begin to process all fed batches."""
        checkpoint = str(self.directory / "checkpoint")
        frame = (
            self.spark.readStream.schema(self.schema)
            .option("maxFilesPerTrigger", 1)
            .json(str(self.directory / "source"))
        )
        each = exactly_once(*self.sinks, **self.settings)
        selected = frame.selectExpr(*(expressions or ("*", "id AS key", "CAST(n AS STRING) AS value")))
        writer = self.plan(selected).writeStream.foreachBatch(self.function(each)).outputMode(self.output_mode)
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(), each

    def fail_at(self, point: str) -> None:
        """Stop the query at a crash point. The driver ends no transaction, so the state is the one after a kill."""
        crash_points.arm_from(f"{point}=die")
        try:
            with pytest.raises(StreamingQueryException, match="InjectedFault"):
                self.run()
        finally:
            crash_points.disarm()

    def run_over_a_crash_at(self, point: str) -> None:
        """Process :data:`BATCHES`, with a crash in the second one."""
        self.feed(*BATCHES[0])
        self.run()
        self.feed(*BATCHES[1])
        self.fail_at(point)
        self.feed(*BATCHES[2])
        self.run()

    def require_whole_batches(self, count: Callable[[], int]) -> None:
        """Process :data:`BATCHES`. A reader who counts the rows after each of a batch's commits sees no part of the batch.

        The sinks must have ``write_by="tasks"``. Then each row has its own task, and so its own commit.
        """
        for rows in BATCHES:
            self.feed(*rows)
        seen: list[int] = []

        def look() -> None:
            crash_points.arm("driver.committing", look)
            seen.append(count())

        crash_points.arm("driver.committing", look)
        try:
            self.run()
        finally:
            crash_points.disarm()
        sizes = [len(rows) for rows in BATCHES]
        assert len(seen) == sum(sizes), seen
        assert {*seen, count()} <= {sum(sizes[:number]) for number in range(len(sizes) + 1)}, seen

    def refused(self, *expressions: str) -> str:
        with pytest.raises(StreamingQueryException) as raised:
            self.run(*expressions)
        return message_of(raised.value)


def counting(into: Path) -> Callable[[DataFrame], DataFrame]:
    """A plan that appends the number of evaluated rows to the file; :func:`counted` returns the total."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            with into.open("a") as file:
                file.write(f"{rows.num_rows}\n")
            yield rows

    return lambda frame: frame.mapInArrow(count, frame.schema)


def counted(into: Path) -> int:
    return sum(map(int, into.read_text().split()))


def unique() -> str:
    return f"q{uuid.uuid4().hex[:10]}"


def kafka_sink(bootstrap_servers: str, **arguments: Any) -> KafkaSink:
    name = unique()
    create_topic(bootstrap_servers, name, 2)
    return KafkaSink(name=name, bootstrap_servers=bootstrap_servers, topic=name, timeout_ms=20_000, **arguments)


def values(sink: KafkaSink) -> Counter[str]:
    assert sink.topic is not None
    return committed(sink.bootstrap_servers, sink.topic)


def counters(redis_server: RedisService, name: str) -> dict[str, int]:
    with contextlib.closing(redis_client(redis_server)) as client:
        return {
            key.decode().partition(":")[2]: int(client.get(key)) for key in client.scan_iter(f"{name}:*", count=1000)
        }


def redis_client(redis_server: RedisService) -> Any:
    import redis  # noqa: PLC0415 - an import at the top would hide the fixture's module

    return redis.Redis.from_url(redis_server.url)


def adding(redis_server: RedisService) -> RedisSink:
    name = unique()
    return RedisSink(name=name, url=redis_server.url, mapping=IncrBy(f"{name}:{{id}}", by="n"))


BATCHES = [[{"id": "odd", "n": 2 * i + 1}, {"id": "even", "n": 2 * i}] for i in range(1, 4)]
SUMS = {"odd": 3 + 5 + 7, "even": 2 + 4 + 6}
VALUES = Counter(str(row["n"]) for rows in BATCHES for row in rows)
