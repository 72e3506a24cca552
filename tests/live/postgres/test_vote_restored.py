"""`vote="prepared"` and a failover that loses the COMMIT PREPARED of a decided batch: the vote is then prepared again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.live.postgres.support import run
from tests.live.postgres.votes import no_vote_is_left, prepared_of, votes
from twopc import control, crash_points
from twopc.attempt import Claim, Evidence
from twopc.errors import CommitBlockedError, RestoredError
from twopc.override import Abandon, Overrides
from twopc.settings import Settings
from twopc.sinks.postgres.votes import finish_votes
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from twopc.coordinator import Coordinator
    from twopc.testing.contract import Case

    Connection = psycopg.Connection[Any]

__all__ = ["no_vote_is_left"]

_FINISH = "twopc.sinks.postgres.committer.finish_votes"


@pytest.fixture
def restore(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Restore the database to a moment after a batch's decision was recorded and before its COMMIT PREPARED."""
    found: list[Any] = []

    def finishing(database: Any, names: Any, how: Any) -> Iterator[str]:
        if how == "COMMIT":
            [record] = connection.execute("SELECT record FROM twopc.control").fetchall()
            found[:] = [record, *names]
        yield from finish_votes(database, names, how)

    monkeypatch.setattr(_FINISH, finishing)

    def restored(batch: int) -> None:
        record, vote = found
        run(connection, *(f"ROLLBACK PREPARED '{name}'" for name in votes(connection)), "DELETE FROM twopc.slice")
        rows = connection.execute(
            "DELETE FROM target WHERE value BETWEEN %s AND %s RETURNING value", [batch * 100, batch * 100 + 99]
        ).fetchall()
        newest = "DELETE FROM twopc.marker WHERE version = (SELECT max(version) FROM twopc.marker) RETURNING *"
        markers = connection.execute(newest).fetchall()
        assert (len(rows), len(markers)) == (10, 2)
        connection.execute("UPDATE twopc.control SET record = %s", record)
        connection.execute("BEGIN")
        for row in rows:
            connection.execute("INSERT INTO target VALUES (%s)", row)
        for marker in markers:
            connection.execute("INSERT INTO twopc.marker VALUES (%s, %s, %s, %s)", marker)
        run(connection, f"PREPARE TRANSACTION '{vote}'")

    return restored


def begun(database: str, directory: Path) -> tuple[Case, Query, Coordinator]:
    """Write batches 0 and 1 with prepared votes. Return the case, the query, and its running driver."""
    case = prepared_of(database)
    query = Query(case, directory)
    running = query.start()
    query.continue_with(running, 0, 1)
    return case, query, running


def test_a_running_query_notices_that_a_committed_vote_is_open_again(
    database: str, tmp_path: Path, restore: Callable[[int], None]
) -> None:
    case, query, running = begun(database, tmp_path)
    restore(1)
    with pytest.raises(RestoredError, match="its store was restored to an older state"):
        query.continue_with(running, 2)
    assert case.visible() == all_rows(0)
    query.run(2)
    assert case.visible() == all_rows(0, 1, 2)


def test_a_start_commits_an_open_vote_whose_decision_is_older_than_the_last_one(
    database: str, tmp_path: Path, restore: Callable[[int], None]
) -> None:
    case, query, running = begun(database, tmp_path)
    crash_points.arm("driver.decided", lambda: restore(1))
    with pytest.raises(CommitBlockedError, match="was restored to an older state"):
        query.continue_with(running, 2)
    query.run(2, 3)
    assert case.visible() == all_rows(0, 1, 2, 3)


def test_a_start_continues_if_a_failover_lost_everything_after_a_votes_commit(
    database: str, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step after COMMIT PREPARED is lost, but no row is."""
    records: list[Any] = []

    def finishing(database: Any, names: Any, how: Any) -> Iterator[str]:
        yield from finish_votes(database, names, how)
        if how == "COMMIT":
            records[:] = connection.execute("SELECT record FROM twopc.control").fetchall()

    monkeypatch.setattr(_FINISH, finishing)
    case, query, running = begun(database, tmp_path)

    def restore() -> None:
        connection.execute("UPDATE twopc.control SET record = %s", records[0])

    crash_points.arm("driver.decided", restore)
    with pytest.raises(CommitBlockedError, match="was restored to an older state"):
        query.continue_with(running, 2)
    query.run(2, 3)
    assert case.visible() == all_rows(0, 1, 2, 3)


def test_another_query_commits_an_open_vote_whose_decision_is_older_than_the_last_one(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = prepared_of(database)
    driver = Driver(case.sink)
    older, lost = driver.begin(), driver.prepare(numbers([1]))
    with monkeypatch.context() as patch:
        patch.setattr(_FINISH, unanswered)
        assert driver.commit([lost], older) == [Evidence.UNKNOWN]
    assert len(votes(connection)) == 1
    scan_start = driver.begin()
    newest = driver.prepare(numbers([2]))
    driver.committer.confirm([newest], 0)
    other = case.sink.create_committer()
    opened.append(other)
    other.acquire(Claim("query-b", "run-b", "log"), other.inspect())
    assert other.initialize_state([newest], scan_start, is_own=False) == {newest: Evidence.COMMITTED}
    assert case.visible() == [1, 2]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_batch_counts_as_proven_before_its_votes_commit_unless_the_vote_is_gone(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, *, is_gone: bool
) -> None:
    driver = Driver(prepared_of(database).sink)
    scan_start, handle = driver.begin(), driver.prepare(numbers([1]))
    driver.committer.confirm([handle], 0)
    if is_gone:
        run(connection, *(f"ROLLBACK PREPARED '{name}'" for name in votes(connection)))
    with monkeypatch.context() as patch:
        patch.setattr(_FINISH, unanswered)
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    [(stored,)] = connection.execute("SELECT record FROM twopc.control").fetchall()
    assert control.decode(stored).proven == (0 if is_gone else scan_start["base"])
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}


def unanswered(_database: Any, _names: Any, how: Any) -> Iterator[str]:
    if how == "COMMIT":
        raise psycopg.OperationalError("no answer")
    yield from ()


def test_the_vote_of_an_abandoned_batch_is_rolled_back(
    database: str, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control record names the vote's decision, just as for a vote that must be committed."""
    case = prepared_of(database)
    query = Query(case, tmp_path)
    query.run(0)
    doomed: list[str] = []

    def failing(database: Any, names: Any, how: Any) -> Iterator[str]:
        doomed[:] = doomed or (votes(connection) if how == "COMMIT" else [])
        if how == "COMMIT" and set(names) & set(doomed):
            raise psycopg.OperationalError("no answer")
        yield from finish_votes(database, names, how)

    monkeypatch.setattr(_FINISH, failing)
    with pytest.raises(CommitBlockedError):
        query.run(1)
    assert votes(connection) == doomed
    query.run(2, settings=Settings(overrides=Overrides(abandoned={Abandon(1)})))
    assert (votes(connection), case.visible()) == ([], all_rows(0, 2))
