"""Sinks of one query never see each other's columns. Each selects from the user's DataFrame, in any order of the sinks."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyspark
import pytest

from tests.live.file_query import Query, kafka_sink, values
from tests.live.spark_support import as_arrow, spark
from tests.reader import records
from tests.unit.fake_sink import FakeSink, World
from twopc.errors import SchemaError
from twopc.integration.spark.frame import Rows, arrange
from twopc.integration.spark.views import CHECKSUM
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.mappings import Put
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import Set

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.sink import TwoPhaseCommitSink

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

LETTERS: Final = KafkaSink(name="letters", bootstrap_servers="nowhere:1", topic="bad")
#: Each of these gives a different result if it sees another sink's columns, or if it is evaluated a second time.
EXPRESSIONS: Final = (
    "struct(*) AS whole",
    "to_json(struct(*)) AS value",
    "to_json(named_struct('all', struct(*), 'id', id)) AS deep",
    "hash(*) AS hash",
    "xxhash64(*) AS KEY",
    "md5(to_json(struct(*))) AS key",
    "size(array(struct(*))) AS size",
    "to_csv(struct(id, v)) AS csv",
    "map('all', struct(*)) AS map",
    "id AS number",
    "`a.b` AS dotted",
    "`c``d` AS `e``f`",
    "__twopc_selected AS mine",
    "`0` + `1` AS sum",
    "transform(list, x -> x + id) AS moved",
    "(SELECT max(id) FROM range(3)) AS most",
)
#: A window function changes the order of all sinks' rows, on which the other expressions depend.
OVER_ROWS: Final = (
    ("count(*) OVER () AS count", "row_number() OVER (PARTITION BY v ORDER BY id) AS place"),
    ("rand(5) AS chance", "monotonically_increasing_id() AS at"),
)
#: These have the names of the DataFrame's own columns, but different values.
SHADOWING: Final = ("upper(v) AS v", "-id AS id", "id AS `a.b`", "v AS __twopc_selected")
STARS: Final = ("*", "s.*", *([] if pyspark.__version__.startswith("3.") else ["* EXCEPT (v)"]))
#: Spark can make none of these from a DataFrame that has only the user's columns.
IMPOSSIBLE: Final = (
    "explode(list) AS value",
    "count(*) AS value",
    "sum(id) AS value",
    "id +",
    "missing AS value",
    "__twopc_selected_0 AS value",
    "__twopc_selected.`0` AS value",
    "value AS key",
    "__twopc_checksum AS value",
)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """Two partitions; some names are those of the toolkit's own columns, and two differ only in the case of their letters."""
    rows = [(1, "a"), (2, None), (3, "b"), (4, "a")]
    return (
        spark.createDataFrame(rows, "id INT, v STRING")
        .repartition(2, "id")
        .selectExpr(
            *("id", "v", "v AS `a.b`", "id AS `c``d`", "id * 2 AS __twopc_selected", "id AS `0`", "id + 7 AS `1`"),
            *("array(id, 5) AS list", "named_struct('x', id, 'kEy', v) AS s", "id AS Odd", "-id AS ODD"),
        )
    )


def sink(name: str) -> FakeSink:
    """The sink takes all columns that it is offered."""
    return FakeSink(World(), name=name)


def taken(rows: Rows) -> dict[str, list[dict[str, str]]]:
    """The rows that each sink receives, in any order, as text, because two fields of a struct may have the same name."""
    [batch] = as_arrow(rows.frame()).combine_chunks().to_batches()
    return {
        name: sorted(
            ({column: str(batch.column(index)[row]) for column, index in view.columns} for row in range(len(batch))),
            key=repr,
        )
        for name, view in rows.views.items()
    }


def arranged(frame: DataFrame, select: Mapping[str, Sequence[str]], *sinks: TwoPhaseCommitSink[Any]) -> Rows:
    return arrange("", frame, sinks, select=select, dead_letter=LETTERS.name)


def a_select(chance: random.Random, over_rows: Sequence[str]) -> tuple[str, ...]:
    known = (*EXPRESSIONS, *over_rows)
    star = chance.choice([*STARS, *([""] * 5)])
    return (star, *chance.sample(known, 2)) if star else tuple(chance.sample((*known, *SHADOWING), 4))


