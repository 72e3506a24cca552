"""Tasks that write many of the plan's partitions in one transaction die, and the replay has fewer or more tasks.

Each test counts the rows with its own reader. ``test_spark_many_tasks.py`` contains the same tests for a single topic.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.delta.test_spark import COLUMNS, contents, created
from tests.live.file_query import Query, kafka_sink, unique, values
from tests.live.migrate.support import OldPipeline
from tests.live.pipeline import create_topic
from tests.live.spark_support import KILLED, Pipeline, spark
from tests.live.test_spark_kills import worker_faults
from tests.live.test_spark_many_tasks import log_of
from tests.live.test_spark_recovery import commit
from tests.reader import committed
from twopc import CheckpointConfig
from twopc.records import Decision, Repair
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import ProducerIdentity
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

__all__ = ["spark"]

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

PARTITIONS = 12
#: The number of writers in the decided attempt, in the first replay, and in the second one.
BEFORE, FEWER, MORE = 5, 3, 9
#: The crash point in a worker's second task, if two sinks pass the point in each task.
SECOND = "task.prepared@3"
DECIDED = "driver.decided"
ROWS: list[dict[str, Any]] = [{"id": f"k{number % 40}", "n": number} for number in range(200)]


def writers(most: int, **settings: Any) -> dict[str, Any]:
    return {"write_by": "tasks", "checkpoints": CheckpointConfig(max_writers=most), **settings}


def by_key(frame: DataFrame) -> DataFrame:
    return frame.repartition(PARTITIONS, "id")


@contextlib.contextmanager
def killing(spark: SparkSession, point: str) -> Iterator[None]:
    """Kill each worker at a crash point, if one is given. Only new workers run, so that each counts its passages from zero."""
    if not point:
        yield
        return
    environment = spark.sparkContext.environment
    environment["TWOPC_TEST"] = unique()
    try:
        with worker_faults(spark, f"{point}=kill"):
            yield
    finally:
        del environment["TWOPC_TEST"]


def lose_some(servers: str, *names: str) -> None:
    """Commit half of each sink's decided transactions, and fence the others, as their timeout would.

    The driver died, so the undecided transactions of killed workers are open, too. They stay open.
    """
    sinks = [KafkaSink(name=name, bootstrap_servers=servers, topic=None) for name in names]
    decided = set(itertools.chain.from_iterable(decided_in(sink, sinks) for sink in sinks))
    with closing(TransactionClient({"bootstrap_servers": [servers]})) as client:
        for name in names:
            mine = sorted(decided.intersection(client.list_open(f"{name}.").transactional_ids))
            assert mine, name
            lost, kept = mine[::2], mine[1::2]
            client.fence([ProducerIdentity(one) for one in lost])
            if kept:
                commit(client, kept)


def decided_in(log_owner: KafkaSink, sinks: list[KafkaSink]) -> Iterator[str]:
    """Read the transactional ids of these sinks' decided transactions from the log of one sink."""
    with closing(log_owner.create_decision_log()) as log:
        records = [entry.record for entry in log.inspect().entries]
    for record in records:
        if isinstance(record, (Decision, Repair)):
            for task, sink in itertools.product(record.tasks, sinks):
                if sink.name in task.handles:
                    yield sink.decode_handle(task.handles[sink.name]).transactional_id


