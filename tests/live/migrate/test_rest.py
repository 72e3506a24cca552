"""The rest of a batch, compared with records on a real broker: multisets, topics, headers, nulls, and the order of the rows."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.live.pipeline import create_topic
from twopc.errors import ConfigurationError, SchemaError
from twopc.integration.migrate.handover import Bounds, Handover, Kind
from twopc.integration.migrate.rest import Comparison, Numbers
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Row, SparkSession

    from tests.live.services import KafkaService

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

_HEADERS = "array<struct<key:string,value:binary>>"


class Output:
    """A topic of one partition, and the records that were written to it."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.topic = create_topic(servers, f"t{uuid.uuid4().hex[:10]}", 1)
        self.count = 0

    def write(self, *records: dict[str, Any]) -> int:
        """Return the offset after them."""
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "log_level": 0})
        for record in records:
            producer.produce(self.topic, **record)
        assert producer.flush(60) == 0
        self.count += len(records)
        return self.count

    def bounds(self, exact: int = 0) -> dict[str, dict[int, Bounds]]:
        return {self.topic: {0: Bounds(start=0, exact=exact, end=self.count)}}


@pytest.fixture
def output(kafka: KafkaService) -> Output:
    return Output(kafka.bootstrap_servers)


def compared(
    spark: SparkSession,
    rows: list[tuple[Any, ...]],
    schema: str,
    sink: KafkaSink,
    topics: dict[str, dict[int, Bounds]],
    *,
    key: str | None = None,
    select: Sequence[str] | None = None,
    tasks: int = 3,
) -> tuple[Numbers, list[Row]]:
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=topics, key=key)
    frame = spark.createDataFrame(spark.sparkContext.parallelize(rows, tasks), schema)
    comparison = Comparison(frame, sink, handover, None if select is None else {sink.name: select})
    try:
        return comparison.numbers(), comparison.rest().collect()
    finally:
        comparison.release()


def sink_for(output: Output, *, topic: bool = True) -> KafkaSink:
    return KafkaSink(name="rest", bootstrap_servers=output.servers, topic=output.topic if topic else None)


def test_the_rest_is_exact_for_random_multisets_of_rows(
    output: Output, spark: SparkSession, add_summary: Callable[[str], None]
) -> None:
    """Few different rows, some of them written, some too often; a null is not an empty string."""
    seed = random.SystemRandom().randrange(1 << 32)
    add_summary(f"seed {seed}")
    chance = random.Random(seed)
    keys: list[bytes | None] = [None, b"", b"a", b"ab"]
    rows = [(chance.choice(keys), chance.choice([None, b"", b"b", b"bb"])) for _ in range(60)]
    there = chance.sample(rows, 30) + chance.choices(rows, k=10)
    output.write(*({"key": key, "value": value} for key, value in there))
    numbers, rest = compared(spark, rows, "key binary, value binary", sink_for(output), output.bounds())
    wanted = Counter(rows) - Counter(there)
    assert Counter(tuple(None if one is None else bytes(one) for one in (row.key, row.value)) for row in rest) == wanted
    surplus = (Counter(there) - Counter(rows)).total()
    assert (numbers.rows, numbers.rest, numbers.surplus, numbers.others) == (60, wanted.total(), surplus, 0)
    assert numbers.already == 60 - wanted.total()


@pytest.mark.whole
def test_rows_whose_records_the_broker_has_deleted_are_written_again(output: Output, spark: SparkSession) -> None:
    """Retention may delete records between the cut-over and the start. Fails if the start fails, however often it is repeated."""
    output.write({"value": "a"}, {"value": "b"})
    admin = AdminClient({"bootstrap.servers": output.servers})
    for deleted in admin.delete_records([TopicPartition(output.topic, 0, 1)]).values():
        deleted.result()
    numbers, rest = compared(spark, [("a",), ("b",), ("c",)], "value string", sink_for(output), output.bounds())
    assert (numbers.already, sorted(row.value for row in rest)) == (1, ["a", "c"])


@pytest.mark.whole
def test_the_rows_of_a_task_stay_together_and_in_order(output: Output, spark: SparkSession) -> None:
    rows = [(f"k{number % 5}", f"{number:04d}") for number in range(200)]
    output.write(*({"key": key, "value": value} for key, value in rows if int(value) % 3 == 0))
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=output.bounds())
    frame = spark.createDataFrame(spark.sparkContext.parallelize(rows, 4), "key string, value string")
    comparison = Comparison(frame, sink_for(output), handover)
    tasks = comparison.rest().rdd.glom().collect()
    comparison.release()
    found = [[int(row.value) for row in task] for task in tasks]
    for first in range(0, 200, 50):  # each step covers the rows of one task
        wanted = [number for number in range(first, first + 50) if number % 3]
        [holder] = [task for task in found if wanted[0] in task]
        place = holder.index(wanted[0])
        assert holder[place : place + len(wanted)] == wanted


