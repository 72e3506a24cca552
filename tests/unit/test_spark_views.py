"""Which rows and columns of a batch each sink receives, and what happens to rows that a sink cannot store."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twopc.attempt import Attempt
from twopc.engine import Repair
from twopc.errors import BadRecordError
from twopc.integration.spark.kept import Runs
from twopc.integration.spark.staging import StagedFileWriter, Staging
from twopc.integration.spark.task import PrepareTask
from twopc.integration.spark.views import CAUSE, CHECKSUM, View, bad_rows, screen
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.columns import require_writable
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy

if TYPE_CHECKING:
    from pathlib import Path

KAFKA = KafkaSink(name="events", bootstrap_servers="nowhere:1", topic="t", options={"kafka.message.max.bytes": "1000"})
REDIS = RedisSink(name="totals", url="redis://nowhere", mapping=IncrBy(key="{id}", by="count"))
VIEWS = {
    "events": View(columns=(("value", 0),)),
    "totals": View(columns=(("id", 1), ("count", 2))),
    "letters": View(columns=(("payload", 0), ("id", 1), ("count", 2)), of_bad_rows=True),
}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LETTERS = KafkaSink(name="letters", bootstrap_servers="nowhere:1", topic="bad")


def batch(*rows: tuple[bytes | None, str | None, int]) -> pa.RecordBatch:
    payloads, ids, counts = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(payloads, pa.binary()), pa.array(ids, pa.string()), pa.array(counts, pa.int64())],
        names=["0", "1", "2"],
    )


def test_each_sink_receives_its_columns_under_its_own_names_for_them() -> None:
    rows = batch((b"a", "x", 1), (b"b", "y", 2))
    assert VIEWS["events"].of(rows).to_pylist() == [{"value": b"a"}, {"value": b"b"}]
    assert VIEWS["totals"].of(rows).to_pylist() == [{"id": "x", "count": 1}, {"id": "y", "count": 2}]


def test_every_field_is_nullable_whatever_spark_knows_about_the_column() -> None:
    """A sink that writes files with a schema of its own must not depend on the path on which the rows arrive."""
    given: list[pa.Field[Any]] = [
        pa.field("0", pa.string()),
        pa.field("1", pa.int64(), nullable=False, metadata={"k": "v"}),
    ]
    rows = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([1])], schema=pa.schema(given))
    found = View(columns=(("word", 0), ("count", 1))).of(rows).schema
    names: list[pa.Field[Any]] = [pa.field("word", pa.string()), pa.field("count", pa.int64())]
    assert found.equals(pa.schema(names), check_metadata=True)


def test_a_sink_that_takes_no_column_still_receives_every_row() -> None:
    """``IncrBy("orders:count")`` counts rows. Without them, the batch would be complete and the counter would stand still."""
    rows = batch((b"a", "x", 1), (b"b", "y", 2), (b"c", None, 3))
    view = View(columns=())
    assert view.of(rows).num_rows == 3
    assert view.of(rows.select([])).num_rows == 3  # if no other sink takes a column either
    screened = screen(rows, [KAFKA, REDIS, LETTERS], {**VIEWS, "count": view})
    assert view.of(screened).num_rows == 2


def test_two_columns_of_a_sink_may_come_from_the_same_column_of_the_batch() -> None:
    view = View(columns=(("one", 2), ("other", 2)))
    assert view.of(batch((b"a", "x", 1))).to_pylist() == [{"one": 1, "other": 1}]


def test_a_row_that_one_sink_cannot_store_goes_to_no_sink_and_becomes_a_dead_letter() -> None:
    rows = batch((b"a", "x", 1), (b"\xff", None, 2), (b"c" * 1001, "z", 3), (b"d", "w", 4))
    screened = screen(rows, [KAFKA, REDIS, LETTERS], VIEWS)
    assert [row["value"] for row in VIEWS["events"].of(screened).to_pylist()] == [b"a", b"d"]
    assert [row["count"] for row in VIEWS["totals"].of(screened).to_pylist()] == [1, 4]
    null, large = VIEWS["letters"].of(screened).to_pylist()
    assert json.loads(null["value"]) == {
        "payload": {"base64": base64.b64encode(b"\xff").decode()},
        "id": None,
        "count": 2,
    }
    assert b"sink 'totals': column 'id' is null" in null["headers"][0]["value"]
    assert json.loads(large["value"])["count"] == 3
    assert (
        b"sink 'events': the record's key, value and headers exceed kafka.message.max.bytes=1000"
        in large["headers"][0]["value"]
    )


def test_the_dead_letter_of_a_row_that_several_sinks_cannot_store_gives_the_first_sinks_reason() -> None:
    screened = screen(batch((b"c" * 1001, None, 3)), [KAFKA, REDIS, LETTERS], VIEWS)
    (letter,) = VIEWS["letters"].of(screened).to_pylist()
    assert letter["headers"][0]["value"].startswith(b"sink 'events': ")


def test_nested_bytes_are_readable_in_a_dead_letter() -> None:
    deep = pa.array(
        [{"text": b"a", "list": [b"b", b"\xff"], "map": [("k", b"c")]}],
        pa.struct([("text", pa.binary()), ("list", pa.list_(pa.binary())), ("map", pa.map_(pa.string(), pa.binary()))]),
    )
    rows = pa.record_batch({"deep": deep, CAUSE: pa.array(["it is bad"])})
    (letter,) = View(columns=(("deep", 0),), of_bad_rows=True).of(rows).to_pylist()
    assert json.loads(letter["value"])["deep"] == {
        "text": "a",
        "list": ["b", {"base64": base64.b64encode(b"\xff").decode()}],
        "map": [["k", "c"]],
    }


def test_good_rows_do_not_become_dead_letters() -> None:
    screened = screen(batch((b"a", "x", 1)), [KAFKA, REDIS, LETTERS], VIEWS)
    assert VIEWS["letters"].of(screened).num_rows == 0
    assert screened.column(CAUSE).null_count == 1


def test_a_dead_letter_shows_text_that_is_not_utf8_as_base64() -> None:
    """Spark's strings may hold any bytes, at any depth."""
    column = pa.array([b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, column.buffers())
    one: Any = pa.array([0, 1], pa.int32())
    lists: Any = pa.ListArray.from_arrays(one, pa.StructArray.from_arrays([text], ["t"]))
    deep = pa.MapArray.from_arrays(one, pa.array(["k"]), lists)
    rows = pa.record_batch({"value": text, "deep": deep, "other": pa.array(["ö"]), CAUSE: pa.array(["bad"])})
    view = View(columns=(("value", 0), ("deep", 1), ("other", 2)), of_bad_rows=True)
    (letter,) = view.of(rows).column("value").to_pylist()
    bad = {"base64": "/w=="}
    assert json.loads(letter or b"") == {"value": bad, "deep": [["k", [{"t": bad}]]], "other": "ö"}


@pytest.mark.parametrize(
    ("kind", "outside", "inside", "expected"),
    [
        (pa.timestamp("us", "UTC"), 1_700_000_000_000 * 1_000_000, 10**6, ["microseconds", "1970-01-01T00:00:01Z"]),
        (pa.timestamp("us"), -(2**62), 10**6, ["microseconds", "1970-01-01T00:00:01"]),
        (pa.date32(), 4_000_000, 1, ["days", "1970-01-02"]),
    ],
    ids=["timestamp", "timestamp_ntz", "date"],
)
def test_a_dead_letter_contains_dates_that_python_cannot_represent(
    kind: Any, outside: int, inside: int, expected: tuple[str, str]
) -> None:
    """Timestamps exceed the years 1 to 9999 if milliseconds are mistaken for seconds. That would stop the query permanently."""
    unit, text = expected
    one: Any = pa.array([0, 1], pa.int32())
    lists: Any = pa.ListArray.from_arrays(one, pa.StructArray.from_arrays([pa.array([outside], kind)], ["t"]))
    deep = pa.MapArray.from_arrays(one, pa.array(["k"]), lists)
    rows = pa.record_batch({"0": pa.array([outside], kind), "1": pa.array([inside], kind), "2": deep, CAUSE: ["bad"]})
    view = View(columns=(("far", 0), ("near", 1), ("deep", 2)), of_bad_rows=True)
    (letter,) = view.of(rows).column("value").to_pylist()
    far = {unit: outside}
    assert json.loads(letter or b"") == {"far": far, "near": text, "deep": [["k", [{"t": far}]]]}


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_a_dead_letter_distinguishes_nan_and_infinity_from_null(kind: Any) -> None:
    """JSON has no such numbers. The row may be bad because of them: Redis adds no NaN."""
    values = pa.array([1.5, float("nan"), float("inf"), float("-inf"), None], kind)
    offsets: Any = pa.array([0, 5], pa.int32())
    lists: Any = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([values], ["n"]))
    rows = pa.record_batch({"0": lists, "1": values.slice(1, 1), CAUSE: ["bad"]})
    (letter,) = View(columns=(("list", 0), ("n", 1)), of_bad_rows=True).of(rows).column("value").to_pylist()
    numbers = [1.5, {"float": "NaN"}, {"float": "Infinity"}, {"float": "-Infinity"}, None]
    assert json.loads(letter or b"") == {"list": [{"n": number} for number in numbers], "n": {"float": "NaN"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ä" * 600_000, {"text": "ä" * 10_000, "cut": True, "characters": 600_000}),
        (b"\xff" * 700_000, {"base64": base64.b64encode(b"\xff" * 10_000).decode(), "cut": True, "bytes": 700_000}),
    ],
    ids=["text", "bytes"],
)
def test_a_dead_letter_for_a_row_above_the_size_limit_is_small(value: Any, expected: Any) -> None:
    """A large letter would be refused like the row itself, and stop the query at every start."""
    rows = pa.record_batch({"value": pa.array([value]), "id": pa.array([7]), CAUSE: pa.array(["it is large"])})
    (letter,) = View(columns=(("value", 0), ("id", 1)), of_bad_rows=True).of(rows).column("value").to_pylist()
    assert json.loads(letter or b"") == {"value": expected, "id": 7}


