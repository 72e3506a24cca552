"""A small batch is collected unchanged, without our own plan, and so without the tasks' bound."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from tests.live.file_query import Query, kafka_sink, values
from tests.live.spark_support import Pipeline, as_arrow, spark
from tests.live.test_spark_direct import DIRECT, sink_of, ways
from tests.live.test_spark_direct import rows as numbered
from twopc import DriverUpTo
from twopc.errors import RetriableError
from twopc.integration.spark import engine
from twopc.integration.spark.collect import collect
from twopc.integration.spark.frame import Rows, arrange
from twopc.integration.spark.views import CHECKSUM
from twopc.sink import Form
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.writer import KafkaWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce
    from twopc.integration.spark.budget import Budget

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


def sink(**settings: Any) -> KafkaSink:
    """The sink connects to no server."""
    return KafkaSink(name="orders", bootstrap_servers="localhost:1", **settings)


def arranged(frame: DataFrame, *sinks: KafkaSink, **select: list[str]) -> Rows:
    return replace(arrange("", frame, sinks, select=select), is_hashed=False)


def collected(rows: Rows) -> pa.Table:
    batches = collect(rows, max_bytes=None, budget=None, cancel=lambda: None)
    assert batches is not None
    return pa.Table.from_batches(batches)


def made_by_spark(rows: Rows) -> pa.Table:
    return as_arrow(rows.frame())


def test_the_driver_collects_the_dataframe_itself_and_writes_the_same_rows_as_a_plan(
    spark: SparkSession,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - the seed repeats the test
    chance = random.Random(seed)
    headers = [None, [], [("h", b"1")], [("h", None), ("ключ", b"\0")]]
    data = [
        (
            chance.choice(headers),
            chance.choice([None, "", "a", "ключ", "\U0001f600"]),
            chance.choice([None, 0, 1]),
            chance.choice([None, b"", b"\xff\0", bytes(chance.randrange(300))]),
            chance.choice(["t", "other"]),
        )
        for _ in range(500)
    ]
    schema = f"headers {HEADERS}, value STRING, partition INT, key BINARY, topic STRING"
    frame = spark.createDataFrame(data, schema).repartition(3)
    rows = arranged(frame, sink())
    assert rows.for_driver()[0] is frame
    found, expected = collected(rows), made_by_spark(rows)
    assert found.schema.types == expected.schema.types
    assert found.schema.names == expected.schema.names
    assert found.to_pylist() == expected.to_pylist()


def test_an_empty_dataframe_yields_no_arrow_batch(spark: SparkSession) -> None:
    rows = arranged(spark.createDataFrame([], "value STRING"), sink(topic="t"))
    assert collect(rows, max_bytes=1024, budget=None, cancel=lambda: None) == []


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(["value", "1 AS other"], id="a column that no sink takes"),
        pytest.param(["value", "TIMESTAMP'2020-01-01' AS timestamp"], id="a form that Spark makes"),
        pytest.param(["value", "'x' AS `a.b`", "1 AS `a``b`"], id="names with quotes"),
        pytest.param(["value", "INTERVAL '1' YEAR AS other"], id="never null, and of a type that Arrow does not have"),
    ],
)
def test_spark_makes_the_rows_that_the_driver_cannot_make_from_the_dataframe(
    columns: list[str], spark: SparkSession
) -> None:
    frame = spark.createDataFrame([("v",), (None,)], "value STRING").selectExpr(*columns)
    rows = arranged(frame, sink(topic="t"))
    assert rows.for_driver()[0] is not frame
    assert collected(rows).to_pylist() == made_by_spark(rows).to_pylist()


def test_spark_computes_the_columns_of_expressions_and_every_checksum(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("v",), (None,)], "value STRING")
    selected = arranged(frame, sink(topic="t"), orders=["upper(value) AS value"])
    hashed = replace(arranged(frame, sink(topic="t")), is_hashed=True)
    for rows in (selected, hashed):
        assert rows.for_driver()[0] is not frame
        assert collected(rows).to_pylist() == made_by_spark(rows).to_pylist()
    assert all(row["__twopc_checksum"] for row in collected(hashed).to_pylist())


#: Values of one column. Spark's own hash of some of them is the same, or Spark does not hash them.
_NESTED: dict[str, list[str]] = {
    "a map": [
        "MAP('k', 1)",
        "MAP('k', 2)",
        "MAP('l', 1)",
        "MAP('k', NULL)",
        "MAP()",
        "NULL",
        "MAP('k', NULL, 'l', NULL)",
    ],
    "a map in an array": [
        "ARRAY(MAP('k', 1))",
        "ARRAY(MAP('k', 2))",
        "ARRAY(MAP('l', 1))",
        "ARRAY(MAP('k', 1, 'l', 2))",
    ],
    "a map in a map": [
        "MAP('m', MAP('k', 1))",
        "MAP('m', MAP('k', 2))",
        "MAP('m', MAP('l', 1))",
        "MAP('n', MAP('k', 1))",
    ],
    "a map in a struct": [f"NAMED_STRUCT('a b', MAP('k', {n}), 'm`c', {m})" for n, m in ((1, 1), (2, 1), (1, 2))],
    "in a struct in a map in an array": [f"ARRAY(MAP('m', STRUCT(1 AS key, MAP(1, {n}) AS x0)))" for n in (1, 2)],
    "a map with a binary key": ["ARRAY(MAP(X'FF01', at))", "ARRAY(MAP(X'FF02', at))", "ARRAY(MAP(X'FF01', NULL))"],
    "a map with a struct as its key": [f"ARRAY(MAP(STRUCT({n} AS a), at))" for n in (1, 2)],
    "a map with NaN": [f"ARRAY(MAP('k', DOUBLE('{text}')))" for text in ("NaN", "Infinity", "-Infinity", "0")],
    "a struct": [
        f"NAMED_STRUCT('old', {old}, 'new', {new})" for old, new in (("5", "NULL"), ("NULL", "5"), ("NULL", "NULL"))
    ],
    "an array": [
        "ARRAY(1, NULL)",
        "ARRAY(NULL, 1)",
        "ARRAY(1)",
        "ARRAY(1, NULL, NULL)",
        "ARRAY(CAST(NULL AS INT))",
        "ARRAY()",
    ],
    "an array with neither nulls nor zeros": [
        "ARRAY(1, 2)",
        "ARRAY(2, 1)",
        "ARRAY(1, 2, 0)",
        "ARRAY(1, 2, NULL)",
        "ARRAY(1)",
    ],
    "an array of decimals": [f"ARRAY({one})" for one in ("1.50", "0.00", "CAST(NULL AS DECIMAL(3, 2))", "1.50, NULL")],
    "an array in an array": [
        "ARRAY(ARRAY(1), ARRAY(2))",
        "ARRAY(ARRAY(1, 2))",
        "ARRAY(ARRAY(1, 2), NULL)",
        "ARRAY(ARRAY(1, 2), ARRAY())",
    ],
    "an array of structs": [f"ARRAY(STRUCT({a} AS a, {b} AS b))" for a, b in (("1", "NULL"), ("NULL", "1"))],
    "two arrays": [
        f"STRUCT(ARRAY({a}) AS a, ARRAY({b}) AS b)" for a, b in (("1", "2, 3"), ("1, 2", "3"), ("1, 2, 3", ""))
    ],
    "a number": [f"DOUBLE('{text}')" for text in ("0", "-0", "NaN", "Infinity", "-1")] + ["CAST(NULL AS DOUBLE)"],
    "numbers": [f"ARRAY(FLOAT('{a}'), FLOAT('{b}'))" for a, b in (("0", "-0"), ("-0", "0"), ("0", "0"), ("NaN", "0"))]
    + ["ARRAY(FLOAT('0'), NULL)", "ARRAY(NULL, FLOAT('-0'))", "ARRAY(FLOAT('-0'), NULL)"],
    "a struct whose names differ only in case": [f"NAMED_STRUCT('a', {a}, 'A', {b})" for a, b in ((1, 2), (2, 1))]
    + ["NAMED_STRUCT('a', NULL, 'A', 1)", "NAMED_STRUCT('a', 1, 'A', NULL)"],
    "a struct whose names differ only to Spark's eye": [
        f"NAMED_STRUCT('\u0131', {a}, 'i', {b})" for a, b in ((1, 2), (2, 1))
    ],
    "a struct with a field named collate": [
        f"NAMED_STRUCT('collate', {a}, 'Collate', {b})" for a, b in ((1, 2), (2, 1))
    ],
}
if not pyspark.__version__.startswith("3."):  # Spark 3.5 has no collations
    _NESTED["texts that a collation takes for equal"] = [f"'{text}' COLLATE UTF8_LCASE" for text in ("A", "a", "b")]
    _NESTED["an array of such texts"] = [f"ARRAY('{text}' COLLATE UTF8_LCASE)" for text in ("A", "a", "b")]


@pytest.mark.parametrize("cases", _NESTED.values(), ids=_NESTED.keys())
def test_different_values_have_different_checksums(cases: list[str], spark: SparkSession) -> None:
    """Two evaluations have the same checksum. Seen: a repair could confuse values with nulls in different places."""
    times = spark.range(1).selectExpr("TIMESTAMP_SECONDS(id) AS at")
    frame = times.selectExpr(f"EXPLODE(ARRAY({', '.join(cases)})) AS c", "'' AS value")
    letters, events = (KafkaSink(name=name, bootstrap_servers="nowhere:1", topic="t") for name in ("letters", "events"))
    arranged = arrange("", frame, (events, letters), select={}, dead_letter=letters.name)
    assert [column.form for column in arranged.columns] == [Form.AS_IS, Form.BINARY, Form.AS_IS]
    first, second = (as_arrow(arranged.frame()).column(CHECKSUM).to_pylist() for _ in range(2))
    assert first == second
    assert len(set(first)) == len(cases)


def test_a_checksum_covers_a_structs_field_beside_a_column_of_the_same_name(spark: SparkSession) -> None:
    """Spark takes `c`.`value` for the column `value` of a table `c`, if there is one."""
    frame = spark.range(2).selectExpr("named_struct('value', id) AS c", "'' AS value").alias("c")
    letters, events = (KafkaSink(name=name, bootstrap_servers="nowhere:1", topic="t") for name in ("letters", "events"))
    arranged = arrange("", frame, (events, letters), select={}, dead_letter=letters.name)
    first, second = as_arrow(arranged.frame()).column(CHECKSUM).to_pylist()
    assert first != second


@pytest.mark.skipif(pyspark.__version__.startswith("3."), reason="Spark 3.5 lacks the setting")
def test_columns_of_large_types_are_also_converted_to_bytes(spark: SparkSession) -> None:
    setting = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(setting, "true")
    try:
        rows = arranged(spark.createDataFrame([("v",)], "value STRING"), sink(topic="t"))
        found, expected = collected(rows), made_by_spark(rows)
    finally:
        spark.conf.unset(setting)
    assert found.schema.types == expected.schema.types == [pa.large_binary(), pa.int64()]
    assert found.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("plan", "expected"),
    [pytest.param("rows", [True, False, False], marks=pytest.mark.whole), ("update", [True, True, True])],
)
def test_the_rows_of_a_stateful_query_and_of_a_runs_first_batch_are_bounded_by_the_tasks(
    plan: str,
    expected: list[bool],
    kafka: KafkaService,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size of a stateful query's output is not proportional to its input: one record may end a thousand windows."""
    bounded: list[bool] = []

    def noting(rows: Rows, *, budget: Budget | None, **others: Any) -> Any:
        bounded.append(budget is not None)
        return collect(rows, budget=budget, **others)

    monkeypatch.setattr(engine, "collect", noting)
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=20, plan=plan)
    pipeline.feed(60)
    pipeline.run(spark)
    assert bounded == expected


