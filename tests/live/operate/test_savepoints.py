"""Savepoints of a real query: they are taken under load, moved and restored, and every count is exact."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.live import spark_query
from tests.live.file_query import BATCHES, SUMS, Query, adding, counters, kafka_sink, values
from tests.live.operate.support import ask, command, spark_files
from tests.live.pipeline import Tasks
from tests.live.redis.conftest import redis_server
from tests.live.rules.batches import ROWS
from tests.live.spark_support import Pipeline, message_of, spark, wait_until
from tests.reader import records
from twopc import AdoptQuery, EndQuery
from twopc.integration.operate import Savepoints, create_savepoint, restore_savepoint, stop_with_savepoint
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.live.redis.services import RedisService
    from tests.live.rules.schedules import Play
    from tests.live.services import KafkaService

__all__ = ["redis_server", "spark"]

_PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def finished(pipeline: Pipeline) -> int:
    commits = Path(pipeline.options.checkpoint) / "commits"
    return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)


def take_under_load(spark: SparkSession, pipeline: Pipeline, directory: Path) -> dict[str, Any]:
    """Take a savepoint while the query runs. The query continues to the end of its input."""
    query, each = pipeline.start(spark, max_offsets=40)
    try:
        wait_until(lambda: finished(pipeline) >= 3 or not query.isActive, "some batches")
        taken = command(
            "savepoint", "create", pipeline.options.checkpoint, str(directory), "--json",
            "--bootstrap-servers", pipeline.bootstrap_servers,
        )  # fmt: skip
        assert query.isActive  # the savepoint was taken while the query was running
        query.awaitTermination()
    finally:
        query.stop()
        each.close()
    assert taken.status == 0, taken.error
    assert finished(pipeline) > taken.facts["batch_id"]
    return dict(taken.facts)


def restored(pipeline: Pipeline, savepoint: str, elsewhere: Path) -> dict[str, Any]:
    """Move a savepoint to another directory, and make the pipeline continue from there."""
    moved = elsewhere / "carried"
    elsewhere.mkdir()
    shutil.move(savepoint, moved)
    done = command(
        "savepoint", "restore", str(moved), str(elsewhere / "checkpoint"), "--json",
        "--bootstrap-servers", pipeline.bootstrap_servers,
    )  # fmt: skip
    assert done.status == 0, done.error
    facts = dict(done.facts)
    settings = {"override": [AdoptQuery(facts["query_id"]), EndQuery(facts["former_query_id"])]}
    pipeline.change(checkpoint=facts["checkpoint"], settings={"checkpoint_location": facts["checkpoint"], **settings})
    return facts


@pytest.fixture
def pipeline(kafka: KafkaService, tmp_path: Path) -> Pipeline:
    found = Pipeline(kafka.bootstrap_servers, tmp_path)
    found.change(settings={"checkpoint_location": found.options.checkpoint})
    return found


@pytest.mark.whole
def test_a_query_restored_from_a_savepoint_under_load_repeats_exactly_what_restore_predicts(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.feed(800)
    taken = take_under_load(spark, pipeline, tmp_path / "kept")
    previous = pipeline.options
    done = restored(pipeline, taken["path"], tmp_path / "elsewhere")
    [repeated] = done["repeated"]
    assert (repeated["first"], repeated["last"], repeated["is_exact"]) == (taken["batch_id"] + 1, 19, True)
    assert repeated["rows"] == 40 * (19 - taken["batch_id"])
    before = pipeline.visible()
    pipeline.require_exactly_once()

    pipeline.feed(100)
    pipeline.run(spark)
    seen = pipeline.visible()
    assert seen.keys() == pipeline.given.keys()
    assert (seen - pipeline.given).total() == repeated["rows"]
    assert max(seen.values()) == 2 and not Counter(before) - seen

    pipeline.options = previous  # the old query has been ended permanently
    pipeline.feed(10)
    assert "query ended" in pipeline.fail(spark)


@pytest.mark.whole
def test_a_restored_source_with_its_own_log_repeats_exactly_what_restore_predicts(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    """A source of files records in the checkpoint which files it has seen, ahead of the batches, and compacts these records."""
    files = tmp_path / "files"
    files.mkdir()

    def add(numbers: range) -> None:
        for number in numbers:
            values = [f"{number}-{row}" for row in range(7)]
            text = "".join(json.dumps({"key": value, "value": value}) + "\n" for value in values)
            (tmp_path / "new").write_text(text)
            os.utime(tmp_path / "new", (1_600_000_000 + number,) * 2)  # Spark takes files in the order of their times
            (tmp_path / "new").rename(files / f"{number:04d}.json")
            pipeline.given.update(values)

    pipeline.change(files=str(files))
    add(range(24))
    taken = take_under_load(spark, pipeline, tmp_path / "kept")
    [repeated] = restored(pipeline, taken["path"], tmp_path / "elsewhere")["repeated"]
    assert repeated["rows"] == 7 * (23 - taken["batch_id"])
    add(range(24, 30))
    pipeline.run(spark)
    seen = pipeline.visible()
    assert seen.keys() == pipeline.given.keys()
    assert (seen - pipeline.given).total() == repeated["rows"]


@pytest.mark.parametrize(
    "provider",
    [
        pytest.param({}, id="hdfs", marks=pytest.mark.whole),
        pytest.param(_ROCKSDB, id="rocksdb", marks=pytest.mark.whole),
    ],
)
def test_the_restored_state_is_that_of_the_savepoints_batch(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path, provider: dict[str, str]
) -> None:
    """Each key's count continues from the savepoint.

    With a state version that is too old, the count is too low; with one that is too new, it is too high.
    """
    pipeline.change(plan="update")
    for name, value in provider.items():
        spark.conf.set(name, value)
    try:
        pipeline.feed(400, keys=7)
        taken = take_under_load(spark, pipeline, tmp_path / "kept")
        restored(pipeline, taken["path"], tmp_path / "elsewhere")
        pipeline.feed(100, keys=7)
        pipeline.run(spark)
    finally:
        for name in provider:
            spark.conf.unset(name)
    expected = Counter(value.partition("-")[0] for value in pipeline.given.elements())
    last: dict[str, int] = {}
    for message in records(pipeline.bootstrap_servers, str(pipeline.options.topic)):
        key, _, count = (message.value() or b"").decode().partition(":")
        last[key] = int(count)  # all records of a key are in one partition
    assert last == dict(expected)


def started(spark: SparkSession, pipeline: Pipeline, max_offsets: int | None) -> StreamingQuery:
    """The query, made for savepoints, that runs until it is stopped."""
    pipeline.flush()
    options = pipeline.options
    if max_offsets is not None:
        pipeline.change(max_offsets=max_offsets)
    sink = KafkaSink(
        name=options.name, topic=options.topic, bootstrap_servers=options.bootstrap_servers, timeout_ms=20_000
    )
    each = exactly_once(sink, interceptors=[Savepoints()], **options.settings)
    frame = spark_query.planned(spark_query.source(spark, pipeline.options), options)
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", options.checkpoint)
    return writer.start()


@pytest.mark.parametrize("is_idle", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_a_query_that_stops_with_a_savepoint_repeats_nothing(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path, *, is_idle: bool
) -> None:
    pipeline.feed(40 if is_idle else 4000)
    query = started(spark, pipeline, None if is_idle else 10)
    wait_until(lambda: finished(pipeline) >= (0 if is_idle else 3) or not query.isActive, "some batches")
    if is_idle:
        wait_until(lambda: not query.status["isTriggerActive"], "the query waits for input")
    taken = stop_with_savepoint(query, pipeline.options.checkpoint, str(tmp_path / "kept"))
    assert not query.isActive
    if not is_idle:
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination()
        assert "StoppedWithSavepointError" in message_of(raised.value)
    assert taken.manifest.batch_id == finished(pipeline)
    done = restored(pipeline, str(taken.path), tmp_path / "elsewhere")
    assert [one["first"] for one in done["repeated"]] == [None]
    pipeline.change(max_offsets=None)
    pipeline.feed(60)
    pipeline.run(spark)
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_query_whose_decisions_are_in_its_checkpoint_continues_from_a_savepoint(
    spark: SparkSession, redis_server: RedisService, tmp_path: Path
) -> None:
    """Without a Kafka sink the decisions are not restored: the sink itself knows its owner, and the last batch."""
    sink = adding(redis_server)
    query = Query(spark, tmp_path / "query", (sink,))
    query.directory.mkdir()
    query.feed({"id": "a", "n": 1})
    query.run()
    taken = create_savepoint(query.directory / "checkpoint", tmp_path / "kept")
    query.feed({"id": "a", "n": 10}, {"id": "b", "n": 5})
    query.run()
    shutil.move(query.directory / "checkpoint", tmp_path / "old")
    done = restore_savepoint(taken.path, query.directory / "checkpoint")
    assert "name in use" in query.refused()  # without the settings that the error names
    query.settings = {"override": [AdoptQuery(done.query_id), EndQuery(taken.manifest.query_id)]}
    query.feed({"id": "a", "n": 100})
    query.run()
    assert counters(redis_server, sink.name) == {"a": 1 + 2 * 10 + 100, "b": 2 * 5}


def test_batches_missing_from_the_ledger_are_in_no_savepoint_and_no_restored_checkpoint(
    play: Play, tmp_path: Path
) -> None:
    """From batch 1, the function swallowed the toolkit's errors, and Spark continued."""
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    kept, checkpoint = str(tmp_path / "kept"), str(spark_files(play, finished=0))
    good = ask(play, "savepoint", "create", checkpoint, kept, "--json")
    spark_files(play, finished=3)
    refused = ask(play, "savepoint", "create", checkpoint, kept)
    assert refused.status == 2 and f"batches 1 to 3 are not in {play.sink.ledger}" in refused.error
    unseen = command("savepoint", "create", checkpoint, kept, "--json")  # without reading the ledger
    refused = ask(play, "savepoint", "restore", unseen.facts["path"], str(tmp_path / "new"))
    assert refused.status == 2 and "Use a savepoint of batch 0 or earlier" in refused.error
    done = ask(play, "savepoint", "restore", good.facts["path"], str(tmp_path / "new"), "--json")
    assert [one["text"] for one in done.facts["repeated"]] == [
        f"nothing will be duplicated: batch 0 is the last batch that {play.name!r} received"
    ]