def test_the_dead_letter_of_a_row_with_too_many_values_contains_the_first_ones() -> None:
    rows = pa.record_batch({"many": pa.array([[1234] * 300_000]), CAUSE: pa.array(["it is large"])})
    (letter,) = View(columns=(("many", 0),), of_bad_rows=True).of(rows).column("value").to_pylist()
    text = json.loads(letter or b"")["row"]
    assert (text["text"][:20], len(text["text"]), text["cut"]) == ('{"many":[1234,1234,1', 10_000, True)


#: The number of bytes that librdkafka and the broker may add to a value and its headers.
OVERHEAD = 107


@pytest.mark.parametrize("limit", [1_000, 5_000, 200_000])
@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"value": "ä" * 300_000, "id": 7}, "it is large"),
        ({"value": b"\xff" * 300_000, "id": 7}, "it is large"),
        ({"value": '"\x01\U0001f600' * 100_000, "id": 7}, "ä" * 300_000),
        ({"many": ["ab" * 500] * 1_000}, "it is large"),
        ({"many": [1234] * 300_000}, "ab" * 300_000),
    ],
    ids=["text", "bytes", "escapes", "texts", "numbers"],
)
def test_a_dead_letter_stays_within_its_own_sinks_limit(row: dict[str, Any], cause: str, limit: int) -> None:
    """A sink with a lower limit refused a letter that was only truncated at the default limit."""
    rows = pa.record_batch({**{name: pa.array([value]) for name, value in row.items()}, CAUSE: pa.array([cause])})
    view = View(columns=tuple((name, index) for index, name in enumerate(row)), of_bad_rows=True)
    letters = view.of(rows, lambda: limit - OVERHEAD)
    require_writable(letters, max_bytes=limit - 61)
    [letter] = letters.to_pylist()
    assert json.loads(letter["value"])
    assert letter["headers"][0]["value"].decode()[:11] == cause[:11]


