"""A disk on the server fills up: the disk of the tables, or the disk of the write-ahead log, on which the server panics."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from tests.live.postgres.proxy import LossyProxy
from tests.live.postgres.services import OPTIONS
from tests.live.postgres.small_disks import NoNamespaceError, PostgresOnSmallDisks
from tests.live.postgres.support import case_of, left_behind, sink_of, values
from twopc import crash_points
from twopc.errors import CommitBlockedError, UnavailableError
from twopc.integration.services import ServiceError
from twopc.settings import Settings
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from twopc.sinks.postgres.publishing import Vote

_ONCE: Final = Settings(max_attempts=1)
#: What each message says: what happened, what to do now and, at the end, whether data is at risk.
_FULL: Final = (
    r"sink 'orders', .*No space left on device. A disk on the server is full: free space, and start the server if it has "
    "shut down"
)
_UNDECIDED: Final = "No part of this attempt is decided or visible"
_START: Final = (
    "This start wrote no rows. A batch that was already decided stays decided, and the next start completes it"
)
_BLOCKED: Final = (
    rf"batch \d is decided, .*{_FULL}.* Fix the cause, and restart the query\. The query will then complete this batch"
)


@pytest.fixture(params=["18", pytest.param("16", marks=pytest.mark.whole)])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresOnSmallDisks]:
    """A separate server for the test, because a test shuts it down or makes it panic."""
    try:
        with PostgresOnSmallDisks(version=request.param, options=OPTIONS) as started:
            yield started
    except NoNamespaceError as error:
        pytest.skip(f"no small disk can be mounted here: {error}")


# -- the disk of the tables --------------------------------------------------------------------------------------------


def case_on_the_small_disk(server: PostgresOnSmallDisks, vote: Vote) -> Case:
    server.create_tablespace()
    server.execute("CREATE TABLE target (value bigint) TABLESPACE small")
    return Case(sink_of(server.dsn, vote=vote), numbers, lambda: values(server.dsn))


def test_a_disk_that_is_full_at_the_publish_blocks_the_decided_batch_until_space_is_free(
    server: PostgresOnSmallDisks, tmp_path: Path
) -> None:
    case = case_on_the_small_disk(server, "staged")
    query = Query(case, tmp_path)
    server.tables.fill()
    for _ in range(2):
        with pytest.raises(CommitBlockedError, match=_BLOCKED):
            query.run(0)
    assert case.visible() == []
    server.tables.clear()
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


def test_a_prepared_vote_finds_the_full_disk_before_the_decision(server: PostgresOnSmallDisks, tmp_path: Path) -> None:
    case = case_on_the_small_disk(server, "prepared")
    query = Query(case, tmp_path)
    server.tables.fill()
    with pytest.raises(UnavailableError, match=f"{_FULL}. {_UNDECIDED}"):
        query.run(0, settings=_ONCE)
    assert left_behind(server.dsn)["stages"] == 0
    server.tables.clear()
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


def test_a_disk_that_is_full_while_a_task_writes_fails_only_the_attempt(
    server: PostgresOnSmallDisks, tmp_path: Path
) -> None:
    case = case_of(server.dsn)
    query = Query(case, tmp_path)
    query.run(0)
    server.create_tablespace()
    server.execute("ALTER DATABASE postgres SET default_tablespace = small")
    server.tables.fill()
    with pytest.raises(UnavailableError, match=f"{_FULL}. {_UNDECIDED}"):
        query.run(1, settings=_ONCE)
    server.tables.clear()
    query.run(1, 2)
    assert case.visible() == all_rows(0, 1, 2)


# -- the disk of the write-ahead log -----------------------------------------------------------------------------------


#: The last point before each kind of step that may find the log full, and that step's error.
_ERRORS: Final = {
    "driver.acquired": (UnavailableError, f"{_FULL}. {_START}"),
    "driver.prepared": (UnavailableError, f"{_FULL}. {_UNDECIDED}"),
    "driver.committing": (CommitBlockedError, _BLOCKED),
    "driver.swept": None,
}
_SAMPLE: Final = {("task.written", "staged"), ("driver.decided", "staged"), ("driver.confirmed", "prepared")}


def error_at(point: str) -> tuple[type[Exception], str] | None:
    """The error of a driver that passes a point and then finds the log full; None if the batch is already complete."""
    points = crash_points.POINTS
    return next(error for last, error in _ERRORS.items() if points.index(point) <= points.index(last))


@pytest.mark.parametrize(
    ("point", "vote"),
    [
        pytest.param(point, vote, marks=() if (point, vote) in _SAMPLE else pytest.mark.whole)
        for point in crash_points.POINTS
        for vote in ("staged", "prepared")
    ],
)
def test_a_server_that_panics_because_its_log_is_full_loses_and_duplicates_nothing(
    point: str, vote: Vote, server: PostgresOnSmallDisks, tmp_path: Path
) -> None:
    """The server has room for the rest of a transaction, but not for its COMMIT. Its recovery also fails."""
    case = case_of(server.dsn, vote=vote)
    query = Query(case, tmp_path)
    query.run(0)
    crash_points.arm(point, server.fill_wal)
    error = error_at(point)
    with pytest.raises(error[0], match=error[1]) if error else contextlib.nullcontext():
        query.run(1, settings=_ONCE)
    server.make_room()
    assert case.visible() == (all_rows(0) if error else all_rows(0, 1))
    query.run(1, 2)
    assert case.visible() == all_rows(0, 1, 2)
    assert {left_behind(server.dsn)[kind] for kind in ("stages", "slice")} == {0}


def fat_rows(values: Sequence[int]) -> pa.RecordBatch:
    """Rows of 1.2 MB, which PostgreSQL cannot compress."""
    notes = [random.Random(value).randbytes(600_000).hex() for value in values]
    return pa.record_batch({"value": pa.array(values, pa.int64()), "note": pa.array(notes)})


@pytest.mark.whole
def test_a_batch_that_fills_the_log_fails_and_is_written_once_space_is_free(
    server: PostgresOnSmallDisks, tmp_path: Path
) -> None:
    """The first task's rows fit, and the second's do not."""
    case = case_of(server.dsn, "value bigint NOT NULL, note text")
    case.rows = fat_rows
    query = Query(case, tmp_path)
    server.wal.fill()
    with pytest.raises(UnavailableError, match=f"{_FULL}. {_UNDECIDED}"):
        query.run(0, settings=_ONCE)
    server.make_room()
    assert (case.visible(), left_behind(server.dsn)["slice"]) == ([], 1)
    query.run(0)
    assert case.visible() == all_rows(0)


def test_a_publish_that_took_effect_before_the_panic_is_proven_by_the_next_start(
    server: PostgresOnSmallDisks, tmp_path: Path
) -> None:
    """The driver cannot know whether its COMMIT took effect, and cannot find out while the server is down."""
    case = case_of(server.dsn)
    query = Query(case, tmp_path)
    with LossyProxy(server.dsn) as proxy:
        direct, case.sink = case.sink, sink_of(proxy.dsn)
        proxy.on_loss = server.panic
        proxy.lose_commit_of("'committed' FROM pg_catalog.unnest")
        with pytest.raises(
            CommitBlockedError, match=r"batch 0 is decided, .*The server is not reachable.*complete this"
        ):
            query.run(0)
        with pytest.raises(UnavailableError, match=rf"checking the store: .*The server is not reachable.*{_START}"):
            query.run(0)
        assert proxy.lost == 1
    with pytest.raises(ServiceError, match="No space left on device"):
        server.start()
    case.sink = direct
    server.make_room()
    assert case.visible() == all_rows(0)
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)
