"""`vote="prepared"`: what only the publish can check is checked before the decision, and a vote survives everything."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.live.one_task import apply, batch
from tests.live.postgres.proxy import LossyProxy
from tests.live.postgres.support import case_of, committer_of, left_behind, new_role, run, sink_of, values
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.errors import (
    BadRecordError,
    CommitBlockedError,
    ConfigurationError,
    FencedError,
    RefusedStartError,
    UnavailableError,
)
from twopc.integration.services.postgres import LocalPostgres
from twopc.testing.contract import Crash, numbers
from twopc.testing.contract.case import die
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twopc.sink import TwoPhaseCommitSink
    from twopc.testing.contract import Case

    Connection = psycopg.Connection[Any]

#: The rows of the first batch are 0 to 4 and 10 to 14. Each table rejects 13, for a reason that no stage sees. What makes the
#: table, why it is refused with staged votes, what is said before the decision with prepared ones, and the remedy.
_TABLES = {
    "trigger": (
        """CREATE TABLE target (value bigint);
        CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN IF NEW.value = 13 THEN RAISE 'no 13 here'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION reject()""",
        "the trigger t on target runs code at each INSERT",
        "no 13 here. A trigger or a function of the table rejects a row",
        "DROP TRIGGER t ON target",
    ),
    "foreign key": (
        """CREATE TABLE known (value bigint PRIMARY KEY);
        INSERT INTO known SELECT n FROM generate_series(0, 999) n WHERE n <> 13;
        CREATE TABLE target (value bigint REFERENCES known)""",
        "the foreign key target_value_fkey of target",
        r'violates foreign key constraint "target_value_fkey" \(Key \(value\)=\(13\) is not present in table "known"\)',
        "INSERT INTO known VALUES (13)",
    ),
    "unique index": (
        "CREATE TABLE target (value bigint, other text, UNIQUE (value)); INSERT INTO target VALUES (13, 'first')",
        "the unique index target_value_key on 'value' may reject a row",
        r"Key \(value\)=\(13\) already exists",
        "DELETE FROM target",
    ),
    "exclusion": (
        """CREATE TABLE target (value bigint, EXCLUDE USING gist (int8range(value, value, '[]') WITH &&));
        INSERT INTO target VALUES (13)""",
        "the exclusion constraint target_int8range_excl of target",
        "conflicts with existing key",
        "DELETE FROM target",
    ),
    "deferred": (
        "CREATE TABLE target (value bigint UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO target VALUES (13)",
        "the unique index target_value_key on 'value' may reject a row",
        r"Key \(value\)=\(13\) already exists",
        "DELETE FROM target",
    ),
    "partition": (
        """CREATE TABLE target (value bigint) PARTITION BY RANGE (value);
        CREATE TABLE low PARTITION OF target FOR VALUES FROM (0) TO (13);
        CREATE TABLE high PARTITION OF target FOR VALUES FROM (14) TO (999)""",
        "the partitioned table target has no default partition",
        'no partition of relation "target" found for row',
        "CREATE TABLE rest PARTITION OF target DEFAULT",
    ),
}


def prepared_of(dsn: str, columns: str = "value bigint UNIQUE", **arguments: Any) -> Case:
    """A case of the contract suite whose table only the publish can check."""
    return case_of(dsn, columns, vote="prepared", **arguments)


def votes(connection: Connection) -> list[str]:
    """The prepared transactions of the test's own database."""
    found = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1")
    return [name for (name,) in found]


@pytest.fixture(autouse=True)
def _no_vote_is_left(database: str) -> Iterator[None]:
    """Otherwise the test's database could not be dropped."""
    yield
    with contextlib.closing(psycopg.connect(database, autocommit=True)) as connection:
        left = votes(connection)
        for name in left:
            run(connection, f"ROLLBACK PREPARED '{name}'")
    assert left == []


@pytest.mark.parametrize("kind", _TABLES)
def test_what_only_the_publish_can_check_is_refused_at_the_start_or_before_the_decision(
    kind: str, database: str, connection: Connection, tmp_path: Path
) -> None:
    statements, staged, prepared, remedy = _TABLES[kind]
    case = case_of(database)
    run(connection, "DROP TABLE target", statements)
    before = values(database)
    with pytest.raises(ConfigurationError, match=rf"{staged}.*or pass vote='prepared'.*Nothing was written"):
        Query(case, tmp_path / "staged").run(0)
    case.sink = sink_of(database, vote="prepared", name="others")
    query = Query(case, tmp_path / "prepared")
    for _ in range(2):  # no decision, so each start may try again
        with pytest.raises(BadRecordError, match=rf"{prepared}.*No part of the batch is decided"):
            query.run(0)
    assert (case.visible(), votes(connection), left_behind(database)["stages"]) == (before, [], 0)
    run(connection, remedy)
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


