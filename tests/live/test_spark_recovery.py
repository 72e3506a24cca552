"""The situations that a restart may find, with Spark: replays, expired transactions, rival drivers, copied checkpoints."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.live.broker_changes import add_partitions
from tests.live.file_query import Query, kafka_sink, values
from tests.live.pipeline import create_topic
from tests.live.services import chosen
from tests.live.spark_support import BY_TASKS, Pipeline, Run, spark, wait_until
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka.handle import ProducerIdentity
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

#: Transaction timeouts, tried in order until this machine writes a batch within one of them.
TIMEOUTS_MS = (8_000, 30_000, 120_000)


@pytest.fixture(scope="module")
def prompt_kafka() -> Iterator[str]:
    """A broker that looks for expired transactions five times a second instead of every ten seconds."""
    if chosen() != "local":
        pytest.skip("this test needs a broker with special properties")
    with LocalKafka(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}) as kafka:
        yield kafka.bootstrap_servers


# -- replays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan", ["rows", *(pytest.param(plan, marks=pytest.mark.whole) for plan in ("unstable", "shuffle"))]
)
def test_a_restart_without_the_newest_commit_file_duplicates_no_record(
    plan: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """This is the state after a crash between foreachBatch's return and Spark's commit (apache/paimon#9666)."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, max_offsets=30)
    pipeline.feed(60)
    pipeline.run(spark)
    forget_newest_commit(pipeline)
    pipeline.feed(20)
    pipeline.run(spark)
    pipeline.require_exactly_once()


@pytest.mark.whole
@pytest.mark.parametrize("plan", ["update", pytest.param("complete", marks=pytest.mark.whole)])
def test_a_stateful_query_continues_after_a_decided_batch_was_only_evaluated(
    plan: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan)
    counts: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for crash in (None, "driver.decided", "driver.committed", None):
        fed = Counter(value.partition("-")[0] for value in pipeline.feed(25, keys=4))
        counts += fed
        shown = counts if plan == "complete" else {key: counts[key] for key in fed}
        expected.update(f"{key}:{count}" for key, count in shown.items())
        if crash is not None:
            pipeline.fail_at(spark, crash)
            forget_state_of_newest_batch(pipeline)
        pipeline.run(spark)
        assert pipeline.visible() == expected


# -- expired transactions ----------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_query_killed_and_restarted_after_the_transaction_timeout_loses_nothing(
    prompt_kafka: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Without a shuffle, the whole batch is rewritten.

    With staging and one committed transaction, the missing rows come from the staged files.
    """
    plain = Pipeline(prompt_kafka, tmp_path / "plain")
    staged = Pipeline(prompt_kafka, tmp_path / "staged", plan="unstable", settings={**BY_TASKS, "staging": True})
    pipelines = (plain, staged)
    with contextlib.ExitStack() as stack:
        for pipeline in pipelines:
            stack.callback(pipeline.close)
            pipeline.feed(60)
        client = stack.enter_context(closing(client_of(plain)))
        runs = [stopped_with_short_transactions(staged)]
        commit(client, open_transactions(client, staged)[:1])
        runs.append(stopped_with_short_transactions(plain))
        wait_until(
            lambda: not any(open_transactions(client, p) for p in pipelines), "the broker aborts the transactions"
        )
        for run in runs:
            run.kill_driver()
        assert not plain.visible()
        assert 0 < sum(staged.visible().values()) < 60
        for pipeline in pipelines:
            pipeline.feed(10)
            pipeline.run(spark)
            pipeline.require_exactly_once()
        plain.require_order()
    kept = Path(staged.options.checkpoint, "twopc", "staging").rglob("*.arrow")
    assert not list(kept), "the staged files of proven rows should be deleted"


def test_a_batch_that_lost_some_transactions_is_in_doubt_if_its_replay_differs(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="unstable", settings=BY_TASKS)
    pipeline.feed(60)
    kept, gone = decide_and_lose(pipeline, spark, but=1)
    before = pipeline.visible()
    for _ in range(2):
        message = pipeline.fail(spark)
        assert "InDoubtError" in message
        committed, _, lost = message.partition("committed: ")[2].partition("; lost: ")
        assert all(name in committed for name in kept)
        assert all(name in lost for name in gone)
        assert "staging=True" in message
    assert pipeline.visible() == before


# With four partitions, Spark has been observed to plan the replay's tasks in a different order.
@pytest.mark.parametrize("partitions", [4, pytest.param(12, marks=pytest.mark.whole)])
def test_a_batch_that_lost_some_transactions_is_repaired_if_the_replay_has_the_same_rows(
    partitions: int, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=partitions, settings=BY_TASKS)
    pipeline.feed(60)
    decide_and_lose(pipeline, spark, but=1)
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_a_batch_that_lost_every_transaction_is_rewritten_even_if_the_replay_has_different_rows(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="unstable", settings=BY_TASKS)
    pipeline.feed(60)
    decide_and_lose(pipeline, spark, but=0)
    pipeline.run(spark)
    pipeline.require_exactly_once()


# -- rivals and copies -------------------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("driver.inspected", marks=pytest.mark.whole),
        pytest.param("driver.confirmed", marks=pytest.mark.whole),
        "driver.decided",
    ],
)
def test_a_paused_driver_stops_after_another_ran_on_a_copy_of_its_checkpoint(
    point: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    run_a_copy_while_paused(Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=20), spark, point)


def run_a_copy_while_paused(pipeline: Pipeline, spark: SparkSession, point: str) -> None:
    """Stop a driver at a crash point, run another on a copy of its checkpoint, wake the first one."""
    pipeline.feed(20)
    pipeline.run(spark)
    pipeline.feed(60)
    paused = pipeline.process(f"{point}=stop")
    try:
        paused.wait_stopped()
        copy = str(shutil.copytree(pipeline.options.checkpoint, pipeline.root / "copy"))
        pipeline.run(spark, checkpoint=copy)
        paused.resume()
        assert paused.ended() == 1
        assert "FencedError" in paused.text or "RefusedStartError" in paused.text, paused.text[-3000:]
        pipeline.feed(20)
        pipeline.run(spark, checkpoint=copy)
        pipeline.require_exactly_once()
        pipeline.require_order()
    finally:
        pipeline.close()


@pytest.mark.whole
def test_a_restored_older_checkpoint_is_refused_and_writes_nothing(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    backup = tmp_path / "backup"
    for number in range(3):
        pipeline.feed(20)
        pipeline.run(spark)
        if number == 0:
            shutil.copytree(pipeline.options.checkpoint, backup)
    message = pipeline.fail(spark, checkpoint=str(backup))
    assert "RefusedStartError: checkpoint rewound" in message
    assert "override=EndQuery(" in message
    pipeline.feed(20)
    pipeline.run(spark)
    pipeline.require_exactly_once()


def test_a_copied_checkpoint_with_different_offsets_is_refused_and_writes_nothing(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(20)
    pipeline.run(spark)
    copy = str(shutil.copytree(pipeline.options.checkpoint, tmp_path / "copy"))
    pipeline.feed(20)
    pipeline.run(spark)
    pipeline.feed(20)
    assert "RefusedStartError: another history" in pipeline.fail(spark, checkpoint=copy)
    pipeline.run(spark)
    pipeline.require_exactly_once()


def _with_idle_source(frame: DataFrame) -> DataFrame:
    """Add a source that never has rows. As a source in Python, it has no directory in the checkpoint, like a Delta table."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader  # noqa: PLC0415 - Spark 3.5 has neither

    class _Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            return {"at": 0}

        def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
            return iter(()), start

        def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802 - Spark's name
            del start, end
            return iter(())

    class _Idle(DataSource):
        @classmethod
        def name(cls) -> str:
            return "idle"

        def schema(self) -> str:
            return "id STRING, n BIGINT, key STRING, value STRING"

        def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802 - Spark's name
            del schema
            return _Reader()

    frame.sparkSession.dataSource.register(_Idle)
    return frame.unionByName(frame.sparkSession.readStream.format("idle").load())


@pytest.mark.whole
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(
            _with_idle_source,
            id="with a source without a directory",
            marks=pytest.mark.skipif(pyspark.__version__ < "4.0", reason="Spark has sources in Python from 4.0 on"),
        ),
        pytest.param(lambda frame: frame.union(frame), id="read twice"),
    ],
)
def test_a_copied_checkpoint_with_different_files_is_refused_and_loses_no_file(
    plan: Callable[[DataFrame], DataFrame], kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """In both histories, the file source's counter is the same."""
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),), plan=plan)
    query.feed({"id": "a", "n": 1})
    query.run()
    ours, backup = tmp_path / "checkpoint", tmp_path / "backup"
    shutil.copytree(ours, backup)
    query.feed({"id": "a", "n": 2})
    query.run()
    written = values(query.sinks[0])
    assert written.keys() == {"1", "2"}
    query.feed({"id": "a", "n": 3})
    _make_oldest(tmp_path / "source" / "000002.json")
    ours.rename(tmp_path / "newest")
    backup.rename(ours)
    assert "RefusedStartError: another history" in query.refused()
    assert values(query.sinks[0]) == written
    shutil.rmtree(ours)
    (tmp_path / "newest").rename(ours)
    query.run()
    assert values(query.sinks[0]).keys() == {"1", "2", "3"}


