"""Upserts of whole batches: one row for each key, and none that the table would reject after the decision."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from tests.live.one_task import OneTask, Tasks, apply, batch
from tests.live.postgres.support import case_of, committer_of, left_behind, run, sink_of
from tests.live.postgres.votes import votes
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.coordinator import Coordinator
from twopc.errors import BadRecordError, ConfigurationError, RefusedStartError, RestoredError
from twopc.files import LocalFiles
from twopc.sinks.postgres.committer import PostgresCommitter
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, batch_of, opened

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.sinks.postgres import PostgresSink

    Connection = psycopg.Connection[Any]

_TARGET = "CREATE TABLE target (id bigint PRIMARY KEY, n int, at timestamptz)"


def upserting(dsn: str, table: str = "target", **arguments: Any) -> PostgresSink:
    return sink_of(dsn, table, **{"mode": "upsert", "key": "id", **arguments})


def rows(ids: list[Any], ns: list[Any]) -> pa.RecordBatch:
    return batch(id=pa.array(ids, pa.int64()), n=pa.array(ns, pa.int32()))


def content(connection: Connection, table: str = "target") -> list[tuple[Any, ...]]:
    return connection.execute(sql.SQL("SELECT id, n FROM {} ORDER BY id").format(sql.Identifier(table))).fetchall()


@pytest.mark.parametrize("tasks", [[rows([1, 2, 2], [1, 2, 3])], [rows([1, 2], [1, 2]), rows([2], [3])]])
def test_a_key_that_occurs_twice_in_a_batch_is_refused_before_the_decision(
    tasks: list[pa.RecordBatch], database: str, connection: Connection
) -> None:
    run(connection, _TARGET)
    with pytest.raises(BadRecordError, match=r"2 rows of this batch have the key id=2, .*Pass order_by"):
        apply(upserting(database), *tasks)
    assert content(connection) == []


def test_the_greatest_row_of_a_key_across_all_tasks_replaces_the_row_in_the_table(
    database: str, connection: Connection
) -> None:
    run(connection, _TARGET, "INSERT INTO target VALUES (1, 100, now()), (9, 9, now())")
    tasks = [rows([1, 2, 3], [1, 7, None]), rows([2, 1, 3], [5, 2, 4]), rows([2], [6])]
    assert apply(upserting(database, order_by="n"), *tasks) == [Evidence.COMMITTED] * 3
    assert content(connection) == [(1, 2), (2, 7), (3, 4), (9, 9)]


@pytest.mark.parametrize("order_by", [(), ("n",)])
def test_stages_that_lost_rows_are_never_published_in_part(
    order_by: tuple[str, ...], database: str, connection: Connection, tmp_path: Path
) -> None:
    run(connection, _TARGET)
    sink = upserting(database, order_by=order_by)

    def lose() -> None:
        [(name,)] = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'stage%'")
        connection.execute(sql.SQL("DELETE FROM {} WHERE id = 2").format(sql.Identifier("twopc", name)))

    crash_points.arm("driver.decided", lose)
    coordinator = Coordinator([sink], LocalFiles(tmp_path))
    opened.append(coordinator)
    coordinator.process(batch_of(0), OneTask(sink, rows([1, 2], [1, 2])))
    assert content(connection) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("vote", ["staged", "prepared"])
@pytest.mark.parametrize("others", [[], ["others"]])
@pytest.mark.parametrize("lost", [1, 5])
def test_the_greatest_row_wins_although_one_tasks_stage_was_lost_after_the_decision(
    lost: int, others: list[str], vote: str, database: str, connection: Connection, tmp_path: Path
) -> None:
    """If another sink has committed its rows, the batch is repaired.

    If no other sink has committed, the batch is written as a new attempt.
    """
    run(connection, _TARGET, "CREATE TABLE others (id bigint, n int)")
    sinks = [upserting(database, order_by="n", vote=vote), *(sink_of(database, name, name=name) for name in others)]

    def lose() -> None:
        for gid in votes(connection):
            run(connection, f"ROLLBACK PREPARED '{gid}'")
        statement = "SELECT right(txn, 32) FROM twopc.slice WHERE sink = 'orders'"
        for (name,) in connection.execute(statement).fetchall():
            stage = sql.Identifier("twopc", f"stage_{name}")
            if connection.execute(sql.SQL("SELECT n FROM {} ORDER BY n").format(stage)).fetchone() == (lost,):
                connection.execute(sql.SQL("DROP TABLE {}").format(stage))

    crash_points.arm("driver.decided", lose)
    coordinator = Coordinator(sinks, LocalFiles(tmp_path))
    opened.append(coordinator)
    coordinator.process(batch_of(0), Tasks(sinks, rows([1], [1]), rows([1, 2], [5, 6])))
    assert content(connection) == [(1, 5), (2, 6)]
    assert content(connection, "others") == [(1, 1), (1, 5), (2, 6)][: 3 * len(others)]
    assert left_behind(database)["stages"] == 0


def save_before_each_publish(connection: Connection, patch: pytest.MonkeyPatch) -> list[int]:
    """Save the state of sink ``orders`` just before each publish. Return the list to which each publish adds its version."""
    commit_once, versions = PostgresCommitter.commit_once, []

    def saving(self: PostgresCommitter, handles: Any, version: int) -> None:
        if self.name == "orders":
            run(
                connection,
                "DROP SCHEMA IF EXISTS saved CASCADE",
                "CREATE SCHEMA saved",
                "CREATE TABLE saved.target AS TABLE target",
                "CREATE TABLE saved.marker AS TABLE twopc.marker",
                "CREATE TABLE saved.control AS SELECT * FROM twopc.control WHERE sink = 'orders'",
            )
            versions.append(version)
        commit_once(self, handles, version)

    patch.setattr(PostgresCommitter, "commit_once", saving)
    return versions


def lose_stages(connection: Connection) -> None:
    for (name,) in connection.execute("SELECT right(txn, 32) FROM twopc.slice WHERE sink = 'orders'").fetchall():
        connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier("twopc", f"stage_{name}")))


def go_back(connection: Connection) -> None:
    run(
        connection,
        "TRUNCATE target, twopc.marker",
        "INSERT INTO target TABLE saved.target",
        "INSERT INTO twopc.marker TABLE saved.marker",
        "UPDATE twopc.control c SET record = s.record FROM saved.control s WHERE c.sink = s.sink",
    )


def test_a_running_query_notices_that_a_failover_lost_only_a_repair(
    database: str, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(connection, _TARGET, "CREATE TABLE others (id bigint, n int)")
    sinks = [upserting(database), sink_of(database, "others", name="others")]
    coordinator = Coordinator(sinks, LocalFiles(tmp_path))
    opened.append(coordinator)
    save_before_each_publish(connection, monkeypatch)
    crash_points.arm("driver.decided", lambda: lose_stages(connection))
    coordinator.process(batch_of(0), Tasks(sinks, rows([1], [1])))
    assert content(connection) == content(connection, "others") == [(1, 1)]
    go_back(connection)
    assert content(connection) == []
    with pytest.raises(RestoredError, match="sink 'orders': its store was restored to an older state"):
        coordinator.process(batch_of(1), Tasks(sinks, rows([2], [2])))


def test_a_start_is_refused_if_a_failover_lost_a_repair_and_the_next_batch(
    database: str, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record contains the repaired batch's decision, but no start examines that batch again."""
    run(connection, _TARGET, "CREATE TABLE others (id bigint, n int)")
    sinks = [upserting(database), sink_of(database, "others", name="others")]
    saved = save_before_each_publish(connection, monkeypatch)
    crash_points.arm("driver.decided", lambda: lose_stages(connection))
    coordinator = Coordinator(sinks, LocalFiles(tmp_path))
    opened.append(coordinator)
    coordinator.process(batch_of(0), Tasks(sinks, rows([1], [1])))
    assert len(saved) == 2  # the second publish is the repair
    monkeypatch.undo()
    coordinator.process(batch_of(1), Tasks(sinks, rows([2], [2])))
    go_back(connection)
    again = Coordinator(sinks, LocalFiles(tmp_path))
    opened.append(again)
    with pytest.raises(RefusedStartError, match=r"older store: .* the store of sink 'orders'"):
        again.process(batch_of(1), Tasks(sinks, rows([2], [2])))
    assert (content(connection), content(connection, "others")) == ([], [(1, 1), (2, 2)])


