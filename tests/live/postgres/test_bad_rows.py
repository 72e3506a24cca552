"""A row that the table would reject stops its task before the decision, and no row is visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.one_task import apply, batch
from tests.live.postgres.support import left_behind, run, sink_of
from twopc.errors import BadRecordError, SchemaError
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

_TABLE = """CREATE TABLE target (
  id bigint NOT NULL, code smallint CHECK (code > 0), price numeric(6,2), name varchar(3), note text,
  ratio numeric GENERATED ALWAYS AS (10 / code) STORED
)"""
#: The bad value, the words in the error, and what finds the value: the check of each row, or the server.
_BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"id": pa.array([1, None], pa.int64())}, "NOT NULL.*in row 1", "row"),
    ({"code": pa.array([1, 40_000], pa.int64())}, "40000", "row"),
    ({"price": pa.array(["1.00", "12345.00"]).cast(pa.decimal128(10, 2))}, "12345.00", "row"),
    ({"name": pa.array(["a", "abcd"])}, "more than 3 characters.*abcd", "row"),
    ({"note": pa.array(["a", "b\0c"])}, "NUL character", "row"),
    ({"code": pa.array([1, -5], pa.int64())}, r"target_code_check.*Failing row contains \(2, -5", "server"),
    ({"code": pa.array([1, 0], pa.int64())}, "division by zero|target_code_check", "server"),
]


def rows(bad: dict[str, Any]) -> pa.RecordBatch:
    return batch(**{"id": pa.array([1, 2], pa.int64()), "code": pa.array([1, 1], pa.int64()), **bad})


@pytest.mark.parametrize(("bad", "words", "found_by"), _BAD)
def test_a_bad_row_stops_its_task_and_nothing_is_visible(
    bad: dict[str, Any], words: str, found_by: str, database: str, connection: Connection
) -> None:
    run(connection, _TABLE)
    sink = sink_of(database)
    driver = Driver(sink)
    driver.begin()
    good = driver.prepare(rows({}))
    with pytest.raises(BadRecordError, match=words):
        driver.prepare(rows(bad), partition=1)
    driver.committer.abort([good])
    assert connection.execute("TABLE target").fetchall() == []
    assert left_behind(database) == {"stages": 0, "slice": 0, "marker": 1}
    if found_by == "row":
        with pytest.raises(BadRecordError, match=words):
            sink.check_rows(rows(bad))
    else:
        sink.check_rows(rows(bad))


def test_a_row_too_wide_for_an_index_stops_its_task(database: str, connection: Connection) -> None:
    run(connection, "CREATE TABLE target (note text)", "CREATE INDEX ON target (note)")
    long = "".join(chr(33 + number * number % 94) + str(number) for number in range(8_000))  # compresses badly
    with pytest.raises(BadRecordError, match="index row"):
        apply(sink_of(database), batch(note=[long]))
    assert connection.execute("TABLE target").fetchall() == []


def test_columns_that_do_not_fit_stop_the_batch_before_a_task_writes(database: str, connection: Connection) -> None:
    run(connection, _TABLE)
    sink = sink_of(database)
    for columns, words in (({"id": ["a"]}, "'id' is string"), ({"nobody": [1]}, "'nobody'"), ({"code": [1]}, "'id'")):
        with pytest.raises(SchemaError, match=words):
            sink.check_schema(batch(**columns).schema)