@pytest.mark.whole
@pytest.mark.parametrize("key", [None, pytest.param("value", marks=pytest.mark.whole)])
def test_a_record_from_just_before_the_batch_does_not_prove_that_a_row_was_written(
    key: str | None, output: Output, spark: SparkSession
) -> None:
    """An earlier batch may also contain a row with the same key. The offsets that the error suggests make the rows clear."""
    exact = output.write({"value": "x"}, {"value": "a"}, {"value": "b"})
    output.write({"value": "b"})
    rows, schema, sink = [("a",), ("b",), ("c",)], "value string", sink_for(output)
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=output.bounds(exact), key=key)
    comparison = Comparison(spark.createDataFrame(rows, schema), sink, handover)
    numbers, starts = comparison.numbers(), comparison.first_offsets()
    comparison.release()
    assert (numbers.unclear, numbers.already, numbers.others) == (1, 1, 0), (
        "a later record should prove that b was already written"
    )
    assert starts == {output.topic: {0: 1}}
    bounds = {output.topic: {0: Bounds(start=1, exact=1, end=4)}}
    numbers, rest = compared(spark, rows, schema, sink, bounds, key=key)
    assert (numbers.unclear, numbers.surplus, numbers.others, [row.value for row in rest]) == (0, 1, 0, ["c"])


@pytest.mark.whole
def test_a_key_that_occurs_once_in_each_batch_does_not_hide_missing_rows(output: Output, spark: SparkSession) -> None:
    """As with an aggregate in update mode: batch 41 wrote every user, and batch 42 was killed after half of them."""
    users = ["u1", "u2", "u3", "u4"]
    exact = output.write(*({"key": user, "value": "41"} for user in users))
    output.write(*({"key": user, "value": "42"} for user in users[:2]))
    rows, schema = [(user, "42") for user in users], "key string, value string"
    numbers, _ = compared(spark, rows, schema, sink_for(output), output.bounds(exact), key="key")
    assert numbers.unclear == 2
    numbers, rest = compared(
        spark, rows, schema, sink_for(output), {output.topic: {0: Bounds(start=exact, exact=exact, end=6)}}, key="key"
    )
    assert (numbers.unclear, sorted(row.key for row in rest)) == (0, ["u3", "u4"])


@pytest.mark.whole
def test_headers_are_compared_as_part_of_the_content(output: Output, spark: SparkSession) -> None:
    output.write({"value": "a", "headers": [("h", b"1")]}, {"value": "b", "headers": [("h", None)]})
    rows = [("a", [("h", b"2")]), ("a", [("h", b"1")]), ("b", None), ("b", [("h", None)])]
    numbers, rest = compared(spark, rows, f"value string, headers {_HEADERS}", sink_for(output), output.bounds())
    assert (numbers.already, numbers.rest, numbers.others) == (2, 2, 0)
    found = sorted((row.value, [bytes(header.value) for header in row.headers or ()]) for row in rest)
    assert found == [("a", [b"2"]), ("b", [])]


@pytest.mark.whole
def test_the_same_row_in_two_topics_counts_as_two_rows(output: Output, spark: SparkSession) -> None:
    other = Output(output.servers)
    output.write({"value": "a"})
    rows = [("a", other.topic), ("a", output.topic)]
    schema, sink = "value string, topic string", sink_for(output, topic=False)
    numbers, rest = compared(spark, rows, schema, sink, {**output.bounds(), **other.bounds()})
    assert (numbers.already, [row.topic for row in rest]) == (1, [other.topic])
    numbers, _ = compared(spark, rows, schema, sink, output.bounds())
    assert (numbers.elsewhere, numbers.unidentified) == (1, 0)


