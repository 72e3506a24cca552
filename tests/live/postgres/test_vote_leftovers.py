"""Votes that others left behind: a paused driver, another role, a dead driver that a statement waits for, a copied database."""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.live.postgres.support import case_of, committer_of, left_behind, new_role, run, sink_of, values
from tests.live.postgres.votes import confirmed, no_vote_is_left, prepared_of, votes
from twopc import crash_points
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows, close_opened

if TYPE_CHECKING:
    from tests.live.postgres.services import PostgresService

    Connection = psycopg.Connection[Any]

_DEPLOYMENT = Path(__file__).parents[3] / "docs" / "deployment.md"

__all__ = ["no_vote_is_left"]


def test_a_driver_with_staged_votes_also_rolls_back_a_late_vote(database: str, connection: Connection) -> None:
    """The setting was changed at a restart, and the previous driver was only paused."""
    case = case_of(database)
    loser = Driver(sink_of(database, vote="prepared"))
    loser.begin()
    handle = loser.prepare(numbers([1]))
    winner = Driver(case.sink)
    committer_of(winner)._sweep_votes([])
    committer_of(loser)._vote(handle.vote, [handle])
    assert votes(connection) == [handle.vote]
    winner.committer.recover_and_abort([])
    assert (votes(connection), left_behind(database)["slice"]) == ([], 0)


def test_a_vote_that_a_role_may_not_end_does_not_prevent_that_role_from_ending_the_others(
    database: str, connection: Connection
) -> None:
    case = prepared_of(database)
    confirmed(case.sink, 1)
    [theirs] = votes(connection)
    with new_role(database) as dsn:
        role = conninfo_to_dict(dsn)["user"]
        run(connection, f"GRANT ALL ON SCHEMA twopc TO {role}", f"GRANT ALL ON ALL TABLES IN SCHEMA twopc TO {role}")
        run(connection, f"GRANT ALL ON target TO {role}")
        driver, handle, _ = confirmed(sink_of(dsn, vote="prepared"), 2)
        assert votes(connection) == [theirs, handle.vote]
        driver.committer.recover_and_abort([])
        left = votes(connection)
        run(connection, *(f"ROLLBACK PREPARED '{name}'" for name in left))  # otherwise the role could not be dropped
    assert left == [theirs]


def test_the_documented_statement_lists_only_the_votes_of_the_sink_whose_data_is_deleted(
    database: str, connection: Connection
) -> None:
    """Another sink's name may begin with this sink's name. In another schema, a sink may even have the same name."""
    case = prepared_of(database)
    confirmed(case.sink, 1)
    [own] = votes(connection)
    confirmed(sink_of(database, name="orders-eu", vote="prepared"), 2)
    confirmed(sink_of(database, schema="other", vote="prepared"), 3)
    everyone = votes(connection)
    assert [name.startswith("twopc-orders-") for name in everyone] == [True] * 3
    [statement] = re.findall(r"`(SELECT x\.gid FROM pg_prepared_xacts x [^`]+)`", _DEPLOYMENT.read_text())
    found = [name for (name,) in connection.execute(statement.replace("<sink>", "orders"))]
    run(connection, *(f"ROLLBACK PREPARED '{name}'" for name in everyone))
    assert found == [own]


def test_a_statement_waiting_for_a_dead_drivers_vote_does_not_block_the_start_that_ends_the_vote(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    case = prepared_of(database)
    run(
        connection,
        "ALTER TABLE target ADD COLUMN made int DEFAULT 1 + 1, ADD CHECK (value >= 0)",
        "CREATE INDEX ON target ((value + 1)) WHERE value > 0",
    )
    confirmed(case.sink, *all_rows(0))
    with contextlib.closing(psycopg.connect(database, autocommit=True)) as other, ThreadPoolExecutor() as pool:
        altering = pool.submit(other.execute, "ALTER TABLE target ADD COLUMN more int")
        while not connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
            pass
        try:
            Query(case, tmp_path).run(0)
        finally:
            other.cancel()  # has no effect on a statement that has ended
        altering.result()
    assert case.visible() == all_rows(0)


def test_a_copied_database_on_the_same_server_has_its_own_votes(
    postgres_server: PostgresService, database: str, tmp_path: Path
) -> None:
    """The copy has the original's control record, table and checkpoint."""
    case = prepared_of(database)
    query = Query(case, tmp_path / "one")
    query.run(0)
    close_opened()
    copied = query.copied(tmp_path / "other")
    name = conninfo_to_dict(database)["dbname"]
    with contextlib.closing(psycopg.connect(postgres_server.dsn, autocommit=True)) as server:
        run(server, f'CREATE DATABASE "{name}_copy" TEMPLATE "{name}"')
        try:
            other = make_conninfo(database, dbname=f"{name}_copy")
            copied._case = replace(case, sink=sink_of(other, vote="prepared"), visible=lambda: values(other))

            def run_the_copy() -> None:
                copied.run(1)

            crash_points.arm("driver.confirmed", run_the_copy)
            query.run(1)
            assert (case.visible(), values(other)) == (all_rows(0, 1), all_rows(0, 1))
        finally:
            close_opened()
            run(server, f'DROP DATABASE "{name}_copy" WITH (FORCE)')
