"""With `vote="prepared"`, the publish checks the rows before the decision. These tests show what a user sees with each vote."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.live.one_task import Tasks, apply, batch
from tests.live.postgres.support import case_of, left_behind, run, sink_of, values
from tests.live.postgres.votes import confirmed, no_vote_is_left, prepared_of, votes
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.coordinator import Coordinator
from twopc.errors import (
    BadRecordError,
    ConfigurationError,
    RetriableError,
    SchemaError,
    UnavailableError,
)
from twopc.files import LocalFiles
from twopc.integration.services.postgres import LocalPostgres
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows, batch_of, opened

if TYPE_CHECKING:
    from pathlib import Path

    Connection = psycopg.Connection[Any]

__all__ = ["no_vote_is_left"]

#: The rows of the first batch are 0 to 4 and 10 to 14. Each table rejects 13, for a reason that no stage detects. Each
#: entry contains the statements that create the table, the reason why staged votes refuse it, the message that prepared
#: votes give before the decision, and the remedy.
_TABLES = {
    "trigger": (
        """CREATE TABLE target (value bigint);
        CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN IF NEW.value = 13 THEN RAISE 'no 13 here'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION reject()""",
        "the trigger t on target runs code on every INSERT",
        "no 13 here. One of the table's triggers or functions rejected a row",
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


@pytest.mark.parametrize("kind", _TABLES)
def test_a_rule_that_only_the_publish_can_check_is_refused_at_the_start_or_before_the_decision(
    kind: str, database: str, connection: Connection, tmp_path: Path
) -> None:
    statements, staged, prepared, remedy = _TABLES[kind]
    case = case_of(database)
    run(connection, "DROP TABLE target", statements)
    before = values(database)
    with pytest.raises(ConfigurationError, match=rf"{staged}.*Or pass vote='prepared'.*Nothing was written"):
        Query(case, tmp_path / "staged").run(0)
    case.sink = sink_of(database, vote="prepared", name="others")
    query = Query(case, tmp_path / "prepared")
    for _ in range(2):  # nothing is decided, so each start may try again
        with pytest.raises(BadRecordError, match=rf"{prepared}.*No part of this attempt is decided"):
            query.run(0)
    assert (case.visible(), votes(connection), left_behind(database)["stages"]) == (before, [], 0)
    run(connection, remedy)
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


def test_an_upsert_to_a_table_with_another_unique_index_is_accepted(database: str, connection: Connection) -> None:
    run(connection, "CREATE TABLE target (id bigint PRIMARY KEY, mail text UNIQUE, n bigint)")
    sink = sink_of(database, mode="upsert", key="id", vote="prepared")
    assert apply(sink, batch(id=[1, 2], mail=["a", "b"], n=[1, 1])) == [Evidence.COMMITTED]
    assert apply(sink, batch(id=[2, 3], mail=["b", "c"], n=[2, 2])) == [Evidence.COMMITTED]
    with pytest.raises(BadRecordError, match=r"Key \(mail\)=\(a\) already exists"):
        apply(sink, batch(id=[4], mail=["a"], n=[3]))
    assert connection.execute("TABLE target ORDER BY 1").fetchall() == [(1, "a", 1), (2, "b", 2), (3, "c", 2)]


def test_a_batch_has_one_vote_and_becomes_visible_at_one_instant(
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


def test_a_batch_is_published_although_confirming_all_sinks_takes_long(
    database: str, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the driver confirms every sink again. The vote must not wait for its own prepared transaction."""
    monkeypatch.setattr("twopc.participants._LONG_CONFIRM_S", 0)
    run(connection, "CREATE TABLE target (value bigint UNIQUE)", "CREATE TABLE others (value bigint)")
    sinks = [sink_of(database, vote="prepared", timeout_ms=1_000), sink_of(database, "others", name="others")]
    coordinator = Coordinator(sinks, LocalFiles(tmp_path))
    opened.append(coordinator)
    coordinator.process(batch_of(0), Tasks(sinks, numbers([1, 2]), numbers([3])))
    assert (values(database), votes(connection)) == ([1, 2, 3], [])
    assert connection.execute("SELECT count(*) FROM others").fetchone() == (3,)


def test_a_vote_that_is_gone_from_the_server_is_not_confirmed_again(database: str, connection: Connection) -> None:
    driver, handle, scan_start = confirmed(prepared_of(database).sink, 1)
    run(connection, f"ROLLBACK PREPARED '{handle.vote}'")
    with pytest.raises(
        RetriableError, match=r"the prepared transaction twopc-orders-.* was rolled back.*Nothing was decided"
    ):
        driver.committer.confirm([handle], 0)
    assert votes(connection) == []
    driver.committer.abort([handle])
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.ABORTED}


def test_a_vote_is_confirmed_again_while_an_alter_table_waits_for_it(database: str, connection: Connection) -> None:
    driver, handle, scan_start = confirmed(prepared_of(database, timeout_ms=2_000).sink, 1)
    with contextlib.closing(psycopg.connect(database, autocommit=True)) as other, ThreadPoolExecutor() as pool:
        waiting = pool.submit(run, other, "SET lock_timeout = '20s'", "ALTER TABLE target ADD note text")
        while not connection.execute(
            "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'target'::regclass"
        ).fetchone():
            assert not waiting.done()
        driver.committer.confirm([handle], 0)
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
        waiting.result()