def test_an_upsert_may_have_another_unique_index(database: str, connection: Connection) -> None:
    run(connection, "CREATE TABLE target (id bigint PRIMARY KEY, mail text UNIQUE, n bigint)")
    sink = sink_of(database, mode="upsert", key="id", vote="prepared")
    assert apply(sink, batch(id=[1, 2], mail=["a", "b"], n=[1, 1])) == [Evidence.COMMITTED]
    assert apply(sink, batch(id=[2, 3], mail=["b", "c"], n=[2, 2])) == [Evidence.COMMITTED]
    with pytest.raises(BadRecordError, match=r"Key \(mail\)=\(a\) already exists"):
        apply(sink, batch(id=[4], mail=["a"], n=[3]))
    assert connection.execute("TABLE target ORDER BY 1").fetchall() == [(1, "a", 1), (2, "b", 2), (3, "c", 2)]


def test_a_batch_has_one_vote_and_is_visible_at_one_instant(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = prepared_of(database)
    found: list[Any] = []

    def look() -> None:
        found.append((len(votes(connection)), case.visible()))

    for point in ("driver.prepared", "driver.confirmed", "driver.decided", "driver.committing"):
        crash_points.arm(point, look)
    Query(case, tmp_path).run(0)
    assert found == [(0, []), (1, []), (1, []), (0, all_rows(0))]


def test_somebody_who_alters_the_table_waits_for_the_batch(database: str, connection: Connection) -> None:
    """After the vote, nothing can take its yes back."""
    driver = Driver(prepared_of(database).sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers([1]))
    driver.committer.confirm([handle], 0)
    run(connection, "SET lock_timeout = '50ms'")
    with pytest.raises(Exception, match="lock timeout"):
        run(connection, "ALTER TABLE target ADD CHECK (value > 5)")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}


# -- the server --------------------------------------------------------------------------------------------------------


def test_a_server_without_prepared_transactions_is_refused_by_name(older_connection: Connection) -> None:
    info = older_connection.info
    run(older_connection, "CREATE TABLE target (value bigint)")
    sink = sink_of(f"{info.dsn} password={info.password}", vote="prepared")
    with pytest.raises(ConfigurationError, match=r"max_prepared_transactions is 0.*ALTER SYSTEM SET max_prepared"):
        Driver(sink)


def test_a_server_without_a_free_slot_is_an_error_of_the_attempt() -> None:
    with LocalPostgres(options={"max_prepared_transactions": "1"}) as server:
        case = prepared_of(server.dsn)
        server.execute("CREATE TABLE other (value bigint)")
        with contextlib.closing(server.connect()) as other:
            run(other, "BEGIN", "INSERT INTO other VALUES (1)", "PREPARE TRANSACTION 'mine'")
            driver = Driver(case.sink)
            scan_start = driver.begin()
            handle = driver.prepare(numbers([1]))
            with pytest.raises(UnavailableError, match=r"maximum number.*raise max_prepared_transactions"):
                driver.committer.confirm([handle], 0)
            run(other, "ROLLBACK PREPARED 'mine'")
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("NOTIFY orders; RETURN NEW;", ConfigurationError, "LISTEN, UNLISTEN, or NOTIFY.*no trigger may use NOTIFY"),
        ("CREATE TEMP TABLE x (n int); RETURN NEW;", ConfigurationError, "temporary objects.*no trigger may use"),
        ("RETURN NULL;", BadRecordError, "took 0 of 1 rows: a trigger or a rule leaves some out"),
    ],
)
def test_a_trigger_that_no_prepared_transaction_can_have_is_refused_before_the_decision(
    body: str, error: type[Exception], words: str, database: str, connection: Connection
) -> None:
    case = prepared_of(database, "value bigint")
    run(
        connection,
        f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
        "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()",
    )
    with pytest.raises(error, match=words):
        apply(case.sink, numbers([1]))
    assert (case.visible(), votes(connection)) == ([], [])


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["driver.confirmed", "driver.deciding", "driver.decided", "driver.committing"])
def test_a_killed_server_keeps_the_vote(
    point: str, local_postgres: LocalPostgres, database: str, tmp_path: Path
) -> None:
    case = prepared_of(database)

    def kill() -> None:
        local_postgres.kill()
        local_postgres.start()

    query = Query(case, tmp_path)
    query.run(0)
    crash_points.arm(point, kill)
    query.run(1)
    query.run(2)
    assert case.visible() == all_rows(0, 1, 2)


