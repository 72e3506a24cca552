"""The run, the query and the batch of a call. No setting of a user may hide them."""

from __future__ import annotations

import contextlib
import gc
import threading
import traceback
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException

from tests.live.file_query import BATCHES, VALUES, Query, kafka_sink, values
from tests.live.spark_support import finish, message_of, spark, wait_until
from twopc.integration.spark import Interceptor, exactly_once
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce
    from twopc.integration.spark.classic import ClassicCalls
    from twopc.integration.spark.interceptors import InterceptedBatch

    Function = Callable[[DataFrame, int], None]
    Using = Callable[["Any"], Callable[[ExactlyOnce], Function]]

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def group_of_each_call(query: Query) -> Callable[[ExactlyOnce], Function]:
    def function(each: ExactlyOnce) -> Function:
        def write(batch: DataFrame, batch_id: int) -> None:
            for part in ("odd", "even"):
                query.spark.sparkContext.setJobGroup(part, f"{part} rows of batch {batch_id}")
                each(batch.where(f"id = '{part}'"), batch_id)

        return write

    return function


def no_group_at_all(query: Query) -> Callable[[ExactlyOnce], Function]:
    def function(each: ExactlyOnce) -> Function:
        def write(batch: DataFrame, batch_id: int) -> None:
            each(batch.where("id = 'odd'"), batch_id)
            query.spark.sparkContext._jsc.clearJobGroup()
            each(batch.where("id = 'even'"), batch_id)

        return write

    return function


def made_for_each_part(query: Query) -> Callable[[ExactlyOnce], Function]:
    def write(batch: DataFrame, batch_id: int) -> None:
        for part in ("odd", "even"):
            each = exactly_once(*query.sinks, checkpoint_location=str(query.directory / "checkpoint"))
            each(batch.where(f"id = '{part}'"), batch_id)

    return lambda _: write


def made_and_closed_for_each_part(query: Query) -> Callable[[ExactlyOnce], Function]:
    def write(batch: DataFrame, batch_id: int) -> None:
        for part in ("odd", "even"):
            made = exactly_once(*query.sinks, checkpoint_location=str(query.directory / "checkpoint"))
            with contextlib.closing(made) as each:
                each(batch.where(f"id = '{part}'"), batch_id)

    return lambda _: write


@pytest.mark.parametrize(
    "using", [group_of_each_call, no_group_at_all, made_for_each_part, made_and_closed_for_each_part]
)
def test_a_second_call_for_a_batch_is_refused_with_any_settings_and_through_any_object(
    using: Using, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),))
    query.function = using(query)
    query.feed(*BATCHES[0])
    message = query.refused()
    assert "second call for batch 0" in message and "unionByName" in message
    assert values(query.sinks[0]) == Counter(["3"])


def one_group_for_all(query: Query) -> Callable[[ExactlyOnce], Function]:
    def function(each: ExactlyOnce) -> Function:
        def write(batch: DataFrame, batch_id: int) -> None:
            query.spark.sparkContext.setJobGroup("everything", "one group for all batches")
            batch.count()
            each(batch, batch_id)

        return write

    return function


def made_for_each_batch(query: Query) -> Callable[[ExactlyOnce], Function]:
    def write(batch: DataFrame, batch_id: int) -> None:
        each = exactly_once(*query.sinks, checkpoint_location=str(query.directory / "checkpoint"))
        each(batch, batch_id)

    return lambda _: write


def other_properties(query: Query) -> Callable[[ExactlyOnce], Function]:
    def function(each: ExactlyOnce) -> Function:
        def write(batch: DataFrame, batch_id: int) -> None:
            context = query.spark.sparkContext
            for name in ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id", "spark.scheduler.pool"):
                context.setLocalProperty(name, "mine")
            context.addJobTag("mine")
            each(batch, batch_id)
            context.clearJobTags()

        return write

    return function


def number_of_numpy(_: Query) -> Callable[[ExactlyOnce], Function]:
    return lambda each: lambda batch, batch_id: each(batch, np.int64(batch_id))


@pytest.mark.parametrize("using", [one_group_for_all, made_for_each_batch, other_properties, number_of_numpy])
def test_every_batch_is_visible_once_after_a_crash_and_a_restart_in_the_same_session(
    using: Using, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),))
    query.function = using(query)
    query.run_over_a_crash_at("driver.decided")
    assert values(query.sinks[0]) == VALUES


def test_an_objects_connections_are_closed_once_another_object_writes_for_the_same_run(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    made: list[ExactlyOnce] = []
    connected: list[list[bool]] = []
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),))

    def write(batch: DataFrame, batch_id: int) -> None:
        made.append(exactly_once(*query.sinks))
        made[-1](batch, batch_id)
        writers = [cast("ClassicCalls", one._calls)._opened for one in made]
        connected.append([writer is not None and writer._coordinator is not None for writer in writers])

    query.function = lambda _: write
    for rows in BATCHES:
        query.feed(*rows)
    query.run()
    assert values(query.sinks[0]) == VALUES
    assert connected == [[True], [False, True], [False, False, True]]
    gc.collect()
    assert [cast("ClassicCalls", one._calls)._opened for one in made[:-1]] == [None, None]  # nothing of them is left


