"""A server goes back to an earlier state under the same address while a query runs, as after a failover or a crash."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.live.redis.support import sink_of
from tests.live.set_back import require_noticed
from twopc import control, crash_points
from twopc.attempt import Evidence
from twopc.errors import CommitBlockedError, FencedError, RefusedStartError, RestoredError
from twopc.integration.services.redis import LocalRedis
from twopc.sinks.redis.committer import RedisCommitter
from twopc.sinks.redis.keys import control as control_key
from twopc.sinks.redis.mappings import ListPush
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows, rows_of

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


def test_a_start_is_refused_if_the_server_returned_to_the_middle_of_the_batch_before_the_newest(
    server: LocalRedis, tmp_path: Path
) -> None:
    """The record contains that batch's decision, but no start examines the batch again, so its rows would be lost."""
    case = case_of(server)
    query = Query(case, tmp_path)
    older: list[Keys] = []
    crash_points.arm("driver.committing", lambda: older.append(back_up(server)))
    query.run(0)
    crash_points.disarm()
    query.run(1)
    put_back(server, older[0])
    assert case.visible() == rows_of(0)[0]
    for batch in (1, 2):
        with pytest.raises(
            RefusedStartError, match=r"older store: .*or rows of these decisions, .*or some of them, are lost"
        ):
            query.run(batch)
    assert case.visible() == rows_of(0)[0]


def tear(server: LocalRedis) -> None:
    """Pretend that a slice was applied only up to its first row, and that the rest is gone."""
    [applied] = server.execute("KEYS", "*:applied")
    uuid = next(field for field in server.execute("HKEYS", applied) if field != b"base")
    server.execute("HSET", applied, uuid, "0:1")


@pytest.mark.parametrize("lacks", [0, 1], ids=["newest backup", "older backup"])
def test_a_backup_repairs_a_partly_applied_batch_unless_it_lacks_an_earlier_batch(
    lacks: int, server: LocalRedis, tmp_path: Path
) -> None:
    case = case_of(server)
    query = Query(case, tmp_path)
    running = query.start()
    backups = []
    for number in range(2):
        query.continue_with(running, number)
        backups.append(back_up(server))
    crash_points.arm("driver.committing", lambda: tear(server))
    with pytest.raises(
        CommitBlockedError, match=r"is partly applied.* If a backup of Redis contains all earlier batches"
    ):
        query.continue_with(running, 2)
    crash_points.disarm()
    put_back(server, backups[1 - lacks])
    if lacks:
        with pytest.raises(RefusedStartError, match="older store"):
            query.run(2, 3)
    else:
        query.run(2, 3)
        assert case.visible() == all_rows(0, 1, 2, 3)


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


def test_a_proof_that_could_not_be_recorded_is_recorded_before_the_next_batch(
    server: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = case_of(server)
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0)
    before, swap = control_of(server, case), RedisCommitter.swap

    def failing(self: RedisCommitter, step: Any, old: bytes | None, new: bytes) -> bool:
        if control.decode(new).proven > control.decode(old).proven:
            raise redis.ConnectionError("no answer")
        return swap(self, step, old, new)

    with monkeypatch.context() as patch:
        patch.setattr(RedisCommitter, "swap", failing)
        query.continue_with(running, 1)
    assert "will be written before the next batch. No data is at risk. Cause: no answer" in caplog.text
    at = control_of(server, case)
    assert (at.proven, at.decided > before.decided) == (before.proven, True)
    crash_points.arm("driver.decided", lambda: proofs.append(control_of(server, case).proven))
    proofs: list[int] = []
    query.continue_with(running, 2)
    assert proofs == [at.decided]
    assert case.visible() == all_rows(0, 1, 2)


def test_a_batch_that_a_failover_loses_just_after_its_proof_is_not_reported_as_complete(
    server: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(server)
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0)
    backup, prove = back_up(server), RedisCommitter.prove

    def proving(self: RedisCommitter, handles: Any, scan_start: Any) -> Any:
        found = prove(self, handles, scan_start)
        put_back(server, backup)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(RedisCommitter, "prove", proving)
        with pytest.raises(CommitBlockedError, match=r"batch 1 is decided, .* was restored to an older state"):
            query.continue_with(running, 1)
    query.run(1)
    assert case.visible() == all_rows(0, 1)


def control_of(server: LocalRedis, case: Case) -> control.Control:
    return control.decode(server.execute("HGET", control_key(case.sink.name), "record"))


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