def test_a_vote_without_a_decision_is_rolled_back_by_the_next_start(database: str, tmp_path: Path) -> None:
    """Its rows have the same keys, so the first batch would wait for it for ever."""
    case = prepared_of(database)
    confirmed(case.sink, *all_rows(0))
    Query(case, tmp_path).run(0)
    assert case.visible() == all_rows(0)


def test_the_next_start_commits_a_decided_vote_even_without_its_stages(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = prepared_of(database)
    query = Query(case, tmp_path)
    crash_points.arm("driver.decided", die)
    with pytest.raises(Crash):
        query.run(0)
    run(connection, "DELETE FROM twopc.slice")
    crash_points.arm("driver.recovered", die)
    with pytest.raises(Crash):
        query.run(0)
    assert case.visible() == all_rows(0)


@pytest.mark.parametrize("more", [[], ["DELETE FROM twopc.slice"]], ids=["staged", "lost"])
def test_a_decided_vote_that_somebody_rolled_back_is_published_from_its_stages_or_repaired(
    more: list[str], database: str, connection: Connection, tmp_path: Path
) -> None:
    case = prepared_of(database)

    def lose() -> None:
        run(connection, *(f"ROLLBACK PREPARED '{name}'" for name in votes(connection)), *more)

    crash_points.arm("driver.decided", lose)
    Query(case, tmp_path).run(0, 1)
    assert case.visible() == all_rows(0, 1)


@pytest.mark.parametrize("statement", ["PREPARE TRANSACTION", "COMMIT PREPARED", "ROLLBACK PREPARED"])
def test_rows_are_visible_once_although_the_answer_about_a_vote_is_lost(
    statement: str, database: str, tmp_path: Path
) -> None:
    case = prepared_of(database)
    with LossyProxy(database) as proxy:
        case.sink = sink_of(proxy.dsn, vote="prepared")
        query = Query(case, tmp_path)
        if statement.startswith("ROLLBACK"):
            confirmed(case.sink, 99)
        proxy.lose_answer_to(statement)
        query.run(0)
        assert proxy.lost == 1
        query.run(1)
    assert case.visible() == all_rows(0, 1)


@pytest.mark.parametrize(("before", "after"), [("prepared", "staged"), ("staged", "prepared")])
def test_the_vote_may_be_another_one_after_a_restart(before: Any, after: Any, database: str, tmp_path: Path) -> None:
    case = case_of(database)
    for number, point in enumerate(("driver.decided", "driver.confirmed")):
        case.sink = sink_of(database, vote=before)
        crash_points.arm(point, die)
        with pytest.raises(Crash):
            Query(case, tmp_path).run(number)
        case.sink = sink_of(database, vote=after)
        Query(case, tmp_path).run(number)
    assert case.visible() == all_rows(0, 1)


def test_another_role_may_not_end_a_vote_and_says_so_until_the_former_one_is_back(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = prepared_of(database)
    query = Query(case, tmp_path)
    crash_points.arm("driver.decided", die)
    with pytest.raises(Crash):
        query.run(0)
    with new_role(database) as dsn:
        role = conninfo_to_dict(dsn)["user"]
        run(connection, f"GRANT ALL ON SCHEMA twopc TO {role}", f"GRANT ALL ON ALL TABLES IN SCHEMA twopc TO {role}")
        run(connection, f"GRANT ALL ON target TO {role}")
        former, case.sink = case.sink, sink_of(dsn, vote="prepared")
        with pytest.raises(CommitBlockedError, match="permission denied to finish prepared transaction"):
            query.run(0)
        case.sink = former
        query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


# -- other drivers -----------------------------------------------------------------------------------------------------


def confirmed(sink: TwoPhaseCommitSink[Any], *rows: int) -> tuple[Driver, Any, Any]:
    """A driver that has a vote and no decision."""
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers(rows))
    driver.committer.confirm([handle], 0)
    return driver, handle, scan_start


def test_a_fenced_driver_commits_no_vote_although_nobody_has_swept_it_yet(database: str) -> None:
    """On a copy of the checkpoint, it may have decided."""
    case = prepared_of(database)
    loser, handle, scan_start = confirmed(case.sink, 1)
    winner = Driver(case.sink)
    with pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    winner.committer.recover_and_abort([])
    assert case.visible() == []


def test_a_start_from_an_older_copy_sees_a_decision_whose_driver_died_right_after_the_vote_was_committed(
    database: str, tmp_path: Path
) -> None:
    case = prepared_of(database)
    query = Query(case, tmp_path / "one")
    running = query.start()
    query.continue_with(running, 0)
    older = query.copied(tmp_path / "other")
    crash_points.arm("driver.committing", die)
    with pytest.raises(Crash):
        query.continue_with(running, 1)
    with pytest.raises(RefusedStartError, match="older copy"):
        older.run(1)
    query.run(1, 2)
    assert case.visible() == all_rows(0, 1, 2)


def test_a_fenced_drivers_late_vote_is_rolled_back_by_the_next_sweep(database: str, connection: Connection) -> None:
    case = prepared_of(database)
    loser = Driver(case.sink)
    loser.begin()
    handle = loser.prepare(numbers([1]))
    winner = Driver(case.sink)
    committer_of(loser)._vote(handle.vote, [handle])
    assert votes(connection) == [handle.vote]
    winner.committer.recover_and_abort([])
    assert (votes(connection), left_behind(database)["slice"]) == ([], 0)


def test_a_fenced_driver_rolls_back_no_vote_of_its_successor(database: str) -> None:
    case = prepared_of(database)
    loser = Driver(case.sink)
    winner, handle, scan_start = confirmed(case.sink, 1)
    loser.committer.recover_and_abort([])
    assert winner.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}