@pytest.mark.whole
@pytest.mark.parametrize("key", [None, pytest.param("key", marks=pytest.mark.whole)])
def test_the_records_that_select_produces_are_compared_and_the_batchs_own_columns_are_passed_on(
    key: str | None, output: Output, spark: SparkSession
) -> None:
    """The batch's own column ``value`` is not part of the record."""
    output.write({"key": "1", "value": "A"}, {"key": "3", "value": "C"})
    rows, select = [(1, "a", 5), (2, "b", 6), (3, "c", 7)], ["CAST(number AS STRING) AS KEY", "upper(text) AS value"]
    schema = "number int, text string, value int"
    numbers, rest = compared(spark, rows, schema, sink_for(output), output.bounds(), key=key, select=select)
    assert (numbers.rows, numbers.already, numbers.others) == (3, 2, 0)
    assert [tuple(row) for row in rest] == [(2, "b", 6)]
    assert rest[0].__fields__ == ["number", "text", "value"]


def test_rows_that_no_sink_can_write_are_part_of_the_rest(output: Output, spark: SparkSession) -> None:
    """The new sink says what is wrong with them, or makes dead letters of them."""
    output.write({"value": "a"})
    rows = [
        ("a", output.topic, None),
        ("a", None, None),
        ("b", output.topic, [(None, b"1")]),
        ("c", output.topic, [None]),
    ]
    schema = f"value string, topic string, headers {_HEADERS}"
    numbers, rest = compared(spark, rows, schema, sink_for(output, topic=False), output.bounds())
    assert (numbers.already, numbers.rest, numbers.elsewhere, numbers.others) == (1, 3, 0, 0)
    assert sorted(row.value for row in rest) == ["a", "b", "c"]


@pytest.mark.whole
def test_columns_that_only_the_query_uses_may_have_any_name_and_type(output: Output, spark: SparkSession) -> None:
    """Python cannot read these intervals. The sink does not take them, so a new query accepts them."""
    output.write({"value": "1"})
    frame = spark.range(3).selectExpr(
        "id AS `a.b`",
        "CAST(id AS STRING) AS value",
        "INTERVAL '7' MONTH AS months",
        "make_interval(0, 0, 0, 0, 0, 0, id) AS seconds",
        "1 AS twice",
        "2 AS twice",
    )
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=output.bounds())
    comparison = Comparison(frame, sink_for(output), handover)
    numbers, rest = comparison.numbers(), comparison.rest()
    found = rest.selectExpr("`a.b`", "value", "months = INTERVAL '7' MONTH", "CAST(seconds AS STRING)").collect()
    comparison.release()
    assert (numbers.already, numbers.rest, numbers.others) == (1, 2, 0)
    assert rest.schema == frame.schema
    assert sorted(tuple(row) for row in found) == [(0, "0", True, "0 seconds"), (2, "2", True, "2 seconds")]


@pytest.mark.whole
def test_text_that_is_not_utf_8_is_compared_as_sparks_own_sink_wrote_it(output: Output, spark: SparkSession) -> None:
    """The old sink writes the value's bytes unchanged.

    However, it writes the header's key as a Java string, in which U+FFFD replaces such bytes.
    """
    output.write({"value": b"a\xff", "headers": [("a\ufffd", b"a\xff")]})
    rows, text = [(b"a\xff",), (b"b\xff",)], "CAST(raw AS STRING)"
    select = [f"{text} AS value", f"array(named_struct('key', {text}, 'value', raw)) AS headers"]
    numbers, rest = compared(spark, rows, "raw binary", sink_for(output), output.bounds(), select=select)
    assert (numbers.already, numbers.others, [bytes(row.raw) for row in rest]) == (1, 0, [b"b\xff"])


@pytest.mark.whole
def test_rows_whose_key_is_missing_or_not_unique_are_counted(output: Output, spark: SparkSession) -> None:
    output.write({"value": '{"id": 1, "at": 5}'})
    rows = [('{"id": 1, "at": 6}',), ('{"id": 2, "at": 6}',), ('{"id": 2, "at": 7}',), ("{}",)]
    numbers, _ = compared(spark, rows, "value string", sink_for(output), output.bounds(), key="json:$.id")
    assert (numbers.already, numbers.ambiguous, numbers.unidentified) == (1, 1, 1)


def test_a_batch_without_value_or_topic_and_a_sink_with_another_topic_are_refused(
    output: Output, spark: SparkSession
) -> None:
    with pytest.raises(SchemaError, match="no column 'value'"):
        compared(spark, [("a",)], "payload string", sink_for(output), output.bounds())
    with pytest.raises(SchemaError, match="no column 'topic'"):
        compared(spark, [("a",)], "value string", sink_for(output, topic=False), output.bounds())
    with pytest.raises(ConfigurationError, match="with --topic"):
        compared(spark, [("a",)], "value string", sink_for(output), {"another": {}})