def test_a_batch_of_key_columns_alone_inserts_the_missing_rows(database: str, connection: Connection) -> None:
    run(connection, _TARGET, "INSERT INTO target VALUES (1, 1)")
    assert apply(upserting(database), batch(id=[1, 2])) == [Evidence.COMMITTED]
    assert content(connection) == [(1, 1), (2, None)]


def test_an_upsert_writes_quoted_identifiers_defaults_and_computed_columns(
    database: str, connection: Connection
) -> None:
    run(
        connection,
        'CREATE SCHEMA "My ""own"',
        """CREATE TABLE "My ""own"."Ta.ble" (
            "Key;" bigint PRIMARY KEY, "%s" int, "select" int DEFAULT 7, "twice'" int GENERATED ALWAYS AS ("%s" * 2) STORED,
            number int GENERATED ALWAYS AS IDENTITY
        )""",
    )
    sink = upserting(
        database, '"My ""own"."Ta.ble"', name="a-sink_1", schema='The "sink\'s" %s {x}', key="Key;", order_by="%s"
    )
    for tasks in ([[1, 2], [3]], [[2], [3, 4]]):
        parts = [batch(**{"Key;": pa.array(ids, pa.int64()), "%s": pa.array(ids, pa.int32())}) for ids in tasks]
        assert apply(sink, *parts) == [Evidence.COMMITTED] * 2
    found = connection.execute('TABLE "My ""own"."Ta.ble" ORDER BY 1').fetchall()
    assert [row[:4] for row in found] == [(key, key, 7, 2 * key) for key in (1, 2, 3, 4)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_partitioned_table_accepts_a_batch_for_all_of_its_partitions(
    mode: str, database: str, connection: Connection
) -> None:
    run(
        connection,
        "CREATE TABLE target (id bigint PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF target FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE rest PARTITION OF target DEFAULT",
    )
    if mode == "upsert":
        sink = upserting(database)
        assert apply(sink, rows([1, 11], [1, 1])) == [Evidence.COMMITTED]
        assert apply(sink, rows([1, 12], [2, 2])) == [Evidence.COMMITTED]
        assert content(connection) == [(1, 2), (11, 1), (12, 2)]
    else:
        run(connection, "ALTER TABLE target DROP CONSTRAINT target_pkey")
        assert apply(sink_of(database), rows([1, 11, 1], [1, 1, 2])) == [Evidence.COMMITTED]
        assert (content(connection, "low"), content(connection, "rest")) == ([(1, 1), (1, 2)], [(11, 1)])


@pytest.mark.parametrize("moduli", [[(2, 0), (2, 1)], [(2, 0), (4, 1), (12, 3), (12, 7), (12, 11)]])
def test_a_hash_partitioned_table_accepts_a_batch_if_each_remainder_has_a_partition(
    moduli: list[tuple[int, int]], database: str, connection: Connection
) -> None:
    """Such a table cannot have a default partition."""
    run(connection, "CREATE TABLE target (id bigint PRIMARY KEY, n int) PARTITION BY HASH (id)")
    for number, (modulus, remainder) in enumerate(moduli):
        with pytest.raises(ConfigurationError, match="the hash-partitioned table target has no partition for some rem"):
            apply(upserting(database), rows([1], [1]))
        bounds = f"FOR VALUES WITH (MODULUS {modulus}, REMAINDER {remainder})"
        run(connection, f"CREATE TABLE p{number} PARTITION OF target {bounds}")
    ids = list(range(50))
    assert apply(upserting(database), rows(ids, ids)) == [Evidence.COMMITTED]
    assert content(connection) == [(one, one) for one in ids]


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("REINDEX INDEX CONCURRENTLY target_pkey", "target"),
        ("CREATE UNIQUE INDEX CONCURRENTLY ON target (id)", "target"),
        ("REINDEX INDEX CONCURRENTLY part_pkey", "part"),
    ],
)
def test_a_query_starts_and_runs_while_the_index_on_its_key_is_rebuilt(
    statement: str, table: str, database: str, connection: Connection
) -> None:
    partitioned = " PARTITION BY RANGE (id)" if table == "part" else ""
    run(connection, _TARGET + partitioned)
    if partitioned:
        run(connection, "CREATE TABLE part PARTITION OF target DEFAULT")
    running = Driver(upserting(database))
    with contextlib.ExitStack() as stack:
        builder = stack.enter_context(psycopg.connect(database, autocommit=True))
        pool = stack.enter_context(ThreadPoolExecutor())
        other = stack.enter_context(psycopg.connect(database, autocommit=True))
        run(other, "BEGIN", "INSERT INTO target VALUES (99, 1)")
        building = pool.submit(run, builder, "SET lock_timeout = '60s'", statement)
        while not connection.execute("SELECT 1 FROM pg_index WHERE NOT indisvalid").fetchone():
            assert not building.done()
        scan_start = running.begin()
        assert running.commit([running.prepare(rows([1, 2], [1, 1]))], scan_start) == [Evidence.COMMITTED]
        assert apply(upserting(database), rows([2, 3], [2, 2])) == [Evidence.COMMITTED]
        run(other, "ROLLBACK")
        building.result()
    assert content(connection) == [(1, 1), (2, 2), (3, 2)]