def test_a_batch_of_a_few_unusually_large_records_does_not_stay_in_the_driver(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, max_offsets=5, settings={"write_by": DriverUpTo(100_000)})
    for size in (10, 10, 60_000, 10):
        for number in range(5):
            value = f"{number}-{size}-" + "x" * size
            pipeline.give(value.encode(), key=b"k")
            pipeline.given[value] += 1
    pipeline.run(spark)
    pipeline.require_exactly_once()
    assert [all(way) for way in ways(sink_of(pipeline))] == [True, True, False, False]


def summed_up(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")


def failing_once(monkeypatch: pytest.MonkeyPatch) -> list[RetriableError]:
    """Let the first writer fail at its end. The list is empty afterward."""
    flush, errors = KafkaWriter.pre_commit, [RetriableError("once")]

    def fail_once(writer: KafkaWriter) -> Any:
        if errors:
            raise errors.pop()
        return flush(writer)

    monkeypatch.setattr(KafkaWriter, "pre_commit", fail_once)
    return errors


@pytest.mark.parametrize("adaptive", ["true", pytest.param("false", marks=pytest.mark.whole)])
def test_an_attempt_is_repeated_over_the_same_dataframe_and_its_shuffle(
    adaptive: str, kafka: KafkaService, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt skips the stages that the first attempt has shuffled. It is decided, because each stage ran once."""

    def summed(each: ExactlyOnce) -> Any:
        return lambda frame, batch: each(summed_up(frame), batch)

    errors = failing_once(monkeypatch)
    output = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (output,), DIRECT, function=summed)
    query.feed(*numbered(40), *numbered(20))
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        query.run("id AS key")
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert not errors
    assert values(output) == Counter({"1": 20, "2": 20})
    assert ways(output) == [[True]]


#: From Spark 4.1 on, this setting removes a plan's shuffle files after each evaluation. A second evaluation writes them
#: again.
CLEANUP = "spark.sql.classic.shuffleDependency.fileCleanup.enabled"


@pytest.fixture
def removing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with this setting on."""
    spark.conf.set(CLEANUP, "True")
    yield spark
    spark.conf.unset(CLEANUP)


def test_the_given_dataframe_is_not_evaluated_directly_if_spark_removes_its_shuffle_files(
    kafka: KafkaService, removing: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[DataFrame] = []
    evaluated: list[DataFrame] = []

    def remembering(each: ExactlyOnce) -> Any:
        def write(frame: DataFrame, batch: int) -> None:
            given.append(frame)
            each(frame, batch)

        return write

    def noting(rows: Rows, **others: Any) -> Any:
        evaluated.append(rows.for_driver()[0])
        return collect(rows, **others)

    monkeypatch.setattr(engine, "collect", noting)
    output = kafka_sink(kafka.bootstrap_servers)
    query = Query(removing, tmp_path, (output,), DIRECT, function=remembering)
    query.feed(*numbered(4))
    query.run("id AS key", "CAST(n AS STRING) AS value")
    assert len(given) == len(evaluated) == 1
    assert evaluated[0] is not given[0]
    assert sum(values(output).values()) == 4


@pytest.mark.whole
@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark has the setting from 4.1 on")
@pytest.mark.parametrize("twice", ["evaluated by the function", "failed"])
def test_removed_shuffle_files_do_not_stop_a_query_that_evaluates_its_dataframe_twice(
    twice: str, kafka: KafkaService, removing: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = failing_once(monkeypatch) if twice == "failed" else []

    def summed(each: ExactlyOnce) -> Any:
        def write(frame: DataFrame, batch: int) -> None:
            sums = summed_up(frame)
            if twice != "failed":
                sums.collect()
            each(sums, batch)

        return write

    output = kafka_sink(kafka.bootstrap_servers)
    query = Query(removing, tmp_path, (output,), DIRECT, function=summed)
    query.feed(*numbered(40), *numbered(20))
    query.run("id AS key")
    assert not errors
    assert values(output) == Counter({"1": 20, "2": 20})
