"""Increments are applied once: any driver may apply them, any number of times, after an interruption at any point."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.contract.cases import redis_counters
from tests.live.one_task import batch
from tests.live.redis.support import left_behind, sink_of, unique
from twopc import crash_points
from twopc.attempt import Attempt, Claim, Evidence, TaskAttempt
from twopc.errors import FencedError, RefusedStartError, RetriableError
from twopc.sinks.redis import committer as redis_committer
from twopc.sinks.redis import keys as redis_names
from twopc.sinks.redis import scripts as redis_scripts
from twopc.sinks.redis.client import Call
from twopc.sinks.redis.mappings import IncrBy
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.redis.services import RedisService
    from twopc.sinks.redis import RedisSink
    from twopc.sinks.redis.keys import RedisHandle

ROWS = batch(id=[1, 2, 3, 1, 2, 1, 1])
TOTALS = [4, 2, 1]


@pytest.fixture(autouse=True)
def _disarm_crash_points() -> Iterator[None]:
    crash_points.disarm()
    yield
    crash_points.disarm()


@pytest.fixture
def client(redis_server: RedisService) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as made:
        yield made


@pytest.fixture
def key() -> str:
    return unique()


@pytest.fixture
def sink(redis_server: RedisService, key: str) -> RedisSink:
    """Two commands per chunk, so that :data:`ROWS` take four chunks."""
    return sink_of(redis_server.url, IncrBy(f"{key}:{{id}}"), chunk_rows=2)


@pytest.fixture
def totals(client: Any, key: str) -> Any:
    return lambda: [int(client.get(f"{key}:{number}") or 0) for number in (1, 2, 3)]


def apply_chunk(sink: RedisSink, handle: RedisHandle, scan_start: dict[str, Any], chunk: int) -> bytes:
    """Apply a chunk like a driver that wakes up in the middle of its commit. Return the script's response."""
    keys = (
        redis_names.applied(sink.name, redis_names.NO_SLOT),
        redis_names.staged(sink.name, redis_names.NO_SLOT, handle.entry),
    )
    call = Call(redis_names.NO_SLOT, (*keys, scan_start["base"], handle.uuid, chunk), redis_scripts.APPLY, keys=2)
    with contextlib.closing(sink.create_client()) as own_client:
        answer: bytes = own_client.execute([call])[0][0]
        return answer


