"""A table changes while a batch is written.

Before the decision, a new attempt adapts to the change. After the decision, the complete batch waits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from tests.live.postgres.support import case_of, left_behind, run, sink_of, values
from tests.live.set_back import require_noticed
from twopc import crash_points
from twopc.attempt import Attempt, Evidence, TaskAttempt
from twopc.bound import FORMAT as BINDING_FORMAT
from twopc.bound import Bound
from twopc.errors import (
    CommitBlockedError,
    ConfigurationError,
    InDoubtError,
    RefusedStartError,
    RetriableError,
)
from twopc.override import Abandon, Overrides
from twopc.sealed import seal, unseal
from twopc.settings import Settings
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import QUERY_ID, Driver, Query, all_rows, opened

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    Connection = psycopg.Connection[Any]

_COLUMNS = "value bigint NOT NULL, note text DEFAULT 'none'"
_REJECTING = "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no thanks'; END $$"
_IGNORING = "CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
#: A change to the table after the decision, the server's error, and how to undo the change.
_CHANGES = {
    "unique index": (["CREATE UNIQUE INDEX no_twice ON target (note)"], "no_twice", ["DROP INDEX no_twice"]),
    "check": (
        ["ALTER TABLE target ADD CONSTRAINT small CHECK (value < 0) NOT VALID"],
        'violates check constraint "small"',
        ["ALTER TABLE target DROP CONSTRAINT small"],
    ),
    "renamed column": (
        ["ALTER TABLE target RENAME value TO number"],
        "column 'value' of public.target was renamed to 'number' after the rows were staged",
        ["ALTER TABLE target RENAME number TO value"],
    ),
    "renamed table": (
        ["ALTER TABLE target RENAME TO other"],
        "no longer exists",
        ["ALTER TABLE other RENAME TO target"],
    ),
    "another table": (
        ["ALTER TABLE target RENAME TO other", f"CREATE TABLE target ({_COLUMNS})"],
        "another table has its name",
        ["DROP TABLE target", "ALTER TABLE other RENAME TO target"],
    ),
    "required column": (
        ["ALTER TABLE target ADD more text NOT NULL"],
        'null value in column "more"',
        ["ALTER TABLE target ALTER more DROP NOT NULL"],
    ),
    "trigger": (
        [_REJECTING, "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION reject()"],
        "no thanks",
        ["DROP TRIGGER t ON target"],
    ),
    "trigger that ignores rows": (
        [_IGNORING, "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION ignore()"],
        "accepted only 0 of 10 rows",
        ["DROP TRIGGER t ON target"],
    ),
}
#: A restart that finds these changes is refused before its commit.
_REFUSALS = {
    "renamed table": (ConfigurationError, "table 'target' does not exist"),
    "another table": (RefusedStartError, "but now points to"),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_a_decided_batch_that_the_table_rejects_waits_until_the_cause_is_gone(
    change: str, database: str, connection: Connection, tmp_path: Path
) -> None:
    done, words, undone = _CHANGES[change]
    query = Query(case_of(database, _COLUMNS), tmp_path)
    crash_points.arm("driver.decided", lambda: run(connection, *done))
    blocked = (CommitBlockedError, words)
    for stop, said in (blocked, _REFUSALS.get(change, blocked)):
        with pytest.raises(stop, match=re.escape(said)):
            query.run(0)
        assert left_behind(database) == {"stages": 2, "slice": 2, "marker": 0}
    run(connection, *undone)
    query.run(0, 1)
    assert values(database) == all_rows(0, 1)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE target ADD more text DEFAULT 'x'",
        "ALTER TABLE target DROP note",
        "ALTER TABLE target RENAME note TO remark",
        "ALTER TABLE target ALTER value TYPE numeric",
        # At startup, the sink would refuse a table with such a change. The table still accepts the rows.
        "CREATE UNIQUE INDEX ON target (value)",
        "ALTER TABLE target ADD FOREIGN KEY (note) REFERENCES kinds",
    ],
)
def test_a_table_change_after_the_decision_does_not_block_a_batch_whose_rows_still_fit(
    change: str, database: str, connection: Connection
) -> None:
    case = case_of(database, _COLUMNS)
    run(connection, "CREATE TABLE kinds (kind text PRIMARY KEY)", "INSERT INTO kinds VALUES ('none')")
    driver = Driver(case.sink)
    scan_start = driver.begin()
    handles = [driver.prepare(numbers([1])), driver.prepare(numbers([2]), partition=1)]
    driver.committer.confirm(handles, 0)
    run(connection, change)
    assert set(driver.committer.commit(handles, scan_start).values()) == {Evidence.COMMITTED}, (
        driver.committer.blockers()
    )
    assert values(database) == [1, 2]


def test_rows_of_a_dropped_column_can_be_kept_although_nothing_can_publish_them(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    query = Query(case_of(database), tmp_path)
    crash_points.arm("driver.decided", lambda: run(connection, "ALTER TABLE target DROP value"))
    words = (
        r"column 'value' of public\.target was dropped after the rows were staged in (.*), (.*)\. Nothing can restore"
    )
    with pytest.raises(CommitBlockedError, match=words) as blocked:
        query.run(0)
    run(connection, "ALTER TABLE target ADD value bigint")
    with pytest.raises(CommitBlockedError, match=words):  # the new column may store something else
        query.run(0)
    advised = re.search(words, str(blocked.value))
    assert advised is not None
    for number, stage in enumerate(advised.groups()):
        run(connection, f"CREATE TABLE kept{number} AS TABLE {stage}")
    assert f"override=Abandon(0, '{QUERY_ID}')" in str(blocked.value)
    query.run(1, settings=Settings(overrides=Overrides(abandoned={Abandon(0, QUERY_ID)})))
    assert values(database) == all_rows(1)
    run(connection, "INSERT INTO target TABLE kept0 UNION ALL TABLE kept1")
    assert values(database) == all_rows(0, 1)


def test_a_start_says_that_an_override_was_not_needed_for_a_batch_that_is_visible_now(
    database: str, connection: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The user has copied the stages, because another session held a lock. Since then, the session has ended."""
    query = Query(case_of(database, timeout_ms=600), tmp_path)
    crash_points.arm("driver.decided", lambda: run(connection, "BEGIN", "LOCK TABLE target"))
    with pytest.raises(CommitBlockedError, match="lock timeout"):
        query.run(0)
    run(connection, "ROLLBACK")
    for batch in (0, 1):
        caplog.clear()
        query.run(batch, settings=Settings(overrides=Overrides(abandoned={Abandon(0, QUERY_ID)})))
        [said] = caplog.messages
        assert said.startswith(
            f"override=Abandon(0, {QUERY_ID!r}) was not needed in the sinks ['orders']: all rows of batch 0 "
        )
    assert values(database) == all_rows(0, 1)