def test_a_fenced_driver_rolls_back_its_own_vote(database: str, connection: Connection) -> None:
    """Its successor may have swept already, and would find the vote's locks in its next batch."""
    case = prepared_of(database)
    loser, handle, _ = confirmed(case.sink, 1)
    Driver(case.sink)
    loser.committer.abort([handle])
    assert votes(connection) == []


def test_a_vote_of_a_dead_driver_holds_back_no_decided_batch(database: str) -> None:
    """It has the lock of a key that the decided batch needs, too."""
    case = prepared_of(database, "value bigint PRIMARY KEY", mode="upsert", key="value")
    former = Driver(sink_of(database, mode="upsert", key="value"))
    scan_start = former.begin()
    decided = former.prepare(numbers([1]))
    confirmed_too = Driver(case.sink)
    confirmed_too.begin()
    confirmed_too.committer.confirm([confirmed_too.prepare(numbers([1]))], 0)
    driver = Driver(sink_of(database, mode="upsert", key="value", timeout_ms=2_000))
    assert driver.committer.initialize_state([decided], scan_start) == {decided: Evidence.COMMITTED}
    assert case.visible() == [1]


def test_a_sink_sweeps_no_vote_of_another_sink(database: str) -> None:
    case = prepared_of(database)
    one, handle, scan_start = confirmed(case.sink, 1)
    other = Driver(sink_of(database, name="orders-2", vote="prepared"))
    other.committer.recover_and_abort([])
    assert one.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}


def test_a_slice_that_was_given_up_meanwhile_gets_no_vote(database: str, connection: Connection) -> None:
    driver = Driver(prepared_of(database).sink)
    driver.begin()
    handle = driver.prepare(numbers([1]))
    committer = committer_of(driver)
    with committer.driving() as step:
        committer.roll_back(step, handle.transaction, 1)
    with pytest.raises(Exception, match=r"a slice is gone\. Nothing was decided"):
        committer._vote(handle.vote, [handle])
    assert (votes(connection), values(database)) == ([], [])


def test_a_name_of_a_vote_fits_the_server(database: str) -> None:
    case = prepared_of(database)
    long = sink_of(database, name="n" * 100, vote="prepared")
    driver = Driver(long)
    assert driver.commit([driver.prepare(pa.record_batch({"value": pa.array([1], pa.int64())}))], driver.begin()) == [
        Evidence.COMMITTED
    ]
    assert case.visible() == [1]