def test_a_dead_letter_is_cut_no_shorter_than_necessary() -> None:
    rows = pa.record_batch({"value": pa.array(["a" * 3_000, "b" * 150]), CAUSE: pa.array(["bad", "bad"])})
    view = View(columns=(("value", 0),), of_bad_rows=True)

    def lengths(limit: int) -> list[int]:
        values = [json.loads(row["value"])["value"] for row in view.of(rows, lambda: limit).to_pylist()]
        return [len(value if isinstance(value, str) else value["text"]) for value in values]

    assert lengths(10_000) == [3_000, 150]
    assert lengths(2_000) == [1_000, 150]
    assert lengths(200) == [100, 150]


def test_a_sink_without_bad_rows_is_not_asked_for_its_limit() -> None:
    """A Kafka sink would ask the brokers for its topic's limit."""
    screened = screen(batch((b"a", "x", 1)), [KAFKA, REDIS, LETTERS], VIEWS)
    letters = VIEWS["letters"].of(screened, lambda: pytest.fail("it was asked"))
    assert letters.num_rows == 0


@given(st.lists(st.booleans(), max_size=60))
def test_all_bad_rows_are_found_and_no_others(is_bad: list[bool]) -> None:
    rows = pa.record_batch({"bad": pa.array(is_bad, pa.bool_())})

    def check(part: pa.RecordBatch) -> None:
        if any(part.column("bad").to_pylist()):
            raise BadRecordError("it is bad")

    assert bad_rows(rows, check) == {row: "it is bad" for row, bad in enumerate(is_bad) if bad}