@pytest.mark.parametrize("rounds", [1, pytest.param(40, marks=pytest.mark.whole)])
def test_each_of_several_sinks_of_a_query_receives_the_same_rows_as_it_would_alone(
    rounds: int, frame: DataFrame
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - the seed repeats the test
    chance = random.Random(seed)
    plain = taken(arranged(frame, {}, sink("one")))["one"]
    for _ in range(rounds):
        over_rows = chance.choice(OVER_ROWS)
        selects = {str(number): a_select(chance, over_rows) for number in range(chance.randint(2, 3))}
        alone = {name: taken(arranged(frame, {name: select}, sink(name)))[name] for name, select in selects.items()}
        sinks: list[TwoPhaseCommitSink[Any]] = [*map(sink, selects), sink("plain"), LETTERS]
        found = taken(
            arranged(frame, dict(chance.sample(list(selects.items()), len(selects))), *chance.sample(sinks, len(sinks)))
        )
        assert found == {**alone, "plain": plain, LETTERS.name: plain}


@pytest.mark.parametrize("expression", IMPOSSIBLE)
def test_an_impossible_select_causes_an_error_that_identifies_the_sink(expression: str, frame: DataFrame) -> None:
    select = {"first": ["id AS value"], "second": [expression], "third": ["id AS missing"]}
    with pytest.raises(SchemaError, match=r"sink second: select=.*does not match.*Nothing was written") as raised:
        arranged(frame, select, *map(sink, select))
    assert repr(expression) in str(raised.value) and "\n" not in str(raised.value)


def test_a_random_value_is_made_once_for_the_sinks_and_their_checksum(frame: DataFrame, spark: SparkSession) -> None:
    select = {"one": ["uuid() AS value"], "two": ["rand() AS value"]}
    rows = as_arrow(arranged(frame, select, *map(sink, select)).frame())
    again = spark.createDataFrame(rows.to_pylist()).selectExpr("xxhash64(`0` IS NULL, `0`, `1` IS NULL, `1`) AS sum")
    assert rows.num_rows == 4
    assert [row.sum for row in again.collect()] == rows.column(CHECKSUM).to_pylist()


# -- two columns whose names are the same, or differ only in case ------------------------------------------------------


@pytest.mark.parametrize("is_case_sensitive", ["false", "true"])
def test_each_sink_takes_the_column_it_specifies_if_two_column_names_differ_only_in_case(
    is_case_sensitive: str, spark: SparkSession
) -> None:
    columns = ["v AS value", "v AS Value", "'exact' AS key", "'other' AS KEY", "'x' AS Topic", "1 AS `KeY`"]
    setting, select = "spark.sql.caseSensitive", {"one": ["'a' AS key", "'b' AS KEY", "key2 AS value"]}
    sinks = (
        KafkaSink(name="kafka", bootstrap_servers="nowhere:1"),
        RedisSink(name="redis", url="redis://nowhere", mapping=Set("{KEY}:{key}", "KeY")),
        HBaseSink(name="hbase", zookeeper="nowhere:1", table="t", mapping=Put("{KEY}", {"d:v": "key"})),
        LETTERS,
        sink("one"),
    )
    spark.conf.set(setting, is_case_sensitive)
    try:
        frame = spark.createDataFrame([("v", "w")], "v STRING, key2 STRING").selectExpr(*columns, "key2")
        found = {name: rows for name, [rows] in taken(arranged(frame, select, *sinks)).items()}
    finally:
        spark.conf.unset(setting)
    assert found["kafka"] == {"key": "b'exact'", "value": "b'v'", "topic": "x"}
    assert found["redis"] == {"KEY": "other", "key": "exact", "KeY": "1"}
    assert found["hbase"] == {"key": "exact", "KEY": "other"}
    assert found["letters"] == dict(zip(frame.columns, ["v", "v", "exact", "other", "x", "1", "w"], strict=True))
    assert found["one"] == {"key": "a", "KEY": "b", "value": "w"}


@pytest.mark.parametrize(
    "taker",
    [
        KafkaSink(name="taker", bootstrap_servers="nowhere:1", topic="t"),
        RedisSink(name="taker", url="redis://nowhere", mapping=Set("{value}", "value")),
        HBaseSink(name="taker", zookeeper="nowhere:1", table="t", mapping=Put("{value}", {"d:v": "value"})),
        sink("taker"),
        KafkaSink(name=LETTERS.name, bootstrap_servers="nowhere:1", topic="t"),
    ],
    ids=["kafka", "redis", "hbase", "all columns", "dead letters"],
)
def test_two_columns_with_the_same_name_cause_an_error_that_says_what_to_do(
    taker: TwoPhaseCommitSink[Any], spark: SparkSession
) -> None:
    frame = spark.range(1).selectExpr("'a' AS value", "'b' AS value")
    with pytest.raises(
        SchemaError, match=rf"sink {taker.name}.* has 2 columns named 'value'.*Nothing was written. Drop or"
    ):
        arranged(frame, {}, taker)
    frame = spark.range(1).selectExpr("'a' AS value", "'b' AS other", "'c' AS other")
    if taker.name == "taker" and not isinstance(taker, FakeSink):
        assert arranged(frame, {}, taker).views  # no sink takes these columns


# -- a query ---------------------------------------------------------------------------------------------------------------


def test_a_query_writes_what_sparks_own_sink_writes_even_if_its_other_sinks_select_other_columns(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    one, other, plain, letters, sparks = (kafka_sink(kafka.bootstrap_servers) for _ in range(5))
    json_of_all = ["xxhash64(*) AS partition_by", "CAST(xxhash64(*) AS STRING) AS key", "to_json(struct(*)) AS value"]
    settings = {
        "select": {other.name: json_of_all, one.name: json_of_all},
        "dead_letter": letters,
    }
    expected: list[str] = []

    def function(each: Any) -> Any:
        def write(batch: DataFrame, batch_id: int) -> None:
            options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": str(sparks.topic)}
            good = batch.where("n <> 2")
            good.write.format("kafka").options(**options).save()
            expected.extend(row.value for row in good.selectExpr(*json_of_all).collect())
            each(batch, batch_id)

        return write

    def plan(frame: DataFrame) -> DataFrame:
        partition = "CAST(IF(n = 2, -1, NULL) AS INT) AS partition"
        return frame.selectExpr("id AS key", "'other' AS KEY", "value", "n", partition, "n AS __twopc_selected")

    query = Query(spark, tmp_path, (one, plain, other), settings, function=function, plan=plan)
    query.feed({"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "c", "n": 3})
    query.run()
    assert values(one) == values(other) == Counter(expected)
    of_plain, of_spark = (
        Counter((record.key(), record.value()) for record in records(kafka.bootstrap_servers, str(each.topic)))
        for each in (plain, sparks)
    )
    assert of_plain == of_spark == Counter({(b"a", b"1"): 1, (b"c", b"3"): 1})
    [letter] = records(kafka.bootstrap_servers, str(letters.topic))
    row = {"key": "b", "KEY": "other", "value": "2", "n": 2, "partition": -1, "__twopc_selected": 2}
    assert json.loads(letter.value() or b"") == row
