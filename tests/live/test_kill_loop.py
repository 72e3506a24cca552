"""The kill loop always finds the fault of a wrong sink, and finds no fault in this project's sinks."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import uuid
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests.live.pipeline import create_topic
from tests.reader import committed
from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink
from twopc.testing.kill_loop import KafkaTopic, Moment, kill_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.live.services import KafkaService

pytestmark = pytest.mark.timeout(900)


def numbers_in(database: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        return [number for (number,) in db.execute("SELECT number FROM rows ORDER BY rowid")]


def appends_to(database: Path) -> Callable[[DataFrame, int], None]:
    """A ``foreachBatch`` function as in many tutorials."""
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE rows (number INTEGER)")
    path = str(database)

    def append(frame: DataFrame, batch_id: int) -> None:
        del batch_id
        rows = [(row.number,) for row in frame.collect()]
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.executemany("INSERT INTO rows VALUES (?)", rows)

    return append


@pytest.mark.whole
def test_the_kill_loop_finds_that_an_append_duplicates_a_batch(
    tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    database = tmp_path / "rows.db"
    outcome = kill_loop(
        lambda: numbers_in(database), foreach_batch=appends_to(database), directory=tmp_path / "loop", rows=40, kills=1
    )
    add_summary(str(outcome))
    assert [kill.partition("@")[0] for kill in outcome.kills] == ["after"]
    assert (outcome.lost, len(outcome.duplicated), set(outcome.duplicated.values())) == ((), 10, {2})
    with pytest.raises(AssertionError, match=f"10 duplicated.*repeat with seed {outcome.seed}"):
        outcome.require_exactly_once()


def kafka_options(kafka: KafkaService) -> tuple[str, dict[str, str]]:
    topic = create_topic(kafka.bootstrap_servers, f"k{uuid.uuid4().hex[:10]}-out")
    return topic, {"spark.jars": ",".join(map(str, spark_kafka_jars()))}


@pytest.mark.whole  # `make demo` goes through the same loop, and `make test` runs a demo
def test_a_query_with_exactly_once_passes_the_kill_loop(
    kafka: KafkaService, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    topic, spark = kafka_options(kafka)
    sink = KafkaSink(name=topic, bootstrap_servers=kafka.bootstrap_servers, topic=topic)

    def query(frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        each = exactly_once(sink, checkpoint_location=checkpoint)
        return frame.select("key", "value").writeStream.foreachBatch(each)

    outcome = kill_loop(
        lambda: committed(kafka.bootstrap_servers, topic).elements(),
        query=query,
        directory=tmp_path / "loop",
        rows=60,
        kills=2,
        spark=spark,
    )
    add_summary(str(outcome))
    outcome.require_exactly_once()
    assert len(outcome.kills) == 2


@pytest.mark.whole
def test_the_kill_loop_finds_that_sparks_own_sink_duplicates_records(
    kafka: KafkaService, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    topic, spark = kafka_options(kafka)
    servers = kafka.bootstrap_servers

    def query(frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        del checkpoint
        written = frame.select("key", "value").writeStream.format("kafka").option("topic", topic)
        return written.option("kafka.bootstrap.servers", servers)

    outcome = kill_loop(
        lambda: committed(servers, topic).elements(),
        query=query,
        directory=tmp_path / "loop",
        rows=40,
        kills=1,
        moments=[Moment.DURING],
        spark=spark,
    )
    add_summary(str(outcome))
    assert outcome.lost == ()
    assert outcome.duplicated


@pytest.mark.whole
def test_the_kill_loop_finds_that_a_data_source_commits_a_repeated_batch_again(
    tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    """The query has no ``foreachBatch`` function that the loop could hold. The data source ignores the batch's id."""
    datasource = pytest.importorskip("pyspark.sql.datasource", reason="new in Spark 4.0")
    database = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE rows (number INTEGER)")
    path = str(database)

    class Written(datasource.WriterCommitMessage):  # type: ignore[name-defined, misc]
        def __init__(self, rows: list[tuple[int]]) -> None:
            self.rows = rows

    class Writer(datasource.DataSourceStreamWriter):  # type: ignore[name-defined, misc]
        def write(self, rows: Iterator[Row]) -> Any:
            return Written([(row.number,) for row in rows])

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
            del batchId
            with contextlib.closing(sqlite3.connect(path)) as db, db:
                for message in messages:
                    db.executemany("INSERT INTO rows VALUES (?)", message.rows)

    class Database(datasource.DataSource):  # type: ignore[name-defined, misc]
        @classmethod
        def name(cls) -> str:
            return "database"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: FBT001, N802 - Spark's signature
            del schema, overwrite
            return Writer()

    def query(frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        del checkpoint
        frame.sparkSession.dataSource.register(Database)
        return frame.writeStream.format("database")

    outcome = kill_loop(lambda: numbers_in(database), query=query, directory=tmp_path / "loop", rows=40, kills=1)
    add_summary(str(outcome))
    assert [kill.partition(" ")[0] for kill in outcome.kills] == ["after"]
    assert (outcome.lost, len(outcome.duplicated), set(outcome.duplicated.values())) == ((), 10, {2})


@pytest.mark.whole
def test_a_query_with_exactly_once_survives_kills_at_crash_points_and_at_random_moments(
    kafka: KafkaService, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    """The seed also chooses who writes, and how many partitions the source has. `local[2]` has four writers."""
    seed = int(os.environ.get("TWOPC_SEED", str(random.SystemRandom().randrange(1 << 32))))
    generator = random.Random(seed)
    ways: tuple[Literal["auto", "tasks"], ...] = ("auto", "tasks")
    partitions, way = generator.choice([3, 12]), generator.choice(ways)
    add_summary(f"TWOPC_SEED={seed}, {partitions} partitions, write_by={way}")
    topic, spark = kafka_options(kafka)
    sink = KafkaSink(name=topic, bootstrap_servers=kafka.bootstrap_servers, topic=topic)
    source = KafkaTopic(kafka.bootstrap_servers, f"{topic}-in", partitions)

    def query(frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        each = exactly_once(sink, checkpoint_location=checkpoint, write_by=way)
        return frame.select("key", "value").writeStream.foreachBatch(each)

    points: dict[str, Any] = {"crash_points": ["driver.decided", "task.prepared"], "moments": [Moment.RANDOM]}
    outcome = kill_loop(
        lambda: committed(kafka.bootstrap_servers, topic).elements(),
        query=query,
        directory=tmp_path / "loop",
        source=source,
        rows=80,
        kills=3,
        seed=seed,
        spark=spark,
        **points,
    )
    add_summary(str(outcome))
    outcome.require_exactly_once(in_order=True)
