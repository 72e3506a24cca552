"""The sink's SQL, on a real server: what each statement changes, and what it leaves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from tests.live.postgres.support import Staging, batch, content, created, publishing_of, run
from twopc.sinks.postgres.staged_indexes import staged_indexes
from twopc.sinks.postgres.statements import Statements, read_facts
from twopc.sinks.postgres.table import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    Connection = psycopg.Connection[Any]


def rows(ids: Sequence[int], **more: Sequence[Any]) -> pa.RecordBatch:
    return batch(id=pa.array(ids, pa.int64()), **{name: pa.array(values) for name, values in more.items()})


def staging_of(
    connection: Connection, *columns: str, like: pa.RecordBatch, mode: Any = "append", **arguments: Any
) -> Staging:
    return Staging(connection, publishing_of(created(connection, *columns), like, mode, **arguments))


@pytest.fixture(params=["connection", pytest.param("older_connection", marks=pytest.mark.whole)], ids=["18", "16"])
def server(request: pytest.FixtureRequest) -> Connection:
    """A new database on each version."""
    found: Connection = request.getfixturevalue(request.param)
    return found


def test_a_batch_becomes_visible_at_one_instant_and_only_once(server: Connection) -> None:
    one, other = rows([1, 2]), rows([3])
    staging = staging_of(server, "id bigint", like=one)
    txns = [staging.stage(one), staging.stage(other)]
    assert content(server) == []
    staging.publish(*txns)
    staging.publish(*txns)
    assert content(server) == [(1,), (2,), (3,)]
    assert [staging.execute(staging.statements.find_marker(txn)) for txn in txns] == [[("committed",)]] * 2


def test_an_aborted_slice_is_never_published(server: Connection) -> None:
    staging = staging_of(server, "id bigint", like=rows([1]))
    lost, kept = staging.stage(rows([1])), staging.stage(rows([2]))
    given_up = staging.statements.insert_markers([lost], version=7, state="aborted")
    assert staging.execute(given_up) == [(lost,)]
    staging.publish(lost, kept)
    assert content(server) == [(2,)]


def test_the_control_record_changes_only_if_it_still_has_the_value_that_was_read(server: Connection) -> None:
    staging = staging_of(server, "id bigint", like=rows([1]))
    statements = staging.statements
    swap, record = statements.swap_control, b"\0\xff'%{}"
    assert staging.execute(statements.load_control()) == [(b"first",)]
    for old, new in ((None, b"x"), (b"other", b"x"), (b"first", record)):
        staging.execute(swap(old, new))
    assert staging.execute(statements.load_control(locked=True)) == [(record,)]
    assert staging.execute(Statements(statements.schema, "another").load_control()) == []


def test_existing_objects_are_left_alone(server: Connection) -> None:
    staging = staging_of(server, "id bigint", like=rows([1]))
    txn = staging.stage(rows([1]))
    assert staging.execute(staging.statements.find_objects()) == [(True,)]
    staging.execute(*staging.statements.create())
    assert [found[:2] for found in staging.execute(staging.statements.find_slices([txn]))] == [(txn, 1)]


def test_an_upsert_updates_the_row_with_the_key_and_keeps_columns_missing_from_the_batch(server: Connection) -> None:
    columns = (
        "id bigint",
        '"V 1" text',
        "kept text DEFAULT 'default'",
        "n int GENERATED ALWAYS AS IDENTITY",
        "PRIMARY KEY (id)",
    )
    like = rows([1], **{"V 1": ["a"]})
    staging = staging_of(server, *columns, like=like, mode="upsert", key=("id",))
    run(server, """INSERT INTO target (id, "V 1", kept) VALUES (1, 'old', 'mine')""")
    staging.publish(staging.stage(rows([1], **{"V 1": ["new"]})), staging.stage(rows([2], **{"V 1": ["b"]})))
    assert [row[:3] for row in content(server, order="id")] == [(1, "new", "mine"), (2, "b", "default")]


def test_an_upsert_of_key_columns_alone_inserts_the_missing_rows(server: Connection) -> None:
    like = rows([1], b=["x"])
    staging = staging_of(
        server, "id bigint", "b text", "PRIMARY KEY (b, id)", like=like, mode="upsert", key=("id", "b")
    )
    staging.publish(staging.stage(like))
    staging.publish(staging.stage(rows([1, 1], b=["x", "y"])))
    assert content(server, order="b") == [(1, "x"), (1, "y")]


def test_the_greatest_of_several_rows_with_the_same_key_is_taken_and_null_is_the_least(server: Connection) -> None:
    like = rows([1], at=[1], v=["a"])
    columns = ("id bigint PRIMARY KEY", "at bigint", "v text")
    staging = staging_of(server, *columns, like=like, mode="upsert", key=("id",), order_by=("at", "v"))
    one = rows([1, 1, 2], at=[5, 3, None], v=["five", "three", "null"])
    other = rows([1, 2, 2], at=[5, 1, 1], v=["also five", "a", "b"])
    staging.publish(staging.stage(one), staging.stage(other))
    assert content(server, order="id") == [(1, 5, "five"), (2, 1, "b")]


def test_a_key_staged_twice_is_found_before_the_decision(server: Connection) -> None:
    like = rows([1], v=["a"])
    staging = staging_of(server, "id bigint PRIMARY KEY", "v text", like=like, mode="upsert", key=("id",))
    txns = [staging.stage(rows([1, 2], v=["a", "b"])), staging.stage(rows([3, 2], v=["c", "d"]))]
    find = staging.statements.find_repeated_key
    assert staging.execute(find(txns, staging.publishing)) == [(2, 2)]
    assert staging.execute(find(txns[:1], staging.publishing)) == []
    with pytest.raises(psycopg.errors.CardinalityViolation):
        staging.publish(*txns)


def test_each_default_is_filled_in_once_and_the_table_generates_identity_values(server: Connection) -> None:
    identity = "n bigint GENERATED BY DEFAULT AS IDENTITY"
    columns = ("id bigint", "d serial", "t text DEFAULT 'x'", identity, "g bigint GENERATED ALWAYS AS (id * 2) STORED")
    staging = staging_of(server, *columns, like=rows([1]))
    staging.publish(staging.stage(rows([1, 2])), staging.stage(rows([3])))
    assert content(server) == [(1, 1, "x", 1, 2), (2, 2, "x", 2, 4), (3, 3, "x", 3, 6)]


def test_an_identity_value_in_the_batch_is_kept(server: Connection) -> None:
    like = rows([7], v=["a"])
    staging = staging_of(server, "id bigint GENERATED BY DEFAULT AS IDENTITY", "v text", like=like)
    staging.publish(staging.stage(like))
    assert content(server) == [(7, "a")]


def test_a_stage_is_logged_and_has_every_index_that_may_reject_a_row(server: Connection) -> None:
    like = rows([1], v=["a"], short=["b"])
    columns = ("id bigint PRIMARY KEY", "v text UNIQUE", "short varchar(100) UNIQUE")
    created(server, *columns)
    run(server, "CREATE INDEX ON target (lower(short)) WHERE id > 0", "CREATE INDEX ON target USING hash (v)")
    table = read_table(server, "target")
    assert sorted(staged_indexes(table)) == ["btree (lower((short)::text)) WHERE (id > 0)", "btree (v)"]
    staging = Staging(server, publishing_of(table, like))
    staging.stage(like, "a")
    stage = read_table(server, '"The ""sink\'s".stage_a')
    assert stage.persistence == "p"
    assert len(stage.indexes) == 2
    assert not any(index.is_unique for index in stage.indexes)
    Staging(server, publishing_of(table, like, vote="prepared")).stage(like, "b")
    assert read_table(server, '"The ""sink\'s".stage_b').indexes == ()


def test_slices_are_found_with_and_without_a_marker(server: Connection) -> None:
    staging = staging_of(server, "id bigint", like=rows([1]))
    statements = staging.statements
    one, other = staging.stage(rows([1]), "a"), staging.stage(rows([1]), "b")
    staging.execute(statements.insert_markers([one], version=7, state="aborted"))
    assert staging.execute(statements.find_slices_without_marker()) == [(other,)]
    assert staging.execute(statements.find_slices_with_marker(limit=50)) == [(one, None)]


def test_a_drop_gives_up_while_another_session_reads_the_stage(server: Connection) -> None:
    staging = staging_of(server, "id bigint", like=rows([1]))
    txns = [staging.stage(rows([1]), "a"), staging.stage(rows([1]), "b"), "missing"]
    drop = list(staging.statements.drop_stages(txns, lock_timeout_ms=50))
    with psycopg.connect(server.info.dsn, password=server.info.password) as reader:
        reader.execute('SELECT id FROM "The ""sink\'s".stage_b')
        with pytest.raises(psycopg.errors.LockNotAvailable):
            staging.execute(*drop)
    found = staging.execute(staging.statements.find_slices(txns))
    assert sorted(found) == [("a", 1), ("b", 1)]
    staging.execute(*drop)
    assert staging.execute(staging.statements.find_slices(txns)) == []
    assert server.execute("SELECT to_regclass('\"The \"\"sink''s\".stage_a')").fetchone() == (None,)
    staging.execute(*staging.statements.drop_stages([], lock_timeout_ms=50))


def test_a_slice_without_its_stage_is_not_found(server: Connection) -> None:
    staging = staging_of(server, "id bigint", like=rows([1]))
    staging.stage(rows([1]), "a")
    run(server, 'DROP TABLE "The ""sink\'s".stage_a')
    assert staging.execute(staging.statements.find_slices(["a"])) == []


def test_markers_stay_as_long_as_their_slices(server: Connection) -> None:
    staging = staging_of(server, "id bigint", like=rows([1]))
    statements = staging.statements
    staging.stage(rows([1]), "a")
    staging.execute(statements.insert_markers(["a", "b"], version=7, state="committed"))
    staging.execute(statements.insert_markers(["c"], version=8, state="committed"))
    staging.execute(statements.forget_markers(below=8))
    found = [staging.execute(statements.find_marker(txn)) for txn in "abc"]
    assert found == [[("committed",)], [], [("committed",)]]


def test_any_role_may_read_the_facts_about_the_server(server: Connection) -> None:
    run(server, "DROP ROLE IF EXISTS clerk", "CREATE ROLE clerk", "SET ROLE clerk")
    facts = server.execute(read_facts()).fetchone()
    run(server, "RESET ROLE", "DROP ROLE clerk")
    assert facts
    is_standby, version, slots = facts
    assert (is_standby, version // 10_000) == (False, server.info.server_version // 10_000)
    assert slots == int(server.execute("SHOW max_prepared_transactions").fetchone()[0])  # type: ignore[index]
