"""The limit on the bytes that each task sends to the driver: rows pass until they have used up the limit."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as st

from tests.live.spark_support import as_arrow, spark
from twopc.integration.spark import budget as budgets
from twopc.integration.spark.budget import Budget, spent_bytes
from twopc.integration.spark.collect import collect
from twopc.integration.spark.frame import Rows, TakenColumn, arrange
from twopc.sink import Form
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

PLAIN = "BINARY", "STRING", "INT", "BIGINT", "BOOLEAN", "DECIMAL(20, 3)", "TIMESTAMP", "DATE"
NESTED = (
    "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "MAP<STRING, ARRAY<BIGINT>>",
    "STRUCT<`a.b`: STRING, deep: STRUCT<more: ARRAY<ARRAY<STRING>>>>",
)
#: Difficult column names, including names that the expression for the columns' sizes itself uses.
NAMES = "value", "sum", "one", "a.b", "a`b", "ключ"
#: Queries of a table in files, and of a table whose rows the plan contains.
PLANS = (
    "SELECT * FROM given",
    "SELECT * FROM given WHERE value <> 'bbbb'",
    "SELECT value FROM files WHERE n IS NOT NULL",
    "SELECT value, n FROM files WHERE n = 7",
    "SELECT value FROM files WHERE length(value) = 2 AND n > 3",
    "SELECT value FROM files WHERE rand(3) < 0.1",
    "SELECT value FROM files UNION ALL SELECT * FROM given",
    "SELECT value FROM (SELECT DISTINCT * FROM given UNION ALL SELECT value FROM files) WHERE value > '3'",
    "SELECT value FROM files ORDER BY n LIMIT 30",
    "SELECT files.value FROM files LEFT JOIN given ON files.value = given.value WHERE given.value IS NULL",
    "SELECT value, count(*) AS n FROM files GROUP BY value HAVING count(*) > 0",
    "SELECT explode(array(value, value)) AS value FROM files WHERE n < 9",
    "SELECT value, row_number() OVER (ORDER BY n) AS n FROM files",
)


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - the seed makes the test repeatable
    return random.Random(seed)


def random_rows(spark: SparkSession, chance: random.Random) -> DataFrame:
    """Rows of random types and widths, with nulls at every depth, in one partition."""
    kinds = chance.sample([*PLAIN, *NESTED], chance.randrange(1, 6))
    names = chance.sample(NAMES, len(kinds))
    # Use Spark's own parser, because `StructType.fromDDL` does not always accept these names.
    columns = ", ".join(
        f"CAST(NULL AS {kind}) AS `{name.replace('`', '``')}`" for name, kind in zip(names, kinds, strict=True)
    )
    schema = spark.sql(f"SELECT {columns}").schema
    schema = st.StructType([st.StructField(field.name, field.dataType) for field in schema])
    return spark.createDataFrame([random_value(chance, schema) for _ in range(200)], schema).coalesce(1)


def random_value(chance: random.Random, kind: st.DataType) -> Any:
    if isinstance(kind, st.StructType):
        return tuple(None if chance.random() < 0.2 else random_value(chance, field.dataType) for field in kind)
    if isinstance(kind, st.ArrayType):
        made = [random_value(chance, kind.elementType) for _ in range(chance.randrange(4))]
        return [None if chance.random() < 0.2 else one for one in made]
    if isinstance(kind, st.MapType):
        return {str(key): random_value(chance, kind.valueType) for key in range(chance.randrange(3))}
    text = "ключ-\U0001f600"[: chance.randrange(7)] * chance.choice([1, 1, 1, 50])
    by_name = {"binary": text.encode(), "string": text, "boolean": True, "decimal": decimal.Decimal("1.5")}
    day = dt.date(2020, 1, 2)
    by_name |= {"date": day, "timestamp": dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc)}
    return by_name.get(kind.typeName(), chance.randrange(100))


@pytest.mark.parametrize("_number", range(3))
def test_the_driver_and_spark_count_the_same_number_of_bytes(
    _number: int, spark: SparkSession, chance: random.Random
) -> None:
    """If the rows were not counted, a row that a task has held back would go unnoticed."""
    frame = random_rows(spark, chance)
    counted = frame.selectExpr(f"SUM({budgets._bytes_of_row(frame.schema)})").head()
    assert counted is not None
    assert counted[0] == spent_bytes(as_arrow(frame).to_batches())


@pytest.mark.parametrize("_number", range(3))
def test_a_tasks_rows_pass_up_to_the_first_row_that_exceeds_the_budget(
    _number: int, spark: SparkSession, chance: random.Random
) -> None:
    frame = random_rows(spark, chance)
    rows = as_arrow(frame)
    spent = [spent_bytes(rows.slice(0, count).to_batches()) for count in range(rows.num_rows + 1)]
    most_bytes = chance.randrange(int(spent[-1]))
    [passed] = [count for count in range(1, len(spent)) if spent[count - 1] <= most_bytes < spent[count]]
    found = bounded(frame, most_bytes)
    assert found.to_pylist() == rows.slice(0, passed).to_pylist()


def bounded(frame: DataFrame, most_bytes: int) -> pa.Table:
    dataset = Budget().bounded(frame, most_bytes)
    assert dataset is not None
    return as_arrow(type(frame)(dataset, frame.sparkSession))


def arranged(frame: DataFrame) -> Rows:
    sink = KafkaSink(name="orders", bootstrap_servers="localhost:1", topic="t")
    return replace(arrange("", frame, (sink,), select={}), is_hashed=False)


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param("value", id="as it is", marks=pytest.mark.whole),
        pytest.param("upper(value) AS value", id="made by Spark"),
    ],
)
def test_all_rows_or_none_arrive_under_any_budget(expression: str, spark: SparkSession, chance: random.Random) -> None:
    """Each task may finish within the budget although all tasks together exceed it."""
    budget = Budget()  # one for the whole run, because its filters serve many batches
    seen = set()
    for _ in range(12):
        values = ["x" * chance.choice([1, 10, 2000]) for _ in range(chance.randrange(200))]
        frame = spark.createDataFrame([(value,) for value in values], "value STRING").repartition(
            chance.randrange(1, 5)
        )
        rows = arranged(frame.selectExpr(expression))
        most_bytes = chance.choice([1_000, 20_000, 1_000_000])
        found = collect(rows, max_bytes=most_bytes, budget=budget, cancel=lambda: None)
        seen.add(found is None)
        needed = spent_bytes(as_arrow(rows.frame()).to_batches())
        assert (found is None) >= (needed > most_bytes)
        if found is not None:
            assert sum(batch.num_rows for batch in found) == len(values)
    assert seen == {True, False}


@pytest.mark.whole
@pytest.mark.parametrize(
    "sources",
    [
        pytest.param("parquet", id="files of version 1"),
        pytest.param("", id="files of version 2"),
    ],
)
def test_under_any_plan_no_row_is_missing_unless_the_rows_that_arrive_exceed_the_budget(
    sources: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark may evaluate, combine and move filters: the budget counts a row if, and only if, the row would have come.

    Over rows that the plan contains, the optimizer runs a filter itself, with the very counter that it was given.
    """
    made = spark.range(0, 400, 1, 1).selectExpr("CAST(id AS STRING) AS value", "IF(id % 3 = 0, NULL, id % 20) AS n")
    made.write.parquet(str(tmp_path / "rows"))
    spark.conf.set("spark.sql.sources.useV1SourceList", sources)
    spark.read.parquet(str(tmp_path / "rows")).createOrReplaceTempView("files")
    spark.sql("SELECT * FROM VALUES ('aaaa'), ('bbbb'), ('cccc') AS t (value)").createOrReplaceTempView("given")
    budget, seen = Budget(), set()
    try:
        for plan in PLANS:
            frame = spark.sql(plan)
            rows = as_arrow(frame).num_rows
            for most_bytes in (10, 30, 100, 1_000, 30, 100_000):
                dataset = budget.bounded(frame, most_bytes)
                assert dataset is not None
                came = as_arrow(type(frame)(dataset, spark))
                assert came.num_rows == rows or spent_bytes(came.to_batches()) > most_bytes, plan
                seen.add(came.num_rows == rows)
    finally:
        spark.conf.unset("spark.sql.sources.useV1SourceList")
    assert seen == {True, False}


