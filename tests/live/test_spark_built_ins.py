"""A temporary function with the name of a built-in function does not change the rows that the toolkit's SQL computes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import pyspark
import pytest

from tests.live.file_query import Query, kafka_sink, values
from tests.live.spark_support import spark
from twopc.integration.spark.budget import Budget
from twopc.integration.spark.built_ins import BuiltIns, functions_in
from twopc.integration.spark.frame import arrange
from twopc.integration.spark.plan_partitions import PARTITION_SQL
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

BUILT_IN_FIRST: Final = not pyspark.__version__.startswith(("3.", "4.0", "4.1"))
#: Their checksums, texts and sizes need every function that the toolkit uses.
COLUMNS: Final = (
    "'a' AS value",
    "MAP('k', ARRAY(1.5d)) AS map",
    "ARRAY(NAMED_STRUCT('a', 1, 'b', ARRAY('x'))) AS structs",
    "CURRENT_TIMESTAMP() AS timestamp",
    "ARRAY(TIMESTAMP_SECONDS(0)) AS times",
    "ARRAY(MAP(TIMESTAMP_SECONDS(0), INTERVAL 1 MONTH)) AS letters_only",
)


def called(text: str) -> set[str]:
    """The functions that an unresolved plan calls."""
    return {name.lower() for name in re.findall(r"'(\w+)\(", text)} - {"project", "filter"}


def test_the_check_covers_every_function_that_the_expressions_call(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr(*COLUMNS)
    letters, events = (KafkaSink(name=name, bootstrap_servers="nowhere:1", topic="t") for name in ("letters", "events"))
    rows = arrange("", frame, (events, letters), select={}, dead_letter=letters.name)
    used = called(rows.frame(PARTITION_SQL)._jdf.queryExecution().logical().toString())
    assert {"xxhash64", "spark_partition_id", "unix_millis", "to_json", "map", "transform"} <= used, used
    assert used <= rows.functions
    assert {"coalesce", "octet_length"} <= rows.functions
    BuiltIns().require(spark, rows.functions)


def test_the_check_covers_every_function_that_measures_a_row(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.range(1).selectExpr(*COLUMNS[:4])
    rows = arrange(
        "", frame, (KafkaSink(name="events", bootstrap_servers="nowhere:1", topic="t"),), select={}, dead_letter=None
    )
    measured: list[str] = []
    bytes_of_row = "twopc.integration.spark.budget._Filter.__init__"
    monkeypatch.setattr(bytes_of_row, lambda _self, _frame, sql, _most: measured.append(sql))
    monkeypatch.setattr("twopc.integration.spark.budget._Filter.over", lambda _self, frame: frame)
    for one in (frame, rows.frame()):
        Budget().bounded(one, 1)
    assert len(measured) == 2
    assert {"aggregate", "map_entries"} <= functions_in(" ".join(measured)) <= rows.functions


@pytest.mark.skipif(BUILT_IN_FIRST, reason="Spark finds its own function first from 4.2 on")
@pytest.mark.parametrize("name", ["xxhash64", "spark_partition_id", "OCTET_LENGTH"])
def test_a_function_that_replaces_one_of_sparks_own_is_refused(
    name: str, spark: SparkSession, kafka: KafkaService, tmp_path: Path
) -> None:
    """Seen: all rows had the same checksum, so a repair could not tell them apart."""
    session, sink = spark.newSession(), kafka_sink(kafka.bootstrap_servers)
    query = Query(session, tmp_path, (sink,))
    query.feed({"id": "a", "n": 1})
    query.run()
    session.udf.register("my_function", lambda *_: 0, "bigint")
    query.feed({"id": "b", "n": 2})
    query.run()
    session.udf.register(name, lambda *_: 0, "bigint")
    query.feed({"id": "c", "n": 3})
    message = query.refused()
    assert f"a temporary function replaces Spark's own function {name.lower()} in this session" in message
    assert "Nothing was written" in message
    assert values(sink) == Counter(["1", "2"])
    Query(spark.newSession(), tmp_path, (sink,)).run()
    assert values(sink) == Counter(["1", "2", "3"])


@pytest.mark.parametrize("name", ["transform", "replace"])
def test_a_function_whose_name_the_toolkit_does_not_need_is_allowed(
    name: str, spark: SparkSession, kafka: KafkaService, tmp_path: Path
) -> None:
    session, sink = spark.newSession(), kafka_sink(kafka.bootstrap_servers)
    session.udf.register(name, lambda text: f"my {text}", "string")
    query = Query(session, tmp_path, (sink,))
    query.feed({"id": "a", "n": 1})
    query.run("id AS key", "CAST(n AS STRING) AS value" if BUILT_IN_FIRST else f"{name}(n) AS value")
    assert values(sink) == Counter(["1" if BUILT_IN_FIRST else "my 1"])