_MIXED = [
    ("CHECK (n <= most)", "uses both columns that an upsert changes and columns that it keeps"),
    (
        "room int GENERATED ALWAYS AS (100 / (most - n)) STORED",
        "target.room is computed from both columns that an upsert",
    ),
    ("room int GENERATED ALWAYS AS (n + 1) STORED, CHECK (room <= most)", "uses both columns that an upsert changes"),
]


@pytest.mark.parametrize(("column", "words"), _MIXED)
def test_an_upsert_of_some_columns_is_refused_if_the_kept_columns_determine_whether_the_new_values_fit(
    column: str, words: str, database: str, connection: Connection
) -> None:
    """The stage contains the batch's columns and the other columns' defaults, but the table's row has other values."""
    run(connection, f"CREATE TABLE target (id bigint PRIMARY KEY, n int, most int DEFAULT 1000, {column})")
    with pytest.raises(ConfigurationError, match=words):
        apply(upserting(database), rows([1], [1]))
    whole = batch(id=[1], n=pa.array([1], pa.int32()), most=pa.array([2], pa.int32()))
    assert apply(upserting(database), whole) == [Evidence.COMMITTED]


def test_a_constraint_on_columns_that_are_all_kept_or_all_changed_is_not_refused(
    database: str, connection: Connection
) -> None:
    run(
        connection,
        "CREATE TABLE target (id bigint PRIMARY KEY, n int CHECK (n < 9), a int, b int, CHECK (a < b), CHECK (n <> id), "
        "double int GENERATED ALWAYS AS (n * 2) STORED)",
    )
    assert apply(upserting(database), rows([1], [8])) == [Evidence.COMMITTED]


def test_two_sinks_that_meet_in_a_deadlock_both_publish(database: str, connection: Connection) -> None:
    """PostgreSQL ends one of the two sinks' sessions. That sink may repeat its publish at once."""
    run(connection, _TARGET)
    driver = Driver(upserting(database))
    scan_start = driver.begin()
    handle = driver.prepare(rows([1], [1]))
    committer = committer_of(driver)
    publish, failures = committer.publish_all, [psycopg.errors.DeadlockDetected("deadlock detected")]

    def deadlocked(*arguments: Any) -> Any:
        yield from publish(*arguments)
        if failures:
            raise failures.pop()

    committer.publish_all = deadlocked
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert content(connection) == [(1, 1)]


def test_an_append_of_equal_rows_keeps_all_of_them(database: str) -> None:
    case = case_of(database)
    assert apply(case.sink, numbers([1, 1]), numbers([1])) == [Evidence.COMMITTED] * 2
    assert case.visible() == [1, 1, 1]