@pytest.mark.parametrize(
    "wrong",
    [
        lambda number: 0 if number else 7,
        lambda number: number + 1,
        lambda number: number - 1,
        str,
        float,
        bool,
        lambda _: None,
        lambda _: 1 << 70,
    ],
    ids=["constant", "next", "before", "str", "float", "bool", "None", "huge"],
)
def test_a_batch_number_other_than_sparks_is_refused_and_the_error_gives_both_numbers(
    wrong: Callable[[int], Any], kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),))
    query.feed(*BATCHES[0])
    query.run()
    query.function = lambda each: lambda batch, number: each(batch, wrong(number))
    query.feed(*BATCHES[1])
    message = query.refused()
    assert f"passes batch {wrong(1)!r}" in message and "processing batch 1" in message and "unchanged" in message
    query.function = lambda each: each
    query.feed(*BATCHES[2])
    query.run()
    assert values(query.sinks[0]) == VALUES


def in_a_thread(call: Callable[[], None]) -> None:
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised by the caller
            raised.append(error)

    thread = threading.Thread(target=run, name="mine")
    thread.start()
    thread.join()
    for error in raised:
        raise error


def in_an_executor(call: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1, "mine") as pool:
        pool.submit(call).result()


def in_a_thread_that_inherits(call: Callable[[], None]) -> None:
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised by the caller
            raised.append(error)

    thread = InheritableThread(target=run, name="mine")
    thread.start()
    thread.join()
    for error in raised:
        raise error


@pytest.mark.parametrize("by", [in_a_thread, in_an_executor, in_a_thread_that_inherits])
def test_a_call_from_a_users_thread_is_refused_with_an_error_that_identifies_the_thread(
    by: Callable[[Callable[[], None]], None], kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),))
    query.function = lambda each: lambda batch, number: by(lambda: each(batch, number))
    query.feed(*BATCHES[0])
    message = query.refused()
    assert (
        "'mine" in message and "in the thread that runs your function" in message and "Nothing was written" in message
    )
    assert not values(query.sinks[0])


class TriesAgain(Interceptor):
    """Writes each batch in a thread. Does not wait for a first attempt that takes long, and tries again."""

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Any], None]) -> None:
        is_slow, may_go_on = threading.Event(), threading.Event()

        def wait() -> None:
            is_slow.set()
            assert may_go_on.wait(120)

        crash_points.arm("driver.confirmed", wait)
        with ThreadPoolExecutor(2, "mine") as pool:
            first = pool.submit(proceed, batch.frames)
            try:
                wait_until(lambda: is_slow.is_set() or first.done(), "the first attempt takes long")
                pool.submit(proceed, batch.frames).result()
            finally:
                may_go_on.set()
            first.result()


@pytest.mark.whole
def test_an_interceptor_that_tries_again_in_threads_writes_nothing_twice(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    settings = {"interceptors": [TriesAgain()]}
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),), settings)
    query.feed(*BATCHES[0])
    try:
        message = query.refused()
    finally:
        crash_points.disarm()
    assert "proceed for batch 0 in thread 'mine" in message and "This call wrote nothing" in message
    assert not values(query.sinks[0])
    query.settings = {}
    query.run()
    assert values(query.sinks[0]) == Counter(["2", "3"])


def test_two_queries_of_a_session_may_share_a_function_but_not_an_object(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """One query uses the other query's object by mistake, while both run."""
    queries = [Query(spark, tmp_path / name, (kafka_sink(kafka.bootstrap_servers),)) for name in ("one", "two")]
    for query in queries:
        query.directory.mkdir()
        query.feed(*BATCHES[0])
    started: list[ExactlyOnce] = []
    is_refused = threading.Event()

    def of_one(each: ExactlyOnce) -> Function:
        def write(batch: DataFrame, batch_id: int) -> None:
            started.append(each)
            each(batch, batch_id)
            assert is_refused.wait(120)

        return write

    queries[0].function = of_one
    first = threading.Thread(target=queries[0].run)
    first.start()
    try:
        wait_until(lambda: bool(started), "the first query calls")
        queries[1].function = lambda _: started[0]
        message = queries[1].refused()
    finally:
        is_refused.set()
        first.join()
    assert "which is still running. This call wrote nothing. Create a separate object for each query" in message
    assert values(queries[0].sinks[0]) == Counter(["2", "3"])
    assert not values(queries[1].sinks[0])


def test_a_call_outside_a_query_is_refused(kafka: KafkaService, spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),))
    query.feed(*BATCHES[0])
    query.run()
    each = exactly_once(*query.sinks, checkpoint_location=str(tmp_path / "checkpoint"))
    frame = spark.createDataFrame([("k", "v")], "key string, value string")
    with pytest.raises(Exception, match="Spark called your function in another thread"):
        each(frame, 0)


