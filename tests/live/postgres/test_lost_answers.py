"""The server has committed, but the response is lost. Whichever step this affects, each row is visible once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.postgres.proxy import LossyProxy
from tests.live.postgres.support import case_of, left_behind, sink_of
from twopc import crash_points
from twopc.attempt import Claim, Evidence
from twopc.errors import FencedError, UnavailableError
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from twopc.integration.services.postgres import LocalPostgres
    from twopc.testing.contract import Case


@pytest.fixture
def proxy(database: str) -> Iterator[LossyProxy]:
    with LossyProxy(database) as started:
        yield started


@pytest.fixture
def case(database: str, proxy: LossyProxy) -> Case:
    """Its sink connects through the proxy, and its reader does not."""
    made = case_of(database)
    made.sink = sink_of(proxy.dsn)
    return made


_PUBLISH = "'committed' FROM pg_catalog.unnest"
#: For each step, a part of its statement, and whether losing the statement's response fails the start.
_STEPS = {
    "creation": ("CREATE INDEX IF NOT EXISTS marker_of_sink", True),
    "acquisition": ('INSERT INTO "twopc".control', True),
    "pre-commit": ('INSERT INTO "twopc".slice', False),
    "publish": (_PUBLISH, False),
    "drop": ("DROP TABLE", False),
}


@pytest.mark.parametrize("step", _STEPS)
def test_rows_are_visible_once_although_the_response_to_a_commit_is_lost(
    step: str, case: Case, proxy: LossyProxy, database: str, tmp_path: Path
) -> None:
    statement, fails = _STEPS[step]
    query = Query(case, tmp_path)
    proxy.lose_commit_of(statement)
    with pytest.raises(UnavailableError) if fails else contextlib.nullcontext():
        query.run(0)
    assert proxy.lost == 1
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)
    assert {left_behind(database)[kind] for kind in ("stages", "slice")} == {0}


def test_an_attempt_whose_beginning_got_no_response_begins_again(case: Case, proxy: LossyProxy, tmp_path: Path) -> None:
    crash_points.arm("driver.recovered", lambda: proxy.lose_commit_of('UPDATE "twopc".control'))
    Query(case, tmp_path).run(0, 1)
    assert (proxy.lost, case.visible()) == (1, all_rows(0, 1))


def test_an_acquisition_repeated_after_a_lost_response_fences_no_newer_driver(case: Case, proxy: LossyProxy) -> None:
    first, second = Claim("query-a", "run-1", "registers"), Claim("query-a", "run-2", "registers")
    with contextlib.closing(case.sink.create_committer()) as loser:
        seen = loser.inspect()
        proxy.lose_commit_of('INSERT INTO "twopc".control')
        with pytest.raises(UnavailableError):
            loser.acquire(first, seen)
        with contextlib.closing(case.sink.create_committer()) as winner:
            found = winner.inspect()
            driver_epoch = winner.acquire(second, found)
            with pytest.raises(FencedError):
                loser.acquire(first, seen)
            assert winner.acquire(second, found) == driver_epoch


def test_a_publish_without_a_response_is_proven_by_its_marker(case: Case, proxy: LossyProxy) -> None:
    driver = Driver(case.sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers([1, 2]))
    proxy.lose_commit_of(_PUBLISH)
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert (proxy.lost, case.visible()) == (1, [1, 2])


# -- a server that dies ------------------------------------------------------------------------------------------------

_SAMPLE = {"task.written", "driver.prepared", "driver.decided", "driver.committing"}


@pytest.mark.parametrize(
    "point",
    [point if point in _SAMPLE else pytest.param(point, marks=pytest.mark.whole) for point in crash_points.POINTS],
)
def test_a_killed_server_loses_and_duplicates_nothing(
    point: str, local_postgres: LocalPostgres, database: str, tmp_path: Path
) -> None:
    case = case_of(database)
    struck: list[str] = []

    def kill() -> None:
        local_postgres.kill()
        local_postgres.start()
        struck.append(point)

    query = Query(case, tmp_path)
    query.run(0)
    crash_points.arm(point, kill)
    with contextlib.suppress(UnavailableError):  # if the server died in the middle of a transaction
        query.run(1)
    query.run(1, 2)
    assert struck == [point]
    assert case.visible() == all_rows(0, 1, 2)
    assert {left_behind(database)[kind] for kind in ("stages", "slice")} == {0}


def end_sessions(connection: psycopg.Connection[Any]) -> None:
    """End every session of the sink."""
    connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'twopc/orders'")


def test_a_connection_that_closed_while_it_was_idle_costs_no_attempt(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """A pool, a firewall or a short restart of the server may end it, while the tasks compute their rows."""
    case = case_of(database)

    query = Query(case, tmp_path)
    for point in ("driver.fenced", "driver.recovered", "driver.prepared", "driver.decided", "driver.committed"):
        crash_points.arm(point, lambda: end_sessions(connection))
    query.run(0, 1)
    assert not any(map(crash_points.is_armed, crash_points.POINTS))
    assert case.visible() == all_rows(0, 1)


def test_a_publish_whose_backend_is_terminated_is_repeated_at_once(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    case = case_of(database)

    crash_points.arm("driver.committing", lambda: end_sessions(connection))
    Query(case, tmp_path).run(0, 1)
    assert case.visible() == all_rows(0, 1)
