"""The data that survives the death of a server, and the effect of ``wait_replicas`` and ``wait_aof``."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from tests.live.one_task import OneTask, batch
from tests.live.redis.support import Decided, replication, sink_of, until
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.errors import CommitBlockedError, ConfigurationError, RetriableError
from twopc.files import LocalFiles
from twopc.integration.services.redis import DURABLE, LocalRedis
from twopc.sinks.redis.client import Safety
from twopc.sinks.redis.mappings import HashIncrBy, ListPush
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BATCHES = 12
_ROWS = 3_000


@contextlib.contextmanager
def killing(server: LocalRedis, *, seed: int) -> Iterator[list[int]]:
    """Kill and restart the server at random moments until the block ends. Yield the count of kills in a list."""
    ends, kills, rng = threading.Event(), [0], random.Random(seed)

    def kill() -> None:
        while not ends.wait(rng.uniform(0.05, 0.4)):
            server.kill()
            server.start()
            kills[0] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield kills
    finally:
        ends.set()
        thread.join()
        if not server.is_running:
            server.start()


@pytest.mark.whole
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.whole)])
def test_rows_are_applied_once_even_if_a_durable_server_crashes(seed: int, tmp_path: Path) -> None:
    with LocalRedis(options=DURABLE) as server:
        # A key for each batch: in one key, a lost batch and a repeated one would cancel each other out.
        sink = sink_of(server.url, HashIncrBy("totals-{of}", ("a", "b")), chunk_rows=100, timeout_ms=400)
        stopped = 0
        with killing(server, seed=seed) as kills:
            number, coordinator = 0, None
            while number < _BATCHES or kills[0] < 5:
                coordinator = coordinator or Coordinator([sink], LocalFiles(tmp_path))
                place = Batch("query-a", number, (str(number),), lambda of: (str(of),))
                try:
                    coordinator.process(place, OneTask(sink, rows_of(number)))
                    number += 1
                except (RetriableError, CommitBlockedError):
                    stopped += 1
                    coordinator.close()
                    coordinator = None
        if coordinator is None:
            # The last response may be missing; a restart determines the batch's outcome.
            coordinator = Coordinator([sink], LocalFiles(tmp_path))
        last = Batch("query-a", number, (str(number),), lambda of: (str(of),))
        coordinator.process(last, OneTask(sink, rows_of(number)))
        coordinator.close()
        totals = [dict(server.execute("HGETALL", f"totals-{of}")) for of in range(number + 2)]
    expected = {b"a": b"%d" % _ROWS, b"b": b"%d" % sum(range(_ROWS))}
    told = f"the totals are wrong after {kills[0]} crashes and {stopped} restarts of the query"
    assert totals == [*[expected] * (number + 1), {}], told


def rows_of(number: int) -> Any:
    return batch(of=[f"{number}"] * _ROWS, a=[1] * _ROWS, b=list(range(_ROWS)))


@pytest.mark.parametrize("options", [{}, DURABLE], ids=["memory", "append-only file"])
def test_a_start_warns_of_a_server_without_an_append_only_file(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with LocalRedis(options=options) as server:
        Driver(sink_of(server.url, ListPush("rows", "v")))
    assert caplog.text.count("may lose committed rows. Set appendonly to yes") == (not options)


def test_a_cluster_without_append_only_files_causes_one_warning(
    redis_cluster: list[LocalRedis], caplog: pytest.LogCaptureFixture
) -> None:
    Driver(sink_of(redis_cluster[0].url, ListPush("{rows}", "v"), cluster=True))
    assert caplog.text.count("may lose committed rows. Set appendonly to yes") == 1


@pytest.fixture
def pair() -> Iterator[tuple[LocalRedis, LocalRedis]]:
    """A primary and its synchronized replica."""
    with LocalRedis() as primary, LocalRedis(options={"replicaof": f"127.0.0.1 {primary.port}"}) as replica:
        until(lambda: b"master_link_status:up" in replication(replica))
        until(lambda: b"state=online" in replication(primary))
        yield primary, replica


def test_with_wait_replicas_a_commit_is_proven_once_the_replica_has_it(pair: tuple[LocalRedis, LocalRedis]) -> None:
    primary, replica = pair
    sink = sink_of(primary.url, ListPush("rows", "v"), wait_replicas=1, wait_timeout_ms=300)
    task = Decided(sink, batch(v=[1, 2, 3]))
    replica.pause()
    assert task.commit() is Evidence.UNKNOWN
    assert primary.execute("LLEN", "rows") == 3
    # On a connection that wrote nothing, WAIT alone would report success.
    assert after_a_restart(sink, task.handle, task.scan_start) == {task.handle: Evidence.UNKNOWN}
    replica.resume()
    assert task.commit() is Evidence.COMMITTED
    assert replica.execute("LLEN", "rows") == 3


def test_only_the_primary_needs_an_append_only_file() -> None:
    """``wait_replicas`` is about the replicas' memory, with ``wait_aof``, too."""
    with LocalRedis(options=DURABLE) as primary:
        no_file = {"appendonly": "no", "replicaof": f"127.0.0.1 {primary.port}"}
        with LocalRedis(options=no_file) as replica:
            until(lambda: b"state=online" in replication(primary))
            sink = sink_of(primary.url, ListPush("rows", "v"), wait_replicas=1, wait_aof=True, timeout_ms=5_000)
            assert Decided(sink, batch(v=[1, 2])).commit() is Evidence.COMMITTED
            assert replica.execute("LLEN", "rows") == 2