def test_a_failed_call_may_be_repeated_by_another_object(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),))

    def write(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            each = exactly_once(*query.sinks, checkpoint_location=str(query.directory / "checkpoint"))
            with contextlib.suppress(RuntimeError):
                each(batch, batch_id)
                return

    query.function = lambda _: write
    for rows in BATCHES:
        query.feed(*rows)
    crash_points.arm_from("driver.decided=raise")
    try:
        query.run()
    finally:
        crash_points.disarm()
    assert values(query.sinks[0]) == VALUES


def test_a_given_checkpoint_location_must_belong_to_the_calling_query(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    one, two = (Query(spark, tmp_path / name, (kafka_sink(kafka.bootstrap_servers),)) for name in ("one", "two"))
    for query in (one, two):
        query.directory.mkdir()
        query.feed(*BATCHES[0])
        query.settings = {"checkpoint_location": tmp_path / "one" / "checkpoint"}  # a Path is accepted, too
    one.run()
    message = two.refused()
    assert "belongs to query" in message and str(tmp_path / "two" / "checkpoint") in message
    assert "Omit checkpoint_location" in message
    assert values(one.sinks[0]) == Counter(["2", "3"])
    assert not values(two.sinks[0])


def test_sparks_exception_shows_the_message_near_the_top(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """PySpark's own lines come first; ours are few, and what the error came from is in the log."""
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),), {"checkpoint_location": str(tmp_path)})
    query.feed(*BATCHES[0])
    with pytest.raises(StreamingQueryException) as raised:
        query.run()
    lines = [line.strip() for line in str(raised.value).splitlines()]
    [shown] = [number for number, line in enumerate(lines) if line.startswith("twopc.errors.ConfigurationError: ")][:1]
    assert shown < 16, "\n".join(lines[: shown + 1])
    # Taken from the log record: once PySpark has logged an error with its query context, PySpark's logger writes JSON
    # through pytest's handler.
    [failure] = [record for record in caplog.records if record.getMessage().endswith("the query stops")]
    assert failure.exc_info is not None
    assert any("checkpoint.py" in line for line in traceback.format_exception(*failure.exc_info))


def started_without_checkpoint(query: Query, name: str | None = None) -> str:
    """Process everything with Spark's own choice of a checkpoint. Return the error that stops the query, or nothing."""
    frame = query.spark.readStream.schema(query.schema).json(str(query.directory / "source"))
    each = exactly_once(*query.sinks)
    writer = frame.selectExpr("id AS key", "CAST(n AS STRING) AS value").writeStream.foreachBatch(each)
    run = (writer if name is None else writer.queryName(name)).trigger(availableNow=True).start()
    try:
        finish(run, each)
    except StreamingQueryException as error:
        return message_of(error)
    return ""


@pytest.mark.parametrize("is_configured", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_a_query_whose_checkpoint_the_next_start_would_not_find_is_refused_and_nothing_is_written(
    is_configured: bool,  # noqa: FBT001 - a parameter of the test
    kafka: KafkaService,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    query = Query(spark, tmp_path, (kafka_sink(kafka.bootstrap_servers),))
    query.feed(*BATCHES[0])
    setting = "spark.sql.streaming.checkpointLocation"
    if is_configured:
        spark.conf.set(setting, str(tmp_path / "checkpoints"))
    try:
        message = started_without_checkpoint(query)
        assert "Set .option('checkpointLocation', …)" in message and "Nothing was written" in message
        assert (setting in message and ".queryName(…)" in message) == is_configured
        assert not values(query.sinks[0])
        if is_configured:
            for rows in BATCHES[1:]:
                assert not started_without_checkpoint(query, "named")
                query.feed(*rows)
            assert not started_without_checkpoint(query, "named")
            assert values(query.sinks[0]) == VALUES
    finally:
        spark.conf.unset(setting)


@pytest.mark.whole
def test_a_checkpoint_path_set_by_the_user_may_look_like_one_that_spark_generates(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    location, setting = str(tmp_path / str(uuid.uuid4())), "spark.sql.streaming.checkpointLocation"
    sink = kafka_sink(kafka.bootstrap_servers)
    frame = spark.createDataFrame([("k", "v")], "key STRING, value STRING")
    frame.write.parquet(str(tmp_path / "source"))
    source = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "source"))
    spark.conf.set(setting, str(tmp_path))
    try:
        each = exactly_once(sink, checkpoint_location=location)
        writer = source.writeStream.foreachBatch(each).option("checkpointLocation", location)
        finish(writer.trigger(availableNow=True).start(), each)
    finally:
        spark.conf.unset(setting)
    assert values(sink) == Counter(["v"])