def _make_oldest(file: Path) -> None:
    """Let Spark read the file before the files that it has not read yet."""
    oldest = min(each.stat().st_mtime for each in file.parent.iterdir()) - 1
    os.utime(file, (oldest, oldest))


# -- accepted changes --------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_empty_batches_different_partition_counts_and_added_topics_are_accepted(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="shuffle", filter="value is not null")
    pipeline.give(None, key=b"a batch without rows, and the first one")
    pipeline.run(spark)
    assert not pipeline.visible()
    pipeline.feed(20)
    pipeline.run(spark)
    pipeline.give(None, key=b"a batch without rows, in between")
    pipeline.run(spark)
    pipeline.feed(20)
    pipeline.change(partitions=7)
    pipeline.run(spark)
    second = create_topic(kafka.bootstrap_servers, f"{pipeline.options.name}-in-2", 2)
    pipeline.change(sources=(*pipeline.options.sources, second))
    pipeline.feed(20, topic=second)
    pipeline.feed(20)
    pipeline.run(spark)
    pipeline.change(plan="rows", partitions=2)
    pipeline.feed(20)
    pipeline.run(spark)
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_partitions_added_to_the_output_cause_a_warning_and_are_accepted(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(20)
    pipeline.run(spark)
    topic = str(pipeline.options.topic)
    add_partitions(kafka.bootstrap_servers, topic, 6)
    pipeline.feed(20)
    with caplog.at_level(logging.WARNING):
        pipeline.run(spark)
    assert f"{topic} had 4 partitions and now has 6" in caplog.text
    pipeline.require_exactly_once()


# -- helpers -----------------------------------------------------------------------------------------------------------


def stopped_with_short_transactions(pipeline: Pipeline) -> Run:
    """A stopped driver that has decided a batch. Another query runs first, because a new JVM's first batch takes seconds."""
    first = Pipeline(pipeline.bootstrap_servers, pipeline.root / "first", plan=pipeline.options.plan)
    for timeout_ms in TIMEOUTS_MS:
        first.feed(4)
        first.flush()
        sink = {"options": {"kafka.transaction.timeout.ms": timeout_ms}}
        run = pipeline.process("driver.decided@2=stop", after=first, sink=sink)
        if run.stops():
            return run
        assert "CheckpointExpiredError" in run.text, run.text[-3000:]
    raise AssertionError(f"no batch was written within {TIMEOUTS_MS[-1]} ms")


def client_of(pipeline: Pipeline) -> TransactionClient:
    return TransactionClient({"bootstrap_servers": [pipeline.bootstrap_servers]})


def open_transactions(client: TransactionClient, pipeline: Pipeline) -> list[str]:
    return list(client.list_open(f"{pipeline.options.name}.").transactional_ids)


def commit(client: TransactionClient, transactional_ids: Sequence[str]) -> None:
    found = client.describe(transactional_ids)
    client.end([ProducerIdentity(tid, found[tid].producer_id, found[tid].producer_epoch) for tid in transactional_ids])


def decide_and_lose(pipeline: Pipeline, spark: SparkSession, *, but: int) -> tuple[list[str], list[str]]:
    """Stop the driver after its decision, commit the first ``but`` transactions, fence the others as a timeout would.

    Returns:
        the ids of the committed and of the lost transactions; some are lost.
    """
    pipeline.fail_at(spark, "driver.decided")
    with closing(client_of(pipeline)) as client:
        decided = open_transactions(client, pipeline)
        kept, lost = decided[:but], decided[but:]
        assert len(kept) == but
        assert lost
        if kept:
            commit(client, kept)
        client.fence([ProducerIdentity(name) for name in lost])
    return kept, lost


def numbered(directory: Path) -> list[Path]:
    return sorted((path for path in directory.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def forget_newest_commit(pipeline: Pipeline) -> None:
    newest = numbered(Path(pipeline.options.checkpoint, "commits"))[-1]
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def forget_state_of_newest_batch(pipeline: Pipeline) -> None:
    """Delete the newest batch's state, as if the state store had never completed it; only an evaluation restores it."""
    version = int(numbered(Path(pipeline.options.checkpoint, "offsets"))[-1].name) + 1
    found = list(Path(pipeline.options.checkpoint, "state").rglob(f"{version}.delta"))
    assert found
    for path in found:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