@pytest.mark.whole
@pytest.mark.parametrize("removed", ["kafka", "redis"])
def test_a_sink_is_removed_with_a_savepoint_and_the_other_sink_receives_every_row_once(
    removed: str, spark: SparkSession, kafka: KafkaService, redis_server: RedisService, tmp_path: Path
) -> None:
    """Without the Kafka sink, the decisions move from its ledger to the checkpoint."""
    events, totals = kafka_sink(kafka.bootstrap_servers), adding(redis_server)
    query = Query(spark, tmp_path / "query", (events, totals))
    query.directory.mkdir()
    for rows in BATCHES[:2]:
        query.feed(*rows)
    query.run()
    taken = create_savepoint(query.directory / "checkpoint", tmp_path / "kept")
    shutil.move(query.directory / "checkpoint", tmp_path / "old")
    done = restore_savepoint(taken.path, query.directory / "checkpoint")
    query.sinks = (totals,) if removed == "kafka" else (events,)
    query.feed(*BATCHES[2])
    assert "name in use" in query.refused()  # without the settings that `restore` prints
    query.settings = {"override": [AdoptQuery(done.query_id), EndQuery(taken.manifest.query_id)]}
    query.run()
    shown = BATCHES[:2] if removed == "kafka" else BATCHES
    assert values(events) == Counter(str(row["n"]) for rows in shown for row in rows)
    assert counters(redis_server, totals.name) == ({"odd": 3 + 5, "even": 2 + 4} if removed == "redis" else SUMS)