def test_a_table_locked_by_another_session_delays_the_publish_until_the_restart(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = case_of(database, timeout_ms=600)
    query = Query(case, tmp_path)
    crash_points.arm("driver.decided", lambda: run(connection, "BEGIN", "LOCK TABLE target"))
    with pytest.raises(CommitBlockedError, match="lock timeout"):
        query.run(0)
    run(connection, "ROLLBACK")
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


# -- before the decision -----------------------------------------------------------------------------------------------


def test_a_table_altered_before_the_decision_receives_rows_that_fit_it(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = case_of(database)
    crash_points.arm("driver.prepared", lambda: run(connection, "ALTER TABLE target ADD note text DEFAULT 'new'"))
    query = Query(case, tmp_path)
    with pytest.raises(RetriableError, match="was altered while this batch was being written"):
        query.run(0, settings=Settings(max_attempts=1))
    assert case.visible() == []
    crash_points.arm("driver.prepared", lambda: run(connection, "ALTER TABLE target ADD remark text"))
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)
    assert values(database, "note") == ["new"] * len(all_rows(0, 1))


def test_an_alter_table_waits_for_a_running_task_but_reads_and_writes_do_not(
    database: str, connection: Connection
) -> None:
    sink = case_of(database).sink
    Driver(sink)
    writer = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, 1, -1))
    opened.append(writer)
    writer.write_rows(numbers([1]))
    run(connection, "SET lock_timeout = '50ms'", "INSERT INTO target VALUES (2)", "UPDATE target SET value = 3")
    with pytest.raises(Exception, match="lock timeout"):
        run(connection, "ALTER TABLE target ADD note text")
    writer.snapshot_state(0)
    run(connection, "SET lock_timeout = '5s'", "ALTER TABLE target ADD note text")


def test_a_table_altered_between_two_batches_receives_rows_that_fit_it(database: str, connection: Connection) -> None:
    driver = Driver(case_of(database).sink)
    for number in (1, 2):
        scan_start = driver.begin()
        assert driver.commit([driver.prepare(numbers([number]))], scan_start) == [Evidence.COMMITTED]
        run(connection, f"ALTER TABLE target ADD note{number} text NOT NULL DEFAULT '{number}'")
    assert connection.execute("TABLE target ORDER BY 1").fetchall() == [(1, "1", "2"), (2, "1", "2")]


