"""A server goes back to an earlier state under the same address while a query runs, as after a failover or a crash."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.redis.support import sink_of
from tests.live.set_back import require_noticed
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.errors import CommitBlockedError, FencedError, RestoredError
from twopc.integration.services.redis import LocalRedis
from twopc.sinks.redis.mappings import ListPush
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Keys = dict[bytes, bytes]


@pytest.fixture
def server() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


def case_of(server: LocalRedis) -> Case:
    sink = sink_of(server.url, ListPush("rows", "value"))
    return Case(sink, numbers, lambda: sorted(int(value) for value in server.execute("LRANGE", "rows", 0, -1)))


def back_up(server: LocalRedis) -> Keys:
    client: Any = server.client()
    with contextlib.closing(client):
        return {key: client.dump(key) for key in client.scan_iter()}


def put_back(server: LocalRedis, backup: Keys) -> None:
    client: Any = server.client()
    with contextlib.closing(client), client.pipeline() as both:
        both.flushall()
        for key, value in backup.items():
            both.restore(key, 0, value)
        both.execute()


@pytest.mark.parametrize("lost", [1, 2])
def test_a_server_that_returns_to_an_earlier_state_while_a_query_runs_stops_the_query(
    lost: int, server: LocalRedis, tmp_path: Path
) -> None:
    case = case_of(server)
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, *range(4 - lost))
    backup = back_up(server)
    query.continue_with(running, *range(4 - lost, 4))
    put_back(server, backup)
    require_noticed(case.sink.name, lost, case, query, running)


def test_the_next_start_repeats_an_undecided_attempt_that_the_server_lost(server: LocalRedis, tmp_path: Path) -> None:
    case = case_of(server)
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0)
    backup = back_up(server)
    crash_points.arm("driver.decided", lambda: put_back(server, backup))
    with pytest.raises(CommitBlockedError, match=r"batch 1 is decided, .* was restored to an older state"):
        query.continue_with(running, 1)
    assert case.visible() == all_rows(0)
    query.run(1, 2)
    assert case.visible() == all_rows(0, 1, 2)


@pytest.mark.parametrize(
    ("is_lost", "gone"),
    [
        (bool, "its decision"),
        (lambda key: key.endswith(b":control"), "its decision"),
        (lambda key: not key.endswith(b":control"), "the marker of slice"),
    ],
    ids=["everything", "in a cluster, only the decision", "in a cluster, only the rows"],
)
def test_a_failover_that_lost_only_the_commit_of_the_last_batch_stops_the_query(
    is_lost: Callable[[bytes], bool], gone: str, server: LocalRedis, tmp_path: Path
) -> None:
    """The promoted replica has the last batch's attempt, so its record's revision is the one that the driver has seen."""
    case = case_of(server)
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0, 1)
    older: list[Keys] = []
    crash_points.arm("driver.decided", lambda: older.append(back_up(server)))
    query.continue_with(running, 2)
    crash_points.disarm()
    kept = {key: value for key, value in back_up(server).items() if not is_lost(key)}
    put_back(server, kept | {key: value for key, value in older[0].items() if is_lost(key)})
    with pytest.raises(RestoredError, match=rf"sink '{case.sink.name}': its store was restored .*but {gone}"):
        query.continue_with(running, 3)
    query.run(2, 3)
    assert case.visible() == all_rows(0, 1, 2, 3)


def test_a_driver_is_fenced_and_blames_no_restored_store_if_its_successor_has_committed(
    server: LocalRedis,
) -> None:
    sink = case_of(server).sink
    loser = Driver(sink)
    scan_start = loser.begin()
    handle = loser.prepare(numbers([1]))
    assert loser.commit([handle], scan_start) == [Evidence.COMMITTED]
    winner = Driver(sink)
    assert winner.commit([winner.prepare(numbers([2]))], winner.begin()) == [Evidence.COMMITTED]
    with pytest.raises(FencedError):
        loser.committer.confirm([], 0)