# -- progress ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", range(5))
def test_a_commit_that_died_after_any_chunk_resumes_after_that_chunk(
    applied: int, sink: RedisSink, totals: Any
) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    for chunk in range(applied):
        assert apply_chunk(sink, handle, scan_start, chunk) == b"DONE"
    assert Driver(sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert totals() == TOTALS


def test_chunks_are_applied_only_in_order(sink: RedisSink, totals: Any) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    assert apply_chunk(sink, handle, scan_start, 1) == b"EARLIER"
    assert totals() == [0, 0, 0]


def test_a_chunk_that_failed_halfway_is_resumed_at_the_failed_row(sink: RedisSink, client: Any, key: str) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    client.set(f"{key}:2", "no number")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    assert int(client.get(f"{key}:1")) == 1
    client.set(f"{key}:2", "10")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert [int(client.get(f"{key}:{number}")) for number in (1, 2, 3)] == [4, 12, 1]


def test_increments_are_applied_once_even_if_responses_are_lost(
    sink: RedisSink, totals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, asked = Pipeline.execute, iter(range(1_000_000))

    def lossy(pipeline: Any, *arguments: Any, **named: Any) -> Any:
        answer = execute(pipeline, *arguments, **named)
        if next(asked) % 2 == 0:
            raise RedisConnectionError("the response was lost")
        return answer

    monkeypatch.setattr(Pipeline, "execute", lossy)
    for _ in range(3):
        driver = Driver(sink)
        scan_start = driver.begin()
        assert driver.commit([driver.prepare(ROWS), driver.prepare(ROWS)], scan_start) == [Evidence.COMMITTED] * 2
    assert totals() == [6 * total for total in TOTALS]


# -- fences ------------------------------------------------------------------------------------------------------------


def test_a_higher_fence_removes_older_markers(sink: RedisSink, client: Any, totals: Any) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    older = driver.prepare(ROWS)
    driver.commit([older], scan_start)
    markers = redis_names.applied(sink.name, redis_names.NO_SLOT)
    later = driver.begin()
    newer = driver.prepare(ROWS)
    assert client.hget(markers, older.uuid) == b"4:0"
    assert apply_chunk(sink, newer, later, 0) == b"DONE"
    assert client.hget(markers, older.uuid) is None
    assert [apply_chunk(sink, older, scan_start, chunk) for chunk in range(4)] == [b"STALE"] * 4
    assert driver.committer.commit([newer], later) == {newer: Evidence.COMMITTED}
    assert totals() == [2 * total for total in TOTALS]


def test_versions_increase_even_if_the_clock_is_behind(sink: RedisSink) -> None:
    committer = Driver(sink).committer
    ahead = 4_000_000_000_000
    committer.initialize_state([], {"base": ahead})
    versions = [committer.begin_attempt()["base"] for _ in range(3)]
    assert versions == [ahead + 1, ahead + 2, ahead + 3]
    assert Driver(sink).begin()["base"] == ahead + 4


def test_a_fenced_driver_fails_at_every_step(sink: RedisSink) -> None:
    loser = Driver(sink)
    scan_start = loser.begin()
    handle = loser.prepare(ROWS)
    winner = Driver(sink)
    winner.committer.initialize_state([handle], scan_start)
    winner.commit([winner.prepare(ROWS)], winner.begin())
    for step in (
        lambda: loser.committer.acquire(loser.claim, loser.seen),
        loser.begin,
        lambda: loser.committer.commit([handle], scan_start),
    ):
        with pytest.raises(FencedError):
            step()


def test_an_acquisition_repeated_after_a_lost_response_does_not_fence_a_newer_driver(
    sink: RedisSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    loser = sink.create_committer()
    execute = Pipeline.execute
    first, second = Claim("query-a", "run-1", "registers"), Claim("query-a", "run-2", "registers")

    def lossy(pipeline: Any, *arguments: Any, **named: Any) -> Any:
        is_script = any(words[0].startswith("EVAL") for words, _ in pipeline.command_stack)
        answer = execute(pipeline, *arguments, **named)
        if is_script:
            raise RedisConnectionError("the response was lost")
        return answer

    seen = loser.inspect()
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "execute", lossy)
        with pytest.raises(RetriableError):
            loser.acquire(first, seen)
    winner = sink.create_committer()
    found = winner.inspect()
    driver_epoch = winner.acquire(second, found)
    with pytest.raises(FencedError):
        loser.acquire(first, seen)
    assert winner.acquire(second, found) == driver_epoch
    loser.close()
    winner.close()


# -- losses ------------------------------------------------------------------------------------------------------------


def test_a_slice_with_a_missing_chunk_counts_as_lost_as_a_whole(sink: RedisSink, client: Any, totals: Any) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    client.hdel(redis_names.staged(sink.name, redis_names.NO_SLOT, handle.entry), 2)
    with pytest.raises(RetriableError, match="missing or was changed"):
        driver.committer.confirm([handle], 0)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.ABORTED}
    # A driver that wakes up now and applies the chunk finds nothing.
    assert apply_chunk(sink, handle, scan_start, 0) == b"GONE"
    assert totals() == [0, 0, 0]


def test_a_batch_with_an_altered_slice_is_not_decided(sink: RedisSink, client: Any) -> None:
    driver = Driver(sink)
    driver.begin()
    handle = driver.prepare(ROWS)
    place = redis_names.staged(sink.name, redis_names.NO_SLOT, handle.entry)
    client.hset(place, "0", client.hget(place, "0").replace(b":1", b":3"))
    with pytest.raises(RetriableError, match="missing or was changed"):
        driver.committer.confirm([handle], 0)


def test_a_lost_slice_that_is_partly_applied_is_never_proven_lost(sink: RedisSink, client: Any) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    assert apply_chunk(sink, handle, scan_start, 0) == b"DONE"
    client.delete(redis_names.staged(sink.name, redis_names.NO_SLOT, handle.entry))
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}


def test_a_lost_slice_whose_first_chunk_is_partly_applied_is_never_proven_lost(
    sink: RedisSink, client: Any, key: str
) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    client.set(f"{key}:2", "no number")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    assert int(client.get(f"{key}:1")) == 1
    client.delete(redis_names.staged(sink.name, redis_names.NO_SLOT, handle.entry))
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    assert "is partly applied" in driver.committer.blockers()[0]
    with contextlib.closing(sink.create_committer()) as other:
        assert not other._tombstone(handle, scan_start["base"])


