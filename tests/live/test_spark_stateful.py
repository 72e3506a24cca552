"""Queries that keep state, and functions that do not take all of a batch: the next batch needs all of the state (SPARK-52008)."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.sql import functions as sf

from tests.live.file_query import Query, counted, counting, kafka_sink, values
from tests.live.spark_support import spark
from twopc.errors import RetriableError
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

__all__ = ["spark"]

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"), pytest.mark.timeout(900)]

_STORE = "spark.sql.streaming.stateStore"
_ROCKS_DB = {f"{_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
_CHANGELOG = f"{_STORE}.rocksdb.changelogCheckpointing.enabled"
STORES = [
    pytest.param({}, id="hdfs"),
    pytest.param({**_ROCKS_DB, _CHANGELOG: "false"}, id="rocksdb", marks=pytest.mark.whole),
    pytest.param({**_ROCKS_DB, _CHANGELOG: "true"}, id="changelog", marks=pytest.mark.whole),
]
NEW = 6  # rows of a batch that no earlier batch contained


def _other(batch: DataFrame) -> DataFrame:
    return batch.sparkSession.range(2).selectExpr("'k' AS key", "CAST(-1 - id AS STRING) AS value")


def _counted_first(batch: DataFrame) -> DataFrame:
    batch.persist().count()
    return batch.limit(1)


def _seen_first(batch: DataFrame) -> DataFrame:
    assert batch.head(1)
    batch.isEmpty()
    return batch.limit(2)


def _empty_side(batch: DataFrame) -> DataFrame:
    return batch.join(batch.sparkSession.createDataFrame([], "id STRING"), "id")


def _static_side(batch: DataFrame) -> DataFrame:
    """Joined without a shuffle of the batch: where the table has no row, Spark does not look at the batch."""
    table = batch.sparkSession.createDataFrame([("2-0",)], "id STRING")
    return table.hint("merge").join(batch, "id").select("key", "value")


#: A function's result for a batch, and the number of rows in the result.
CUTS: dict[str, tuple[Callable[[DataFrame], DataFrame], int]] = {
    "none": (lambda batch: batch.limit(0), 0),
    "some": (lambda batch: batch.limit(2), 2),
    "false": (lambda batch: batch.where("false"), 0),
    "other": (_other, 2),
    "counted": (_counted_first, 1),
    "seen": (_seen_first, 2),
    "both": (lambda batch: batch.limit(1).union(batch.limit(1)), 2),
    "join": (_empty_side, 0),
    "merge": (_static_side, 0),
    "local": (lambda batch: batch.sparkSession.createDataFrame(batch.limit(2).collect(), batch.schema), 2),
}
QUICK = ("some", "other")


@contextlib.contextmanager
def configured(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def feed(query: Query, number: int) -> None:
    """Add a batch with new rows, and with all rows of the batches before."""
    query.feed(*({"id": f"{of}-{one}", "n": 100 * of + one} for of in range(number + 1) for one in range(NEW)))


def cutting(*cuts: str) -> Callable[[ExactlyOnce], Callable[[DataFrame, int], None]]:
    """A function that passes every even batch completely, and cuts the others."""

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            each(CUTS[cuts[number // 2]][0](batch) if number % 2 else batch, number)
            batch.unpersist()

        return write

    return function


def require_rows(seen: Counter[str], *cuts: str) -> None:
    """Require all new rows of every complete batch, the kept number of rows of the cut batches, and no row twice."""
    by_batch = Counter(int(value) // 100 for value in seen.elements())
    assert max((seen - Counter({value: 1 for value in seen if "both" in cuts})).values()) == 1
    for number in range(2 * len(cuts) + 1):
        is_cut = number % 2 == 1 and cuts[number // 2] != "other"
        wanted = CUTS[cuts[number // 2]][1] if is_cut else 0 if number % 2 else NEW
        assert by_batch[number] == wanted, (number, by_batch)


@pytest.mark.parametrize("cuts", [QUICK, pytest.param(tuple(CUTS), marks=pytest.mark.whole)], ids=["quick", "all"])
@pytest.mark.parametrize("store", STORES)
def test_a_query_continues_after_batches_that_the_function_did_not_read_completely(
    store: dict[str, str], cuts: tuple[str, ...], kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), function=cutting(*cuts), plan=lambda frame: frame.dropDuplicates(["id"]))
    with configured(spark, store):
        for number in range(2 * len(cuts) + 1):
            feed(query, number)
            if number % 4 == 1:  # so some cut batches are the last of a run, and some are not
                query.run()
        query.run()
    require_rows(values(sink), *cuts)


@pytest.mark.parametrize(
    "point",
    [
        "driver.decided@2",
        *(pytest.param(one, marks=pytest.mark.whole) for one in ("driver.confirmed@2", "driver.committed@2")),
    ],
)
def test_a_replay_writes_the_whole_state_of_a_batch_that_the_function_did_not_read_completely(
    point: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), function=cutting("none"), plan=lambda frame: frame.dropDuplicates(["id"]))
    feed(query, 0)
    feed(query, 1)
    query.fail_at(point)
    for written in (tmp_path / "checkpoint" / "state").rglob("2.delta"):
        written.unlink()
        written.with_name(f".{written.name}.crc").unlink(missing_ok=True)
    feed(query, 2)
    query.run()
    require_rows(values(sink), "none")


def test_as_many_commits_as_partitions_prove_nothing_if_a_dataframe_contains_the_batch_twice(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """Two of four partitions have no rows and commit twice. The other two are cut off, and never commit."""
    sink = kafka_sink(kafka.bootstrap_servers)
    placed = (
        spark.range(100).selectExpr("CAST(id AS STRING) AS id", "pmod(hash(CAST(id AS STRING)), 4) AS place").collect()
    )
    full = [row.id for row in placed if row.place < 2]

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        return lambda batch, number: each(batch.limit(1).union(batch.limit(2)) if number == 1 else batch, number)

    query = Query(spark, tmp_path, (sink,), function=function, plan=lambda frame: frame.dropDuplicates(["id"]))
    query.feed(*({"id": row.id, "n": 0} for row in placed[:4]))
    query.feed(*({"id": one, "n": 1} for one in full))
    query.feed(*({"id": row.id, "n": 2} for row in placed))
    with configured(spark, {"spark.sql.shuffle.partitions": "4"}):
        query.run()
    known = {row.id for row in placed[:4]} | set(full)
    assert values(sink) == {"0": 4, "1": 3, "2": len(placed) - len(known)}


def test_one_of_two_sinks_may_receive_no_rows(kafka: KafkaService, spark: SparkSession, tmp_path: Path) -> None:
    one, two = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            cut = batch.limit(0)
            frames: list[dict[str, Any]] = [
                {one.name: cut, two.name: batch},
                {one.name: None, two.name: cut},
                {one.name: batch.limit(1), two.name: None},
                {one.name: batch, two.name: batch.where("id like '%0'")},
            ]
            each(frames[number], number)

        return write

    query = Query(spark, tmp_path, (one, two), function=function, plan=lambda frame: frame.dropDuplicates(["id"]))
    for number in range(4):
        feed(query, number)
    query.run()
    assert Counter(int(value) // 100 for value in values(one).elements()) == {2: 1, 3: NEW}
    assert Counter(int(value) // 100 for value in values(two).elements()) == {0: NEW, 3: 1}


@pytest.mark.whole
def test_a_batch_that_the_function_reads_completely_is_evaluated_once(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    count = counting(tmp_path / "evaluated")

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            table = spark.range(10).selectExpr("CAST(id AS STRING) AS other")
            made = [
                lambda: batch,
                lambda: batch.persist().where("id not like '%x'"),
                lambda: (
                    batch.join(table, sf.col("value") == sf.col("other"), "left")
                    .groupBy("key")
                    .agg(sf.max("value").alias("value"))
                ),
            ][number]()
            each(made, number)
            batch.unpersist()

        return write

    query = Query(spark, tmp_path, (sink,), function=function, plan=lambda frame: count(frame.dropDuplicates(["id"])))
    for number in range(3):
        feed(query, number)
    query.run()
    assert sum(values(sink).values()) == 3 * NEW
    assert counted(tmp_path / "evaluated") == 3 * NEW


@pytest.mark.whole
def test_a_batch_that_the_function_has_cached_or_repartitioned_is_evaluated_once(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """A second evaluation would change a state that depends on more than the input, such as the clock."""
    sink = kafka_sink(kafka.bootstrap_servers)
    count = counting(tmp_path / "evaluated")
    made: list[Callable[[DataFrame], DataFrame]] = [
        _counted_first,
        lambda batch: _counted_first(batch.where("n >= 0")),
        lambda batch: batch.coalesce(1),
        lambda batch: batch.repartition(2),
        lambda batch: batch.repartition(2, "key"),
    ]

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            each(made[number](batch), number)
            spark.catalog.clearCache()

        return write

    query = Query(spark, tmp_path, (sink,), function=function, plan=lambda frame: count(frame.dropDuplicates(["id"])))
    for number in range(len(made)):
        feed(query, number)
    query.run()
    assert sum(values(sink).values()) == 2 + 3 * NEW
    assert counted(tmp_path / "evaluated") == len(made) * NEW


@pytest.mark.whole
def test_a_retry_of_cached_rows_does_not_evaluate_the_batch_for_its_state(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """A second evaluation could give a state that does not match the cached rows. The retry decides the cached rows."""
    sink = kafka_sink(kafka.bootstrap_servers)
    count = counting(tmp_path / "evaluated")

    def refuse() -> None:
        raise RetriableError("the brokers did not confirm the handles")

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            table = spark.range(10).selectExpr("CAST(id AS STRING) AS other")
            crash_points.arm("driver.prepared", refuse)
            each(batch.join(table, sf.col("value") == sf.col("other"), "left").select("key", "value").persist(), number)
            assert not crash_points.is_armed("driver.prepared")
            spark.catalog.clearCache()

        return write

    query = Query(spark, tmp_path, (sink,), function=function, plan=lambda frame: count(frame.dropDuplicates(["id"])))
    feed(query, 0)
    feed(query, 1)
    try:
        query.run()
    finally:
        crash_points.disarm()
    assert sum(values(sink).values()) == counted(tmp_path / "evaluated") == 2 * NEW


@pytest.mark.parametrize("is_cached", [False, True])
def test_each_evaluation_of_the_batch_after_the_one_that_wrote_its_rows_is_reported(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_cached: bool
) -> None:
    """A second DataFrame evaluates the batch, and so does the function's own code after the call. The cache prevents both."""
    one, two = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)
    count = counting(tmp_path / "evaluated")

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            if is_cached:
                batch.persist()
            each({one.name: batch, two.name: batch.where("n >= 0") if number == 0 else None}, number)
            assert number != 1 or batch.count() == NEW
            batch.unpersist()

        return write

    query = Query(
        spark, tmp_path, (one, two), function=function, plan=lambda frame: count(frame.dropDuplicates(["id"]))
    )
    for number in range(3):
        feed(query, number)
    with caplog.at_level(logging.WARNING, "twopc.integration.spark"):
        query.run()
    texts = [record.getMessage() for record in caplog.records if "wrote the query's state again" in record.getMessage()]
    assert counted(tmp_path / "evaluated") == (3 if is_cached else 5) * NEW
    assert [re.findall(r"batch \d", text) for text in texts] == ([] if is_cached else [["batch 0"], ["batch 1"]])
    assert values(one) == Counter(str(100 * of + row) for of in range(3) for row in range(NEW))