def test_rows_that_fit_the_altered_table_no_longer_count_as_bad(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    case_of(database, "value smallint")
    sink, rows = sink_of(database), numbers([100_000])
    with pytest.raises(Exception, match="100000"):
        sink.check_rows(rows)
    run(connection, "ALTER TABLE target ALTER value TYPE bigint")
    monkeypatch.setattr("twopc.sinks.fresh._FRESH_S", 0.001)
    sink.check_rows(rows)


def test_a_recreated_table_is_refused_at_once_and_by_the_next_start(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = case_of(database)
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0)
    run(connection, "DROP TABLE target", "CREATE TABLE target (value bigint)")
    with pytest.raises(ConfigurationError, match="dropped and recreated"):
        query.continue_with(running, 1)
    with pytest.raises(RefusedStartError, match="table"):
        query.run(1)
    assert case.visible() == []


def test_a_query_continues_on_an_upgraded_server_which_has_a_new_identity_but_the_same_table(
    database: str, tmp_path: Path
) -> None:
    """pg_upgrade keeps every row and each table's object id. An older version of the toolkit also recorded the server."""
    case = case_of(database)
    query = Query(case, tmp_path)
    query.run(0)
    [recorded] = tmp_path.rglob("binding-*.json")
    bound = unseal(recorded.read_bytes(), Bound, of_format=BINDING_FORMAT)
    assert set(bound.sinks["orders"]) == {"id", "table"}
    upgraded = replace(bound, sinks={"orders": {**bound.sinks["orders"], "server": "7000000000000000000"}})
    recorded.write_bytes(seal(upgraded))
    query.run(1)
    assert case.visible() == all_rows(0, 1)


# -- a database that was restored --------------------------------------------------------------------------------------

_TABLES = ("target", "twopc.control", "twopc.slice", "twopc.marker")


def back_up(connection: Connection) -> None:
    """A backup of the database contains everything in it: the rows, the markers and the control record."""
    run(connection, *(f"CREATE TABLE {table.replace('.', '_')}_backup AS TABLE {table}" for table in _TABLES))


def put_back(connection: Connection) -> None:
    for table in _TABLES:
        run(connection, f"TRUNCATE {table}", f"INSERT INTO {table} TABLE {table.replace('.', '_')}_backup")


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_newest_batch_is_published_again_but_a_database_that_lost_more_is_refused(
    lost: int, database: str, connection: Connection, tmp_path: Path
) -> None:
    case = case_of(database)
    query = Query(case, tmp_path)
    for batch in range(4):
        if batch == 4 - lost:
            back_up(connection)
        query.run(batch)
    put_back(connection)
    if lost == 1:
        with pytest.raises(InDoubtError, match="Spark has moved past this batch"):
            query.run(4)
        query.run(3, 4)
        assert case.visible() == all_rows(0, 1, 2, 3, 4)
    else:
        for _ in range(2):
            with pytest.raises(RefusedStartError, match=r"older store: .*up to batch 3.* the store of sink 'orders'"):
                query.run(4)
        assert case.visible() == all_rows(0, 1)


def test_a_database_restored_to_a_state_before_a_takeover_is_refused_if_it_lacks_more_than_the_newest_batch(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    """The control record names the ended query again. Ending that query once more must not hide the loss."""
    case = case_of(database)
    Query(case, tmp_path / "ended").run(0)
    back_up(connection)
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    query = Query(case, tmp_path / "query", query_id="query-b")
    query.run(0, settings=ending)
    put_back(connection)
    query.run(0, settings=ending)  # only the newest batch was lost, so it is written again
    query.run(1)
    put_back(connection)
    for settings in (ending, None):
        with pytest.raises(
            RefusedStartError, match=r"older store: .*up to batch 1.* the store of sink 'orders'.*EndQuery\('query-a'\)"
        ):
            query.run(1, settings=settings)
    assert case.visible() == all_rows(0)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_database_that_returns_to_an_earlier_state_while_a_query_runs_stops_the_query(
    lost: int, database: str, connection: Connection, tmp_path: Path
) -> None:
    """A failover keeps the address. The next decision would hide the loss from every later start."""
    case = case_of(database)
    query = Query(case, tmp_path)
    running = query.start()
    for batch in range(4):
        if batch == 4 - lost:
            back_up(connection)
        query.continue_with(running, batch)
    put_back(connection)
    require_noticed("orders", lost, case, query, running)


def test_a_database_that_returns_to_an_earlier_state_after_a_decision_leaves_the_decided_batch_unpublished(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = case_of(database)
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0)
    back_up(connection)
    query.continue_with(running, 1)
    crash_points.arm("driver.decided", lambda: put_back(connection))
    with pytest.raises(CommitBlockedError, match=r"batch 2 is decided, .* was restored to an older state"):
        query.continue_with(running, 2)
    with pytest.raises(RefusedStartError, match="older store"):
        query.run(2)
    assert case.visible() == all_rows(0)
