"""The rows of different tasks are applied in the order of the partitions, even if one task's rows have to wait."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.live.one_task import batch
from tests.live.redis.support import sink_of, unique
from twopc.attempt import Evidence
from twopc.sinks.redis.mappings import HashSet
from twopc.sinks.staged.slices import SliceState
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.live.redis.services import RedisService
    from twopc.integration.services.redis import LocalRedis
    from twopc.sinks.redis.committer import RedisCommitter
    from twopc.sinks.redis.keys import RedisHandle


@pytest.fixture
def client(redis_server: RedisService) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as made:
        yield made


class TwoTasks:
    """Two tasks that write the same key. The second task's value must win.

    Attributes:
        key: the key that both tasks write.
        blocked: a key that only the first task writes, before the common key.
    """

    def __init__(self, url: str, **arguments: int) -> None:
        self.key, self.blocked = unique(), unique()
        driver = Driver(sink_of(url, HashSet("{id}", ("v",)), **arguments))
        self.committer: RedisCommitter = driver.committer  # type: ignore[assignment]
        self._scan_start = driver.begin()
        rows = batch(id=[self.blocked, self.key], v=["bad", "old"]), batch(id=[self.key], v=["new"])
        self.handles = [driver.prepare(one, partition=number) for number, one in enumerate(rows)]
        self.committer.confirm(self.handles, 0)

    def commit(self) -> list[Evidence]:
        found = self.committer.commit(self.handles, self._scan_start)
        return [found[handle] for handle in self.handles]


def test_a_blocked_task_holds_back_the_tasks_after_it(redis_server: RedisService, client: Any) -> None:
    tasks = TwoTasks(redis_server.url)
    client.set(tasks.blocked, "in the way")
    assert tasks.commit() == [Evidence.UNKNOWN] * 2
    assert client.hget(tasks.key, "v") is None
    client.delete(tasks.blocked)
    assert tasks.commit() == [Evidence.COMMITTED] * 2
    assert client.hget(tasks.key, "v") == b"new"


def show_first_as(state: SliceState, tasks: TwoTasks, patch: pytest.MonkeyPatch) -> None:
    look = type(tasks.committer)._look

    def changed(handles: Sequence[RedisHandle], version: int, *, durable: bool) -> Mapping[RedisHandle, SliceState]:
        return {**look(tasks.committer, handles, version, durable=durable), tasks.handles[0]: state}

    patch.setattr(tasks.committer, "_look", changed)


def test_a_torn_task_does_not_hold_back_the_tasks_after_it(
    redis_server: RedisService, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a backup can restore the first task's rows. If the user abandons it, the second task's rows must be visible."""
    tasks = TwoTasks(redis_server.url)
    show_first_as(SliceState.TORN, tasks, monkeypatch)
    assert tasks.commit() == [Evidence.UNKNOWN, Evidence.COMMITTED]
    assert client.hget(tasks.key, "v") == b"new"


def test_a_task_without_a_response_holds_back_the_tasks_after_it(
    redis_server: RedisService, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster, where only the node of the first task's rows may be down."""
    tasks = TwoTasks(redis_server.url)
    with monkeypatch.context() as patch:
        show_first_as(SliceState.UNANSWERED, tasks, patch)
        assert tasks.commit() == [Evidence.UNKNOWN] * 2
    assert client.hget(tasks.key, "v") is None
    assert "some slices cannot be read: Redis does not respond" in tasks.committer.blockers()[0]
    assert tasks.commit() == [Evidence.COMMITTED] * 2
    assert client.hget(tasks.key, "v") == b"new"


def test_a_task_whose_command_fails_for_now_holds_back_the_tasks_after_it(
    local_redis_server: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a script, the error of a command is not an error of the call. Here, the replica returns just too late."""
    tasks = TwoTasks(local_redis_server.url, chunk_rows=1)
    local_redis_server.execute("SET", tasks.key, "in the way")
    assert tasks.commit() == [Evidence.UNKNOWN] * 2  # the first task's first chunk has been applied
    local_redis_server.execute("DEL", tasks.key)
    apply, applied = tasks.committer._apply, []

    def apply_without_a_replica(handle: RedisHandle, version: int) -> list[str]:
        applied.append(tasks.handles.index(handle))
        local_redis_server.execute("CONFIG", "SET", "min-replicas-to-write", 1 - applied[-1])
        try:
            return apply(handle, version)
        finally:
            local_redis_server.execute("CONFIG", "SET", "min-replicas-to-write", 0)

    with monkeypatch.context() as patch:
        patch.setattr(tasks.committer, "_apply", apply_without_a_replica)
        assert tasks.commit() == [Evidence.UNKNOWN] * 2
    assert applied == [0]
    [blocker] = tasks.committer.blockers()
    assert re.search(rf"has not been applied: key '{tasks.key}': NOREPLICAS [^.]*$", blocker)
    assert tasks.commit() == [Evidence.COMMITTED] * 2
    assert local_redis_server.execute("HGET", tasks.key, "v") == b"new"