def _sessions(frame: DataFrame) -> DataFrame:
    return frame.groupBy(sf.session_window("time", "5 seconds"), "kind").agg(sf.count("*").alias("n"))


def _joined(frame: DataFrame) -> DataFrame:
    other = frame.selectExpr("id AS other", "time AS at")
    near = "id = other AND at BETWEEN time - INTERVAL 1 MINUTE AND time + INTERVAL 1 MINUTE"
    return frame.join(other, sf.expr(near))


def _counts(key: Any, frames: Iterable[Any], state: Any) -> Iterator[Any]:
    import pandas as pd  # noqa: PLC0415 - runs in a worker

    count = sum(len(frame) for frame in frames) + (state.get[0] if state.exists else 0)
    state.update((count,))
    yield pd.DataFrame({"kind": [key[0]], "n": [count]})


def _with_state(frame: DataFrame) -> DataFrame:
    from pyspark.sql.streaming.state import GroupStateTimeout  # noqa: PLC0415 - only one test needs it

    grouped = frame.groupBy("kind")
    return grouped.applyInPandasWithState(
        _counts, "kind STRING, n LONG", "n LONG", "append", GroupStateTimeout.NoTimeout
    )


def _transformed(frame: DataFrame) -> DataFrame:
    """Since Spark 4.0, this requires RocksDB state stores."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415 - see above

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "n LONG")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
            del timerValues
            import pandas as pd  # noqa: PLC0415 - runs in a worker

            count = sum(len(frame) for frame in rows) + (self._count.get()[0] if self._count.exists() else 0)
            self._count.update((count,))
            yield pd.DataFrame({"kind": [key[0]], "n": [count]})

        def close(self) -> None:
            pass

    return frame.groupBy("kind").transformWithStateInPandas(
        Counting(), outputStructType="kind STRING, n LONG", outputMode="append", timeMode="None"
    )


#: Stateful plans. In ``joined``, both operators of a query write state; in ``chained``, one operator comes after the
#: other's shuffle.
PLANS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "within": lambda frame: frame.dropDuplicatesWithinWatermark(["id"]),
    "windows": lambda frame: frame.groupBy(sf.window("time", "10 seconds"), "kind").count(),
    "sessions": _sessions,
    "joined": lambda frame: _joined(frame.dropDuplicates(["id", "time"])),
    "chained": lambda frame: frame.dropDuplicates(["id", "time"]).groupBy(sf.window("time", "10 seconds")).count(),
    "function": _with_state,  # runs in Python, so Spark does not know how its output is partitioned
    "limited": lambda frame: frame.limit(15),
    "transformed": _transformed,
}


@pytest.mark.whole
@pytest.mark.parametrize("plan", [name for name in PLANS if name != "transformed" or pyspark.__version__ >= "4.0"])
def test_a_batch_limited_by_the_function_changes_no_other_batch_of_a_stateful_query(
    plan: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """The rows of the others, and so the watermark, are those that Spark produces if each batch is read whole."""
    sink, taken, alone = kafka_sink(kafka.bootstrap_servers), tmp_path / "taken", Counter[str]()
    taken.mkdir()

    def planned(frame: DataFrame) -> DataFrame:
        timed = frame.selectExpr("id", "kind", "CAST(at AS TIMESTAMP) AS time").withWatermark("time", "1 second")
        return PLANS[plan](timed)

    def written(batch: DataFrame) -> DataFrame:
        return batch.selectExpr("'k' AS key", "to_json(struct(*)) AS value")

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        return lambda batch, number: each(written(batch).limit(0) if number in {1, 4} else written(batch), number)

    def keep(batch: DataFrame, number: int) -> None:
        alone.update(row.value for row in written(batch).collect() if number not in {1, 4})

    def run_alone() -> None:
        source = spark.readStream.schema(query.schema).option("maxFilesPerTrigger", 1).json(str(taken / "source"))
        writer = planned(source).writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "alone"))
        writer.trigger(availableNow=True).start().awaitTermination()

    query = Query(spark, taken, (sink,), schema="id STRING, kind STRING, at STRING", function=function, plan=planned)
    for number in range(7):
        at = [f"2024-01-01T00:0{number}:{second:02d}Z" for second in (0, 20, 40)]
        query.feed(*({"id": f"{number}-{one % 4}", "kind": f"k{one % 2}", "at": at[one % 3]} for one in range(6)))
        if number in {1, 5, 6}:  # one cut batch is the last of a run, and one is not
            with configured(spark, _ROCKS_DB if plan == "transformed" else {}):
                query.run("*")
                run_alone()
    assert sum(alone.values()) > 0
    assert values(sink) == alone


@pytest.mark.whole
@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="a join has four stores in every state format of this Spark")
def test_a_join_with_one_store_for_each_partition_is_evaluated_once(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    count = counting(tmp_path / "evaluated")

    def joined(frame: DataFrame) -> DataFrame:
        timed = frame.selectExpr("id", "CAST(at AS TIMESTAMP) AS time").withWatermark("time", "1 second")
        return count(_joined(timed).selectExpr("id AS key", "other AS value"))

    query = Query(spark, tmp_path, (sink,), schema="id STRING, at STRING", plan=joined)
    with configured(spark, {**_ROCKS_DB, "spark.sql.streaming.join.stateFormatVersion": "3"}):
        for number in range(2):
            query.feed(*({"id": f"{number}-{one}", "at": f"2024-01-01T00:0{number}:00Z"} for one in range(NEW)))
            query.run("*")
    assert sum(values(sink).values()) == counted(tmp_path / "evaluated") == 2 * NEW


@pytest.mark.whole
@pytest.mark.skipif(
    pyspark.__version__ >= "4.1", reason="Spark stops such a query itself, at the batch that is left out (SPARK-52008)"
)
def test_a_batch_that_the_function_skipped_runs_again_as_the_refusal_advises(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)

    def leaving_out(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        return lambda batch, number: None if number == 1 else each(batch, number)

    query = Query(spark, tmp_path, (sink,), function=leaving_out, plan=lambda frame: frame.dropDuplicates(["id"]))
    for number in range(3):
        feed(query, number)
    message = query.refused()
    assert (
        "numbers above 1 from the checkpoint's offsets/" in message and "numbers above 0 from its commits/" in message
    )
    for directory, above in (("offsets", 1), ("commits", 0)):
        for file in (tmp_path / "checkpoint" / directory).iterdir():
            if file.name.isdigit() and int(file.name) > above:
                file.unlink()
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    query.function = lambda each: each
    query.run()
    assert Counter(int(value) // 100 for value in values(sink).elements()) == {0: NEW, 1: NEW, 2: NEW}


@pytest.mark.whole
@pytest.mark.skipif(pyspark.__version__ < "4.0", reason="Spark has the setting from 4.0 on")
def test_a_state_format_that_keeps_the_first_evaluations_state_is_refused(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), plan=lambda frame: frame.dropDuplicates(["id"]))
    feed(query, 0)
    with configured(spark, {**_ROCKS_DB, f"{_STORE}.checkpointFormatVersion": "2"}):
        message = query.refused()
    assert "ConfigurationError: batch 0" in message
    assert f"Set {_STORE}.checkpointFormatVersion to 1" in message
    assert not values(sink)


@pytest.mark.whole
def test_a_batch_that_spark_plans_again_at_another_time_is_refused_and_can_be_finished_as_it_was_decided(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """The checkpoint lacks the last batch, as an older copy of it does."""
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), plan=lambda frame: frame.dropDuplicates(["id"]))
    for number in range(2):
        feed(query, number)
        query.run()
    planned = tmp_path / "checkpoint/offsets/1"
    decided = json.loads(planned.read_text().splitlines()[1])
    for name in ("offsets/1", "offsets/.1.crc", "commits/1", "commits/.1.crc", "sources/0/1", "sources/0/.1.crc"):
        (tmp_path / "checkpoint" / name).unlink()
    error = query.refused()
    assert "RefusedStartError: planned again" in error
    version, metadata, *offsets = planned.read_text().splitlines()
    times = {name: decided[name] for name in ("batchWatermarkMs", "batchTimestampMs")}
    assert json.dumps(times, separators=(",", ":")).strip("{}") in error
    planned.write_text("\n".join([version, json.dumps(json.loads(metadata) | times), *offsets]))
    (planned.parent / ".1.crc").unlink()
    feed(query, 2)
    query.run()
    assert values(sink) == Counter(str(100 * of + one) for of in range(3) for one in range(NEW))
