"""A connection pooler that gives each transaction another session of the server: pgbouncer in transaction mode."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.live.one_task import batch
from tests.live.postgres.pooler import PROGRAM, SESSIONS, LocalPooler
from tests.live.postgres.services import OPTIONS
from tests.live.postgres.support import case_of, left_behind, new_database, sink_of, values
from twopc.attempt import Evidence
from twopc.integration.services.postgres import LocalPostgres
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twopc.sinks.postgres.publishing import Vote

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")

VOTES = ["staged", "prepared"]


@pytest.fixture(scope="module")
def pooled() -> Iterator[tuple[LocalPostgres, LocalPooler]]:
    with LocalPostgres(options=OPTIONS) as server, LocalPooler(server) as pooler:
        yield server, pooler


@pytest.fixture
def databases(pooled: tuple[LocalPostgres, LocalPooler]) -> Iterator[tuple[str, str]]:
    """The connection strings of a new database: of the server, and through the pooler."""
    server, pooler = pooled
    with new_database(server.dsn) as direct:
        yield direct, pooler.dsn_of(direct)


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("point", ["task.prepared", "driver.decided", "driver.committing", "driver.committed"])
def test_a_crash_at_any_point_neither_loses_nor_doubles_a_row_through_a_pooler(
    databases: tuple[str, str], tmp_path: Path, vote: Vote, point: str
) -> None:
    direct, through = databases
    case = case_of(direct, vote=vote)
    object.__setattr__(case, "sink", sink_of(through, vote=vote))
    query = Query(case, tmp_path)
    query.run(0)
    assert query.run_until(point, 1)
    query.finish(1, 2)
    assert values(direct) == all_rows(0, 1, 2)
    assert left_behind(direct)["stages"] == 0


@pytest.mark.parametrize("vote", VOTES)
def test_tasks_at_the_same_time_share_the_poolers_sessions(databases: tuple[str, str], vote: Vote) -> None:
    direct, through = databases
    case_of(direct)
    driver = Driver(sink_of(through, vote=vote))
    scan_start = driver.begin()
    count = 4 * SESSIONS
    with ThreadPoolExecutor(count) as pool:
        handles = list(pool.map(lambda n: driver.prepare(batch(value=[n]), partition=n), range(count)))
    assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * count
    assert values(direct) == list(range(count))