def test_an_alter_table_waits_for_the_batch(database: str, connection: Connection) -> None:
    """After the vote, nothing can revoke it."""
    driver = Driver(prepared_of(database).sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers([1]))
    driver.committer.confirm([handle], 0)
    run(connection, "SET lock_timeout = '50ms'")
    with pytest.raises(Exception, match="lock timeout"):
        run(connection, "ALTER TABLE target ADD CHECK (value > 5)")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}


def test_two_sinks_do_not_see_each_others_rows_before_the_decision(database: str, connection: Connection) -> None:
    """So a foreign key between the tables rejects rows whose counterparts are in the same batch."""
    run(connection, "CREATE TABLE people (id bigint PRIMARY KEY)")
    run(connection, "CREATE TABLE target (id bigint REFERENCES people)")
    people, target = (Driver(sink_of(database, table, name=table, vote="prepared")) for table in ("people", "target"))
    scan_starts = [driver.begin() for driver in (people, target)]
    parent, child = (driver.prepare(batch(id=[1])) for driver in (people, target))
    people.committer.confirm([parent], 0)
    with pytest.raises(BadRecordError, match=r'\(id\)=\(1\) is not present in table "people"'):
        target.committer.confirm([child], 0)
    assert people.committer.commit([parent], scan_starts[0]) == {parent: Evidence.COMMITTED}
    assert target.commit([child], scan_starts[1]) == [Evidence.COMMITTED]


def test_two_sinks_that_write_the_same_key_cannot_both_vote(database: str, connection: Connection) -> None:
    run(connection, "CREATE TABLE target (id bigint PRIMARY KEY)")
    one, other = (
        Driver(sink_of(database, name=name, mode="upsert", key="id", vote="prepared", timeout_ms=1_000))
        for name in ("one", "other")
    )
    scan_starts = [driver.begin() for driver in (one, other)]
    handles = [driver.prepare(batch(id=[1])) for driver in (one, other)]
    one.committer.confirm([handles[0]], 0)
    with pytest.raises(
        UnavailableError, match=r"a prepared transaction holds a conflicting lock: see .*pg_prepared_xacts"
    ):
        other.committer.confirm([handles[1]], 0)
    one.committer.commit([handles[0]], scan_starts[0])
    assert other.commit([handles[1]], scan_starts[1]) == [Evidence.COMMITTED]


def test_the_table_checks_a_row_only_after_a_trigger_has_changed_it(database: str, connection: Connection) -> None:
    """The stage would reject these rows if it had the table's constraint or its computed columns."""
    run(
        connection,
        """CREATE TABLE target (mail text CHECK (mail = lower(mail)), id bigint GENERATED ALWAYS AS IDENTITY,
          double bigint GENERATED ALWAYS AS (id * 2) STORED NOT NULL,
          share int GENERATED ALWAYS AS (100 / length(mail)) STORED NOT NULL)""",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.mail = lower(coalesce(nullif(NEW.mail, ''), 'none')); RETURN NEW; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()",
    )
    sink = sink_of(database, vote="prepared")
    assert apply(sink, batch(mail=["A@b.c", ""])) == [Evidence.COMMITTED]
    assert connection.execute("TABLE target ORDER BY 2").fetchall() == [("a@b.c", 1, 2, 20), ("none", 2, 4, 25)]
    run(connection, "DROP TRIGGER t ON target")
    with pytest.raises(BadRecordError, match=r"target_mail_check.*No part of this attempt is decided"):
        apply(sink, batch(mail=["A"]))


def test_a_trigger_that_fills_in_a_required_column_runs_too_late(database: str, connection: Connection) -> None:
    run(
        connection,
        "CREATE TABLE target (id bigint, n int NOT NULL)",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.n = 1; RETURN NEW; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()",
    )
    sink = sink_of(database, vote="prepared")
    with pytest.raises(SchemaError, match="has no column 'n'"):
        apply(sink, batch(id=[1]))
    run(connection, "ALTER TABLE target ALTER n SET DEFAULT 0")
    assert apply(sink, batch(id=[1])) == [Evidence.COMMITTED]
    assert connection.execute("TABLE target").fetchall() == [(1, 1)]


# -- the server --------------------------------------------------------------------------------------------------------


def test_a_server_without_prepared_transactions_is_rejected_with_an_error_that_says_so(
    older_connection: Connection,
) -> None:
    info = older_connection.info
    run(older_connection, "CREATE TABLE target (value bigint)")
    sink = sink_of(f"{info.dsn} password={info.password}", vote="prepared")
    with pytest.raises(ConfigurationError, match=r"max_prepared_transactions is 0.*ALTER SYSTEM SET max_prepared"):
        Driver(sink)


def test_a_server_without_a_free_slot_fails_only_the_attempt() -> None:
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
        ("RETURN NULL;", BadRecordError, "accepted only 0 of 1 rows: a trigger or a rule dropped the other rows"),
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