# -- staging -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("killed", "losses"), [("", 1), ("task.staged@2", 2)])
def test_staged_rows_of_many_partitions_are_published_once_whatever_the_number_of_writers(
    killed: str, losses: int, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """A replay would put the rows into other partitions, so only the staged files contain the lost rows."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="unstable")
    pipeline.change(partitions=PARTITIONS)
    pipeline.feed(200, keys=40)
    for most in (BEFORE, FEWER)[:losses]:
        with killing(spark, killed):
            pipeline.fail_at(spark, DECIDED, settings=writers(most, staging=True))
        lose_some(kafka.bootstrap_servers, pipeline.options.name)
    pipeline.run(spark, settings=writers(MORE, staging=True))
    pipeline.require_exactly_once()
    decision, *repairs = log_of(pipeline)
    assert isinstance(decision, Decision)
    assert len(decision.tasks) == BEFORE
    assert len(repairs) == losses
    assert not list(Path(pipeline.options.checkpoint, "twopc", "staging").rglob("*.arrow"))


@pytest.mark.parametrize("point", ["driver.prepared", DECIDED, "driver.committing@2"])
def test_a_table_contains_only_the_files_of_one_attempt(
    point: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """A Delta sink writes its files before the decision. A part of the topic's transactions is lost."""
    table, topic = created(tmp_path, COLUMNS), kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (table, topic), writers(BEFORE), plan=by_key)
    query.feed(*ROWS[:100])
    with killing(spark, SECOND):
        query.fail_at(point)
    if point == DECIDED:
        lose_some(kafka.bootstrap_servers, topic.name)
    query.settings = writers(FEWER)
    query.feed(*ROWS[100:])
    query.run()
    assert Counter(row["n"] for row in contents(table)) == Counter(row["n"] for row in ROWS)
    assert values(topic) == Counter(str(row["n"]) for row in ROWS)