def after_a_restart(sink: Any, handle: Any, scan_start: Any) -> Any:
    committer = sink.create_committer()
    try:
        return committer.prove([handle], scan_start)
    finally:
        committer.close()


@pytest.mark.parametrize("point", [None, "task.began"], ids=["before it begins", "before its rows"])
def test_with_wait_replicas_a_task_votes_only_once_the_replica_has_its_rows(
    point: str | None, pair: tuple[LocalRedis, LocalRedis]
) -> None:
    primary, replica = pair
    driver = Driver(
        sink_of(primary.url, ListPush("rows", "v"), wait_replicas=1, wait_timeout_ms=1_000, timeout_ms=3_000)
    )
    driver.begin()
    if point is None:
        replica.pause()
    else:
        crash_points.arm(point, replica.pause)
    with pytest.raises(RetriableError, match="WAIT returned 0"):
        driver.prepare(batch(v=[1]))
    replica.resume()


def test_wait_replicas_above_the_number_of_replicas_is_refused(pair: tuple[LocalRedis, LocalRedis]) -> None:
    sink = sink_of(pair[0].url, ListPush("rows", "v"), wait_replicas=2)
    with pytest.raises(ConfigurationError, match="wait_replicas=2, but the primary has 1 replica:"):
        sink.create_committer().inspect()


def test_a_replica_is_refused(pair: tuple[LocalRedis, LocalRedis]) -> None:
    sink = sink_of(pair[1].url, ListPush("rows", "v"))
    with pytest.raises(ConfigurationError, match="points to a replica"):
        sink.create_committer().inspect()


@pytest.mark.parametrize(
    ("safety", "asked", "short", "enough"),
    [
        (Safety(), [], [], [[]]),
        (Safety(replicas=2), [("WAIT", 2, 1_000)], [[0], [1], [ResponseError("NOPERM")]], [[2], [3]]),
        (Safety(aof=True, timeout_ms=5), [("WAITAOF", 1, 0, 5)], [[[0, 0]], [[0, 2]]], [[[1, 0]]]),
        (
            Safety(replicas=2, aof=True),
            [("WAIT", 2, 1_000), ("WAITAOF", 1, 0, 1_000)],
            [[1, [1, 1]], [2, [0, 2]], [2, ResponseError("unknown command")]],
            [[2, [1, 0]], [2, [1, 2]]],
        ),
    ],
)
def test_a_write_counts_once_every_requested_copy_has_it(
    safety: Safety, asked: list[tuple[str | int, ...]], short: list[Any], enough: list[Any]
) -> None:
    assert safety.commands() == asked
    found = [not safety.short(answers) for answers in (*short, *enough)]
    assert found == [False] * len(short) + [True] * len(enough)


def test_a_wait_may_take_longer_than_a_step(pair: tuple[LocalRedis, LocalRedis]) -> None:
    primary, replica = pair
    driver = Driver(
        sink_of(primary.url, ListPush("rows", "v"), wait_replicas=1, wait_timeout_ms=4_000, timeout_ms=2_000)
    )
    driver.begin()
    replica.pause()
    with pytest.raises(RetriableError, match="WAIT returned 0 within 4000 ms"):
        driver.prepare(batch(v=[1]))
    replica.resume()


def test_wait_aof_requires_an_append_only_file() -> None:
    with LocalRedis() as server:
        sink = sink_of(server.url, ListPush("rows", "v"), wait_aof=True)
        with pytest.raises(ConfigurationError, match="appendonly yes"):
            sink.create_committer().inspect()
    with LocalRedis(options={**DURABLE, "appendfsync": "everysec"}) as server:
        sink = sink_of(server.url, ListPush("rows", "v"), wait_aof=True, wait_timeout_ms=3_000)
        driver = Driver(sink)
        scan_start = driver.begin()
        assert driver.commit([driver.prepare(batch(v=[1, 2]))], scan_start) == [Evidence.COMMITTED]
        server.kill()
        server.start()
        assert server.execute("LRANGE", "rows", 0, -1) == [b"1", b"2"]
