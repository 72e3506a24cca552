"""Triggers that return NULL. A trigger may leave an existing row as it is, but it must not leave a row of the batch out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.one_task import OneTask, apply, batch
from tests.live.postgres.support import run, sink_of
from tests.live.postgres.votes import no_vote_is_left, votes
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.coordinator import Coordinator
from twopc.errors import BadRecordError, CommitBlockedError
from twopc.files import LocalFiles
from twopc.testing.contract.drivers import batch_of, opened

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from twopc.sinks.postgres import PostgresSink

    Connection = psycopg.Connection[Any]

__all__ = ["no_vote_is_left"]

_TARGET = "CREATE TABLE target (id bigint PRIMARY KEY, n int)"
_DROPPING = (
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN IF NEW.id > 1 THEN RETURN NULL; END IF; RETURN NEW; END $$"
)
_ON_INSERT = "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()"
_REDUNDANT = (
    "CREATE TRIGGER r BEFORE UPDATE ON target FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
)


def upserting(dsn: str, **arguments: Any) -> PostgresSink:
    return sink_of(dsn, **{"mode": "upsert", "key": "id", "vote": "prepared", **arguments})


def rows(ids: list[int], ns: list[int]) -> pa.RecordBatch:
    return batch(id=pa.array(ids, pa.int64()), n=pa.array(ns, pa.int32()))


def content(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT id, n FROM target ORDER BY id").fetchall()


@pytest.mark.parametrize("order_by", [(), "n"])
@pytest.mark.parametrize("others", [[], [_REDUNDANT]])
def test_a_trigger_that_drops_a_new_row_of_an_upsert_is_refused_before_the_decision(
    others: list[str], order_by: Any, database: str, connection: Connection
) -> None:
    run(connection, _TARGET, "INSERT INTO target VALUES (1, 1)", _DROPPING, _ON_INSERT, *others)
    with pytest.raises(
        BadRecordError, match=r"public\.target .* a trigger .*Nothing|No part of this attempt is decided"
    ):
        apply(upserting(database, order_by=order_by), rows([1, 2], [5, 5]))
    assert (content(connection), votes(connection)) == ([(1, 1)], [])


def test_a_trigger_on_inserts_that_drops_the_update_of_an_existing_row_is_refused_before_the_decision(
    database: str, connection: Connection
) -> None:
    run(connection, _TARGET, "INSERT INTO target VALUES (2, 1)", _DROPPING, _ON_INSERT)
    with pytest.raises(BadRecordError, match=r"public\.target accepted only 0 of 1 rows: a trigger dropped the other"):
        apply(upserting(database), rows([2], [5]))
    assert content(connection) == [(2, 1)]


def test_a_trigger_that_drops_a_row_of_key_columns_alone_is_refused_before_the_decision(
    database: str, connection: Connection
) -> None:
    run(connection, _TARGET, "INSERT INTO target VALUES (1, 1), (3, 3)", _DROPPING, _ON_INSERT)
    with pytest.raises(
        BadRecordError, match=r"public\.target has no row with the key id=2, although the batch contains"
    ):
        apply(upserting(database), batch(id=[1, 2, 3]))
    assert apply(upserting(database), batch(id=[1, 3])) == [Evidence.COMMITTED]
    assert content(connection) == [(1, 1), (3, 3)]


@pytest.mark.parametrize("partitioned", ["", " PARTITION BY RANGE (id)"])
def test_a_trigger_may_keep_a_row_that_already_has_the_batchs_values(
    partitioned: str, database: str, connection: Connection
) -> None:
    run(connection, _TARGET + partitioned, *(["CREATE TABLE p PARTITION OF target DEFAULT"] if partitioned else []))
    run(connection, _REDUNDANT)
    for batch_of_rows in (rows([1, 2], [1, 1]), rows([1, 2, 3], [1, 2, 3])):
        assert apply(upserting(database), batch_of_rows) == [Evidence.COMMITTED]
    assert apply(upserting(database, order_by="n"), rows([1, 1, 4], [1, 0, 4])) == [Evidence.COMMITTED]
    assert content(connection) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_kept_row_is_found_as_the_keys_index_finds_it(database: str, connection: Connection) -> None:
    """The extension's own operator ignores case."""
    run(
        connection,
        "CREATE SCHEMA apart",
        "CREATE EXTENSION citext SCHEMA apart",
        "CREATE TABLE target (part int, email apart.citext, n int, PRIMARY KEY (email, part))",
        _REDUNDANT,
    )
    sink = upserting(database, key=("part", "email"))
    for email in ("a@x", "A@x"):
        part, n = pa.array([1], pa.int32()), pa.array([2], pa.int32())
        assert apply(sink, batch(part=part, email=pa.array([email]), n=n)) == [Evidence.COMMITTED]
    assert connection.execute("SELECT email::text, n FROM target").fetchall() == [("a@x", 2)]


def test_a_trigger_created_after_the_decision_leaves_no_row_out(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    run(connection, _TARGET, _DROPPING)

    def start() -> None:
        sink = upserting(database, vote="staged")
        coordinator = Coordinator([sink], LocalFiles(tmp_path))
        opened.append(coordinator)
        coordinator.process(batch_of(0), OneTask(sink, rows([1, 2], [1, 2])))

    crash_points.arm("driver.decided", lambda: run(connection, _ON_INSERT))
    for _ in range(2):
        with pytest.raises(CommitBlockedError, match=r"accepted only 1 of 2 rows: a trigger dropped the other"):
            start()
        assert content(connection) == []
    run(connection, "DROP TRIGGER t ON target")
    start()
    assert content(connection) == [(1, 1), (2, 2)]


def test_a_trigger_that_gives_two_rows_the_same_key_is_refused_before_the_decision(
    database: str, connection: Connection
) -> None:
    """PostgreSQL rejects these rows, so the message must not blame the statement."""
    body = "BEGIN NEW.id := 7; RETURN NEW; END"
    run(connection, _TARGET, f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$", _ON_INSERT)
    with pytest.raises(
        BadRecordError, match=r"cannot affect row a second time.*a trigger has given two rows of the batch the same key"
    ):
        apply(upserting(database), rows([1, 2], [1, 2]))
    assert (content(connection), votes(connection)) == ([], [])