# -- several sinks and DataFrames --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("killed", "points"), [("", [DECIDED]), (SECOND, ["driver.prepared", DECIDED])])
def test_dead_letters_of_many_partitions_are_written_once(
    killed: str, points: list[str], kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """Every third row has no topic. Transactions of both sinks are lost, and a partition may have rows for both."""
    servers, letters = kafka.bootstrap_servers, kafka_sink(kafka.bootstrap_servers)
    events = KafkaSink(name=unique(), bootstrap_servers=servers, topic=None, timeout_ms=20_000)
    topic = create_topic(servers, f"{events.name}-out", 4)
    schema = "id STRING, n BIGINT, topic STRING"
    query = Query(spark, tmp_path, (events,), writers(BEFORE, dead_letter=letters), schema, plan=by_key)
    query.feed(*({**row, "topic": topic if row["n"] % 3 else None} for row in ROWS))
    for point in points:
        with killing(spark, killed):
            query.fail_at(point)
    lose_some(servers, events.name, letters.name)
    query.settings = writers(FEWER, dead_letter=letters)
    query.run()
    assert committed(servers, topic) == Counter(str(row["n"]) for row in ROWS if row["n"] % 3)
    assert letters.topic is not None
    found = Counter(json.loads(letter)["n"] for letter in committed(servers, letters.topic).elements())
    assert found == Counter(row["n"] for row in ROWS if not row["n"] % 3)


@pytest.mark.parametrize(("killed", "losses"), [("", 1), ("task.prepared@3", 2)])
def test_two_dataframes_of_many_partitions_reach_their_own_sinks_once(
    killed: str, losses: int, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """The second DataFrame's tasks are numbered after the first one's, and the replay uses different numbers.

    Each worker dies in its third task. If it died in the second one, a retried task could meet such workers four times.
    """
    odd, even = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        return lambda batch, i: each({odd.name: batch.where("n % 2 = 1"), even.name: batch.where("n % 2 = 0")}, i)

    query = Query(spark, tmp_path, (odd, even), function=function, plan=by_key)
    query.feed(*ROWS[:100])
    for most in (BEFORE, FEWER)[:losses]:
        query.settings = writers(most)
        with killing(spark, killed):
            query.fail_at(DECIDED)
        lose_some(kafka.bootstrap_servers, odd.name, even.name)
    query.settings = writers(MORE)
    query.feed(*ROWS[100:])
    query.run()
    for sink, rest in ((odd, 1), (even, 0)):
        assert values(sink) == Counter(str(row["n"]) for row in ROWS if row["n"] % 2 == rest)


# -- the rest of a migrated batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["driver.prepared", DECIDED])
def test_the_rest_of_a_batch_partly_written_by_sparks_own_sink_is_written_once(
    point: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """The cut-over comes in the middle of a batch, and the first attempt to write the rest fails."""
    pipeline = OldPipeline(kafka.bootstrap_servers, tmp_path, partitions=PARTITIONS)
    pipeline.feed(200)
    with pytest.raises(Exception, match="the task fails"):
        pipeline.run_with_sparks_sink(spark, fails=True)
    written = pipeline.visible().total()
    assert 0 < written < 200
    pipeline.cut_over("--apply")
    with killing(spark, "task.prepared@2"):
        pipeline.fail_new_at(spark, point, max_offsets=None, **writers(BEFORE))
    if point == DECIDED:
        lose_some(kafka.bootstrap_servers, pipeline.name)
    pipeline.feed(40)
    pipeline.run_new(spark, max_offsets=None, **writers(FEWER))
    assert pipeline.visible() == Counter(pipeline.given)


# -- another number of writers at a restart ----------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after", "plan"), [(BEFORE, FEWER, "rows"), (FEWER, BEFORE, "shuffle")])
def test_a_killed_query_restarts_with_another_number_of_writers(
    before: int, after: int, plan: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """At these points, only the log tells a restart whether the batch is decided, and which of its transactions are visible."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan=plan, partitions=PARTITIONS if plan == "rows" else 4)
    pipeline.change(partitions=PARTITIONS)
    try:
        for point in ("driver.prepared", "driver.deciding", DECIDED, "driver.committing"):
            pipeline.feed(100, keys=40)
            as_json = {"write_by": "tasks", "checkpoints": {"max_writers": before}}
            run = pipeline.process(f"{point}=kill", settings=as_json)
            assert run.ended() == KILLED, f"{point}: {run.text[-3000:]}"
            run.kill_all()
            if point == DECIDED:
                lose_some(kafka.bootstrap_servers, pipeline.options.name)
            pipeline.feed(100, keys=40)
            pipeline.run(spark, settings=writers(after))
            pipeline.require_exactly_once()
    finally:
        pipeline.close()
    found = log_of(pipeline)
    assert {len(one.tasks) for one in found if isinstance(one, Decision)} == {before, after}
    assert any(isinstance(one, Repair) for one in found)


@pytest.mark.parametrize("numbers", [(BEFORE, FEWER), (FEWER, BEFORE), (BEFORE, FEWER, MORE, 2)])
def test_a_batch_partly_lost_again_and_again_is_completed_by_any_number_of_writers(
    numbers: tuple[int, ...], kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """Each replay is itself decided and partly lost. The next one has another number of writers."""
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="shuffle")
    pipeline.change(partitions=PARTITIONS)
    pipeline.feed(200, keys=40)
    *lost, last = numbers
    for most in lost:
        pipeline.fail_at(spark, DECIDED, settings=writers(most))
        lose_some(kafka.bootstrap_servers, pipeline.options.name)
    pipeline.feed(40)
    pipeline.run(spark, settings=writers(last))
    pipeline.require_exactly_once()
    first, *repairs, newest = log_of(pipeline)
    assert (len(first.tasks), len(newest.tasks)) == (numbers[0], last)
    assert all(isinstance(one, Repair) for one in repairs)


def test_a_batch_in_doubt_stays_in_doubt_with_any_number_of_writers(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """The plan produces different rows each time.

    No number of writers may make one of its partitions look unchanged.
    """
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, plan="unstable")
    pipeline.change(partitions=PARTITIONS)
    pipeline.feed(200, keys=40)
    pipeline.fail_at(spark, DECIDED, settings=writers(BEFORE))
    lose_some(kafka.bootstrap_servers, pipeline.options.name)
    found = []
    for most in (FEWER, MORE, PARTITIONS):
        assert "InDoubtError" in pipeline.fail(spark, settings=writers(most))
        found.append(pipeline.visible())
    assert 0 < found[0].total() < 200
    assert not found[0] - pipeline.given
    assert found == found[:1] * 3