def test_held_back_rows_are_noticed_even_if_the_arrived_rows_are_within_the_limit(spark: SparkSession) -> None:
    """Arrow stores a boolean as a bit. So the rows that a task has passed may be within the limit once they arrive."""
    frame = spark.range(0, 1_000, 1, 1).selectExpr(*(f"id % {number} = 0 AS b{number}" for number in range(2, 10)))
    columns = tuple(TakenColumn(name, st.BooleanType(), Form.AS_IS) for name in frame.columns)
    rows = Rows("", frame, (), frame, columns, {}, is_hashed=False)
    assert as_arrow(frame).nbytes < 4_000 < spent_bytes(as_arrow(frame).to_batches())
    assert collect(rows, max_bytes=4_000, budget=Budget(), cancel=lambda: None) is None


def test_a_row_much_wider_than_the_rows_before_it_may_arrive_last(spark: SparkSession) -> None:
    """The widths are added up: a bound that assumed all rows to be as wide as the last one would refuse this."""
    frame = spark.range(0, 5_000, 1, 2).selectExpr("IF(id % 2500 = 2499, repeat('x', 100000), 'x') AS value")
    found = collect(arranged(frame), max_bytes=400_000, budget=Budget(), cancel=lambda: None)
    assert found is not None
    assert sum(batch.num_rows for batch in found) == 5_000


def test_rows_of_a_type_that_cannot_be_counted_are_left_to_the_tasks(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("INTERVAL '1' YEAR AS value", "array(INTERVAL '1' YEAR) AS other")
    assert Budget().bounded(frame, 1_000) is None


def test_an_unsuitable_version_of_spark_is_logged_once_and_the_tasks_write_large_batches(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(budgets, "_COUNTER", "java.util.concurrent.atomic.NotThere")
    budget = Budget()
    for value in ("a", "b"):
        frame = spark.createDataFrame([(value,)], "value STRING")
        assert budget.bounded(frame, 1_000) is None
    assert caplog.text.count("the tasks write every batch that may be large") == 1