def test_no_row_is_applied_before_the_store_has_recorded_the_decision(
    sink: RedisSink, totals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver on an older copy of the checkpoint would not see the decision otherwise."""
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(ROWS)
    execute = Pipeline.execute

    def lossy(pipeline: Any, *arguments: Any, **named: Any) -> Any:
        if any(words[1] == redis_scripts.SWAP.sha for words, _ in pipeline.command_stack):
            raise RedisConnectionError("no answer")
        return execute(pipeline, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "execute", lossy)
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    assert totals() == [0, 0, 0]
    assert "does not respond: no answer" in driver.committer.blockers()[0]
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_slices_of_a_decision_are_written_again(
    lost: int, client: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = redis_counters(request)

    def lose() -> None:
        slices = list(client.scan_iter(f"twopc:{case.sink.name}:*:slice:*", count=1000))
        assert len(slices) == 2
        client.delete(*slices[:lost])

    crash_points.arm("driver.decided", lose)
    query = Query(case, tmp_path)
    query.run(0, 1)
    assert case.visible() == all_rows(0, 1)


def test_a_decision_below_the_fence_is_neither_applied_nor_proven_lost(sink: RedisSink, totals: Any) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    older, newer = driver.prepare(ROWS), driver.prepare(ROWS)
    driver.commit([newer], driver.begin())
    assert driver.committer.commit([older], scan_start) == {older: Evidence.UNKNOWN}
    assert totals() == TOTALS
    assert driver.committer.has_newer_decision(scan_start)  # the newest decision is still recorded


def test_an_emptied_server_is_not_mistaken_for_a_new_one(
    client: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = redis_counters(request)
    query = Query(case, tmp_path)
    query.run(0)
    client.delete(*client.scan_iter(f"twopc:{case.sink.name}:*", count=1000))
    with pytest.raises(RefusedStartError, match="Point the sink back"):
        query.run(1)
    assert case.visible() == all_rows(0)


# -- orphans -----------------------------------------------------------------------------------------------------------


def test_a_proven_batch_leaves_only_the_fence_and_the_control_record(
    client: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = redis_counters(request)
    Query(case, tmp_path).run(0, 1)
    assert {key.decode().rpartition("}:")[2] for key in client.scan_iter(f"twopc:{case.sink.name}:*", count=1000)} == {
        "applied",
        "control",
    }


def test_rows_written_by_an_orphan_after_a_sweep_are_swept_later(
    sink: RedisSink, redis_server: RedisService, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(sink)
    driver.begin()
    orphan = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, driver.driver_epoch, -1))
    orphan.write_rows(ROWS)
    driver.committer.recover_and_abort([])
    assert left_behind(redis_server.url, sink) == ["control", "slices"]
    orphan.write_rows(ROWS)  # the task is cancelled, but its process keeps running for a while
    assert len(left_behind(redis_server.url, sink)) == 3
    monkeypatch.setattr(redis_committer, "_LISTED_MS", -1_000)
    driver.committer.recover_and_abort([])
    assert left_behind(redis_server.url, sink) == ["control"]
    orphan.close()


def test_a_failed_task_removes_its_slice(sink: RedisSink, redis_server: RedisService) -> None:
    driver = Driver(sink)
    driver.begin()
    writer = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, driver.driver_epoch, -1))
    writer.write_rows(ROWS)
    writer.close()
    assert left_behind(redis_server.url, sink) == ["control"]


# -- two crashes -------------------------------------------------------------------------------------------------------


_SAMPLE = {"task.prepared", "driver.decided", "driver.committing", "driver.committed"}


_EVERY_RUN = {"driver.inspected", "driver.fenced", "driver.acquired", "driver.recovered", "driver.swept"}


def is_passed(point: str, *, after: str) -> bool:
    """Whether the run after a crash passes the point. No run writes a decided batch again."""
    crash = crash_points.POINTS.index(after)
    if point == "driver.committing":
        return crash < crash_points.POINTS.index("driver.committed")
    return crash < crash_points.POINTS.index("driver.deciding") or point in _EVERY_RUN


@pytest.mark.parametrize(
    "first",
    [point if point in _SAMPLE else pytest.param(point, marks=pytest.mark.whole) for point in crash_points.POINTS],
)
def test_a_crash_during_recovery_does_no_harm(first: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for number, second in enumerate(crash_points.POINTS):
        case = redis_counters(request)
        query = Query(case, tmp_path / str(number))
        query.run(0)
        crashed = [query.run_until(point, 1) for point in (first, second)]
        assert crashed == [True, is_passed(second, after=first)], second
        query.finish(1, 2)
        assert case.visible() == all_rows(0, 1, 2), second
