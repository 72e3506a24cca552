"""A column changes after the decision. Its staged values are never cast silently: a user's `ALTER … USING` may say otherwise."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from tests.live.one_task import batch
from tests.live.postgres.support import run, sink_of
from twopc.attempt import Evidence
from twopc.sinks.postgres.statements import Statements
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    Connection = psycopg.Connection[Any]

_NOON = dt.datetime(2020, 1, 1, 12)  # noqa: DTZ001 - a timestamp without a time zone
_ROWS = batch(
    id=pa.array([1], pa.int16()),
    at=pa.array([_NOON], pa.timestamp("us")),
    amount=pa.array([Decimal("12.34")], pa.decimal128(10, 2)),
    price=pa.array([5], pa.int64()),
    word=pa.array(["one"]),
    share=pa.array([0.5], pa.float32()),
)
_TABLE = """CREATE TABLE target (id smallint, at timestamp, amount numeric(10,2), price bigint, word varchar(10), share real,
  price_new bigint, note varchar(10) DEFAULT 'none')"""
_STAGED = (1, _NOON, Decimal("12.34"), 5, "one", 0.5, None, "none")

#: A change to the table {t} that also changes values, the message, and how to undo the change.
_CHANGES = {
    "time zone": (
        "ALTER TABLE {t} ALTER at TYPE timestamptz USING at AT TIME ZONE 'UTC'",
        r"column 'at' of public\.target was altered from timestamp without time zone to timestamp with time zone",
        "ALTER TABLE {t} ALTER at TYPE timestamp USING at AT TIME ZONE 'UTC'",
    ),
    "unit": (
        "ALTER TABLE {t} ALTER amount TYPE bigint USING (amount * 100)::bigint",
        r"column 'amount' of public\.target was altered from numeric\(10,2\) to bigint",
        "ALTER TABLE {t} ALTER amount TYPE numeric(10,2) USING amount / 100.0",
    ),
    "fewer digits": (
        "ALTER TABLE {t} ALTER amount TYPE numeric(10,1)",
        r"column 'amount' of public\.target was altered from numeric\(10,2\) to numeric\(10,1\)",
        "ALTER TABLE {t} ALTER amount TYPE numeric(10,2)",
    ),
    "a default": (
        "ALTER TABLE {t} ALTER note TYPE char(20)",
        r"column 'note' of public\.target was altered from character varying\(10\) to character\(20\)",
        "ALTER TABLE {t} ALTER note TYPE varchar(10)",
    ),
}


@pytest.fixture
def staged(database: str, connection: Connection) -> tuple[Driver, Any, dict[str, Any]]:
    """A batch that is decided and not published."""
    run(connection, _TABLE, _TABLE.replace("target", "other"))
    driver = Driver(sink_of(database))
    scan_start = driver.begin()
    handle = driver.prepare(_ROWS)
    driver.committer.confirm([handle], 0)
    return driver, handle, scan_start


def _stages(connection: Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'stage%'")]


def _content(connection: Connection) -> Sequence[tuple[Any, ...]]:
    return connection.execute("TABLE target").fetchall()


@pytest.mark.parametrize("change", _CHANGES)
def test_staged_values_wait_until_the_columns_old_type_is_restored(
    change: str, staged: tuple[Driver, Any, dict[str, Any]], connection: Connection
) -> None:
    done, words, undone = _CHANGES[change]
    driver, handle, scan_start = staged
    run(connection, done.format(t="target"))
    for _ in range(2):
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
        [blocker] = driver.committer.blockers()
        assert re.search(words, blocker)
        assert "Undo the change. Or make the same change to each of these stages" in blocker
        assert _content(connection) == []
    run(connection, undone.format(t="target"))
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert _content(connection) == [_STAGED]


def test_staged_values_are_published_once_they_have_been_converted_like_the_tables_values(
    staged: tuple[Driver, Any, dict[str, Any]], database: str, connection: Connection
) -> None:
    """The stages of other sinks stay as they are: their tables were not altered."""
    driver, handle, scan_start = staged
    handles = [handle, driver.prepare(_ROWS, partition=1)]
    driver.committer.confirm(handles, 0)
    other = Driver(sink_of(database, "other", name="other"))
    other.begin()
    other.prepare(_ROWS)
    statement = "ALTER TABLE {} ALTER amount TYPE bigint USING (amount * 100)::bigint"
    run(connection, statement.format("target"))
    assert set(driver.committer.commit(handles, scan_start).values()) == {Evidence.UNKNOWN}
    named = re.findall(r"twopc\.stage_\w+", driver.committer.blockers()[0])
    assert len(named) == 2
    assert len(_stages(connection)) == 3
    run(connection, statement.format(named[0]))
    assert set(driver.committer.commit(handles, scan_start).values()) == {Evidence.UNKNOWN}
    assert re.findall(r"twopc\.stage_\w+", driver.committer.blockers()[0]) == named[1:]
    run(connection, statement.format(named[1]))
    assert set(driver.committer.commit(handles, scan_start).values()) == {Evidence.COMMITTED}
    assert connection.execute("SELECT amount FROM target").fetchall() == [(1234,)] * 2


@pytest.mark.parametrize(
    "change",
    [
        "id TYPE integer",
        "id TYPE bigint",
        "id TYPE numeric",
        "id TYPE numeric(9,4)",
        "price TYPE numeric(19)",
        "amount TYPE numeric(11,3)",
        "amount TYPE numeric",
        "word TYPE varchar(11)",
        "word TYPE varchar",
        "word TYPE text",
        "share TYPE double precision",
        "note TYPE text",
    ],
)
def test_staged_values_are_published_into_a_widened_column(
    change: str, staged: tuple[Driver, Any, dict[str, Any]], connection: Connection
) -> None:
    driver, handle, scan_start = staged
    run(connection, f"ALTER TABLE target ALTER {change}")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}, driver.committer.blockers()
    assert _content(connection) == [_STAGED]


def test_staged_values_wait_while_another_column_has_taken_their_columns_name(
    staged: tuple[Driver, Any, dict[str, Any]], connection: Connection
) -> None:
    driver, handle, scan_start = staged
    run(connection, "ALTER TABLE target RENAME price TO price_old", "ALTER TABLE target RENAME price_new TO price")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    [blocker] = driver.committer.blockers()
    assert "column 'price' of public.target was renamed to 'price_old' after the rows were staged" in blocker
    assert _content(connection) == []
    run(connection, "ALTER TABLE target RENAME price TO price_new", "ALTER TABLE target RENAME price_old TO price")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert _content(connection) == [_STAGED]


def test_a_column_cannot_change_between_the_check_and_the_publish(
    staged: tuple[Driver, Any, dict[str, Any]],
    database: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, handle, scan_start = staged
    publish, refused = Statements.publish, []

    def altering(*arguments: Any, **named: Any) -> Any:
        with psycopg.connect(database, autocommit=True) as other:
            run(other, "SET lock_timeout = '50ms'")
            try:
                run(other, "ALTER TABLE target ALTER amount TYPE bigint USING (amount * 100)::bigint")
            except psycopg.errors.LockNotAvailable as error:
                refused.append(error)
        return publish(*arguments, **named)

    monkeypatch.setattr(Statements, "publish", altering)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert (_content(connection), len(refused)) == ([_STAGED], 1)