def test_staged_rows_reach_each_sink_as_in_the_task(tmp_path: Path) -> None:
    writer = StagedFileWriter(str(tmp_path), 0, 0, VIEWS)
    writer.write(screen(batch((b"a", "x", 1), (b"b", None, 2)), [KAFKA, REDIS, LETTERS], VIEWS))
    name = writer.close()
    assert name is not None
    staging = Staging(str(tmp_path))
    assert [rows.to_pylist() for rows in staging.read(name, "totals")] == [[{"id": "x", "count": 1}]]
    assert [rows.num_rows for rows in staging.read(name, "letters")] == [1]
    [shortest] = staging.read(name, "letters", lambda: 0)
    assert "row" in json.loads(shortest.column("value")[0].as_py())


def test_staged_rows_reach_a_sink_that_takes_no_column(tmp_path: Path) -> None:
    views = {"count": View(columns=())}
    writer = StagedFileWriter(str(tmp_path), 0, 0, views)
    writer.write(batch((b"a", "x", 1), (b"b", "y", 2)).select([]))
    [rows] = Staging(str(tmp_path)).read(str(writer.close()), "count")
    assert rows.num_rows == 2


def test_a_task_stages_only_screened_rows(tmp_path: Path) -> None:
    """Lost transactions are rewritten from staged rows; a bad row among them would reach every sink after all."""
    task = PrepareTask(
        runs=Runs("run", frozenset({"run"})),
        sinks=(KAFKA, REDIS, LETTERS),
        query_id="a",
        batch_id=0,
        attempt=Attempt(0, 1),
        driver_epochs=dict.fromkeys(VIEWS, 0),
        committed_through=-1,
        mode=Repair({}, 9, frozenset()),
        frame_name="",
        first_number=0,
        first_task=0,
        staging=Staging(str(tmp_path)),
        views=VIEWS,
    )
    rows = batch((b"a", "x", 1), (b"b", None, 2)).append_column(CHECKSUM, pa.array([1, 2], pa.int64()))
    report = task.execute(0, [rows]).report
    assert report is not None and report.staged is not None
    kept = {name: list(Staging(str(tmp_path)).read(report.staged, name)) for name in VIEWS}
    assert {name: [part.num_rows for part in parts] for name, parts in kept.items()} == {name: [1] for name in VIEWS}
    assert kept["events"][0].to_pylist() == [{"value": b"a"}]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ({"partition": pa.array([1, -1], pa.int32())}, "the 'partition' column contains a negative number"),
        ({"timestamp": pa.array([None, -5], pa.int64())}, "at or before 1970"),
        ({"timestamp": pa.array([1, 0], pa.int64())}, "at or before 1970"),
        (
            {"headers": pa.array([[{"key": "", "value": None}], [{"key": "a\0b", "value": b""}]], HEADERS)},
            "NUL character",
        ),
        ({"headers": pa.array([[], [None]], HEADERS)}, "header without a key"),
        (
            {"headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS)},
            "header without a key",
        ),
        ({"key": pa.array([b"", b"1234567"])}, "exceed kafka.message.max.bytes=46"),
    ],
)
def test_a_row_that_no_producer_can_send_is_rejected_with_the_reason(column: dict[str, Any], why: str) -> None:
    rows = pa.record_batch({"value": pa.array([b"1234", b"5678"]), **column})
    with pytest.raises(BadRecordError, match=why):
        require_writable(rows, max_bytes=46)
    require_writable(rows.slice(0, 1), max_bytes=46)
