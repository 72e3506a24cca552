"""Several DataFrames of one batch in one decision, and functions that do not make exactly one call per batch."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from tests.live.file_query import (
    BATCHES,
    SUMS,
    VALUES,
    Query,
    adding,
    counters,
    kafka_sink,
    redis_client,
    unique,
    values,
)
from tests.live.redis.conftest import redis_server
from tests.live.spark_support import spark
from tests.reader import records
from twopc.integration.spark import Interceptor
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import ListPush
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.live.redis.services import RedisService
    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce
    from twopc.integration.spark.interceptors import InterceptedBatch

__all__ = ["redis_server", "spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

POINTS = [
    "driver.committing@2",
    *(
        pytest.param(point, marks=pytest.mark.whole)
        for point in (
            "driver.prepared",
            "driver.confirmed",
            "driver.deciding",
            "driver.decided",
            "driver.committing",
            "driver.committed",
        )
    ),
]


def split(odd: str, even: str) -> Callable[[ExactlyOnce], Callable[[DataFrame, int], None]]:
    """A function that writes odd rows to one sink and even rows to another, as users do in ``foreachBatch``."""

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            batch.persist()
            try:
                each({odd: batch.where("id = 'odd'"), even: batch.where("id = 'even'")}, batch_id)
            finally:
                batch.unpersist()

        return write

    return function


@pytest.mark.whole
@pytest.mark.parametrize("point", POINTS)
def test_two_dataframes_of_a_batch_reach_their_sinks_together(
    point: str, kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    odd, even = kafka_sink(kafka.bootstrap_servers), adding(redis_server)
    query = Query(spark, tmp_path, (odd, even), function=split(odd.name, even.name))
    query.run_over_a_crash_at(point)
    assert values(odd) == Counter(str(row["n"]) for rows in BATCHES for row in rows if row["id"] == "odd")
    assert counters(redis_server, even.name) == {"even": SUMS["even"]}


def test_a_crash_leaves_either_all_or_none_of_a_batchs_dataframes_visible(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    odd, even = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (odd, even), function=split(odd.name, even.name))
    query.feed(*BATCHES[0])
    query.fail_at("driver.confirmed")
    assert (values(odd), values(even)) == (Counter(), Counter())
    query.fail_at("driver.committed")
    assert (values(odd), values(even)) == (Counter(["3"]), Counter(["2"]))


def test_each_dataframe_and_the_cached_parent_are_evaluated_once(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    evaluated = tmp_path / "evaluated"

    def counted(what: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in batches:
                with evaluated.open("a") as file:
                    file.write(f"{what} {rows.num_rows}\n")
                yield rows

        return count

    one, two, three = (kafka_sink(kafka.bootstrap_servers) for _ in range(3))

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            parent = batch.mapInArrow(counted("parent"), batch.schema).persist()
            shared = parent.mapInArrow(counted("shared"), batch.schema)
            each({one.name: shared, two.name: shared, three.name: parent.where("id = 'odd'")}, batch_id)
            parent.unpersist()

        return write

    query = Query(spark, tmp_path, (one, two, three), function=function)
    for rows in BATCHES:
        query.feed(*rows)
    query.run()
    counts = Counter[str]()
    for line in evaluated.read_text().splitlines():
        counts[line.split()[0]] += int(line.split()[1])
    assert counts == {"parent": 6, "shared": 6}
    assert values(one) == values(two) == VALUES
    assert sum(values(three).values()) == 3


def test_a_sink_may_receive_no_dataframe_of_a_batch(kafka: KafkaService, spark: SparkSession, tmp_path: Path) -> None:
    one, two = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)
    query = Query(
        spark,
        tmp_path,
        (one, two),
        function=lambda each: lambda batch, i: each({one.name: batch, two.name: batch if i else None}, i),
    )
    for rows in BATCHES:  # one by one, since Spark orders files of the same time arbitrarily
        query.feed(*rows)
        query.run()
    assert values(one) == VALUES
    assert values(two) == Counter(str(row["n"]) for rows in BATCHES[1:] for row in rows)


def test_lost_transactions_are_rewritten_from_their_own_dataframe(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    """Two DataFrames have equal rows; the second one's loss must not be repaired from the first one's task."""
    events, totals = kafka_sink(kafka.bootstrap_servers), adding(redis_server)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        return lambda batch, i: each({events.name: batch.coalesce(1), totals.name: batch.coalesce(1)}, i)

    query = Query(spark, tmp_path, (events, totals), function=function)
    query.feed(*BATCHES[0])
    query.fail_at("driver.decided")
    with contextlib.closing(redis_client(redis_server)) as client:
        client.delete(*client.scan_iter(f"twopc:{totals.name}:*:slice:*", count=1000))
    query.run()
    assert counters(redis_server, totals.name) == {"odd": 3, "even": 2}
    assert values(events) == Counter(["3", "2"])


@pytest.mark.whole
def test_bad_rows_of_every_dataframe_are_in_the_dead_letters(
    kafka: KafkaService, redis_server: RedisService, spark: SparkSession, tmp_path: Path
) -> None:
    letters, one, two = kafka_sink(kafka.bootstrap_servers), unique(), unique()
    lists = [RedisSink(name=name, url=redis_server.url, mapping=ListPush(f"{name}:{{id}}", "n")) for name in (one, two)]
    query = Query(
        spark,
        tmp_path,
        tuple(lists),
        {"dead_letter": letters},
        function=lambda each: (
            lambda batch, i: each({one: batch, two: batch.select("id", sf.expr("n + 10").alias("n"))}, i)
        ),
    )
    query.feed({"id": "a", "n": 1}, {"id": None, "n": 2})
    query.fail_at("driver.decided")
    query.run()
    with contextlib.closing(redis_client(redis_server)) as client:
        assert [client.lrange(f"{name}:a", 0, -1) for name in (one, two)] == [[b"1"], [b"11"]]
    found = [json.loads(letter.value() or b"") for letter in records(kafka.bootstrap_servers, letters.topic or "")]
    assert sorted(letter["n"] for letter in found) == [2, 12]


# -- not exactly one call per batch ------------------------------------------------------------------------------------


def test_a_second_call_for_a_batch_raises_an_error_that_says_what_to_do(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            each(batch.where("id = 'odd'"), batch_id)
            each(batch.where("id = 'even'"), batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=function)
    query.feed(*BATCHES[0])
    for _ in range(2):  # a restart raises the error again, and loses no more rows
        message = query.refused()
        assert "second call for batch 0" in message and "unionByName" in message and "by other means" in message
        assert f"The first call's rows are visible in '{sink.name}'" in message
        assert values(sink) == Counter(["3"])


def test_a_function_that_catches_an_error_and_calls_again_writes_the_batch_once(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    caught: list[BaseException] = []

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            try:
                each(batch, batch_id)
            except RuntimeError as error:
                caught.append(error)
                each(batch, batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=function)
    for number, point in enumerate(("driver.confirmed", "driver.decided", "driver.committing")):
        query.feed(*BATCHES[number])
        crash_points.arm_from(f"{point}=raise")
        try:
            query.run()
        finally:
            crash_points.disarm()
    assert len(caught) == 3
    assert values(sink) == VALUES


def test_a_call_with_different_dataframes_after_a_failed_call_raises_an_error(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            with contextlib.suppress(RuntimeError):
                each(batch.where("id = 'odd'"), batch_id)
            each(batch.where("id = 'even'"), batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=function)
    query.feed(*BATCHES[0])
    crash_points.arm_from("driver.decided=raise")
    try:
        message = query.refused()
    finally:
        crash_points.disarm()
    assert "does not pass the same DataFrame objects to the same sinks as the first call" in message


def repeated(function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Call the function until it succeeds, up to three times, as a retry decorator does."""

    def write(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            with contextlib.suppress(RuntimeError):
                function(batch, batch_id)
                return
        function(batch, batch_id)

    return write


class Doubles(Interceptor):
    """Derives the rows that are written."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Any], None]) -> None:
        self.seen.append(batch.batch_id)
        frame: Any = batch.frames
        proceed(frame.withColumn("value", sf.concat("value", "value")))


@pytest.mark.parametrize("is_intercepted", [False, True])
def test_a_function_repeated_after_its_call_continues_with_the_visible_batch(
    is_intercepted: bool,  # noqa: FBT001 - a parameter of the test
    kafka: KafkaService,
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink, interceptor = kafka_sink(kafka.bootstrap_servers), Doubles()
    posted: list[int] = []

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        @repeated
        def write(batch: DataFrame, batch_id: int) -> None:
            each(batch, batch_id)
            posted.append(batch_id)
            if posted.count(batch_id) < 3:
                raise RuntimeError("the webhook does not respond")

        return write

    settings = {"interceptors": [interceptor]} if is_intercepted else {}
    query = Query(spark, tmp_path, (sink,), settings, function=function)
    for rows in BATCHES[:2]:
        query.feed(*rows)
    query.run()
    assert posted == [0, 0, 0, 1, 1, 1]
    assert interceptor.seen == ([0, 1] if is_intercepted else [])
    assert values(sink) == Counter(["22", "33", "44", "55"] if is_intercepted else ["2", "3", "4", "5"])
    assert caplog.text.count("is already visible in") == 4


@pytest.mark.whole  # starting the database takes seconds
def test_a_second_call_is_refused_if_its_dataframe_reads_a_table_again(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """The function passes the same object in both calls, but replaces the table's rows between them."""
    sink = kafka_sink(kafka.bootstrap_servers)
    url = f"jdbc:derby:memory:{sink.name};create=true"
    spark.createDataFrame([], "key STRING, value STRING").write.jdbc(url, "staged")
    staged = spark.read.jdbc(url, "staged")

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            for part in ("odd", "even"):
                batch.where(f"id = '{part}'").select("key", "value").write.jdbc(url, "staged", mode="overwrite")
                each(staged, batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=function)
    query.feed(*BATCHES[0])
    message = query.refused()
    assert (
        "second call for batch 0" in message
        and "reads data other than the batch" in message
        and "wrote nothing" in message
    )
    assert values(sink) == Counter(["3"])


def test_a_second_call_may_repeat_a_checkpoint_of_the_batch(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            for frame in (batch.where("id = 'odd'"), batch.localCheckpoint())[batch_id:][:1]:
                each(frame, batch_id)
                each(frame, batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=function)
    for rows in BATCHES[:2]:
        query.feed(*rows)
    query.run()
    assert values(sink) == Counter(["3", "4", "5"])
    assert caplog.text.count("is already visible in") == 2


def test_a_repeated_function_may_make_new_dataframes_until_the_batch_is_decided(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """A checkpointed DataFrame is equal to no other DataFrame. A restart writes nothing that is decided."""
    sink = kafka_sink(kafka.bootstrap_servers)
    made: list[int] = []

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        @repeated
        def write(batch: DataFrame, batch_id: int) -> None:
            made.append(batch_id)
            each(batch.localCheckpoint(), batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=function)
    for number, point in enumerate(("driver.inspected", "driver.prepared", "driver.confirmed", "driver.decided")):
        query.feed({"id": "a", "n": number})
        crash_points.arm_from(f"{point}=raise")
        try:
            if point == "driver.decided":
                message = query.refused()
                assert (
                    "does not pass the same DataFrame objects to the same sinks as the first call" in message
                    and "do not write any rows by hand" in message
                )
            else:
                query.run()
        finally:
            crash_points.disarm()
    query.run()
    assert made == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert values(sink) == Counter(map(str, range(4)))


@pytest.mark.parametrize("point", ["driver.decided", pytest.param("", marks=pytest.mark.whole)])
def test_a_second_call_with_the_same_dataframe_for_another_sink_is_refused(
    point: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    one, two = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            with contextlib.suppress(RuntimeError):
                each({one.name: batch, two.name: None}, batch_id)
            each({one.name: None, two.name: batch}, batch_id)

        return write

    query = Query(spark, tmp_path, (one, two), function=function)
    query.feed(*BATCHES[0])
    crash_points.arm_from(f"{point}=raise" if point else "")
    try:
        message = query.refused()
    finally:
        crash_points.disarm()
    decided = f"only for '{two.name}', but the batch was already decided with DataFrames only for '{one.name}'."
    assert f"visible in '{one.name}'." in message or decided in message
    assert f"visible in '{one.name}'." in query.refused()
    assert values(one) == Counter(["2", "3"])
    assert not values(two)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (lambda one, _, batch: {one: batch}, "passes no DataFrame for sink"),
        (lambda one, two, batch: {one: batch, two: batch, "typo": batch}, "'typo'"),
        (lambda one, two, _: {one: None, two: None}, "None for every sink"),
        (lambda one, two, batch: {one: batch, two: batch.write}, "a DataFrameWriter"),
        (lambda *_: 5, "is a int"),
        (lambda _, __, batch: batch.toPandas(), "is a DataFrame from the module pandas."),
    ],
)
def test_an_invalid_dictionary_raises_an_error_and_nothing_is_written(
    given: Any, named: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    one, two = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)
    query = Query(
        spark, tmp_path, (one, two), function=lambda each: lambda batch, i: each(given(one.name, two.name, batch), i)
    )
    query.feed(*BATCHES[0])
    message = query.refused()
    assert "ConfigurationError" in message and named in message and "Nothing was written" in message
    assert values(one) == values(two) == Counter()
