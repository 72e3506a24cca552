"""Helpers for the Redis sink's tests: names, sinks, a view of the keys that a sink has left behind, and moves of slots."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

import redis

from twopc.sinks.redis import RedisSink
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from twopc.attempt import Evidence
    from twopc.integration.services.redis import LocalRedis
    from twopc.sinks.redis.mappings import Mapping

_DEADLINE_S = 60


def unique() -> str:
    """A sink name and key prefix."""
    return f"r{uuid.uuid4().hex[:10]}"


def sink_of(url: str, mapping: Mapping, **arguments: Any) -> RedisSink:
    return RedisSink(url=url, mapping=mapping, **{"name": unique(), "timeout_ms": 1_000, **arguments})


def left_behind(url: str, sink: RedisSink) -> list[str]:
    """The sink's own keys."""
    with contextlib.closing(redis.Redis.from_url(url)) as client:
        return sorted(key.decode().rpartition("}:")[2] for key in client.scan_iter(f"twopc:{sink.name}:*", count=1000))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)


def replication(server: LocalRedis) -> bytes:
    """The server's report on its replicas or its primary."""
    client: Any = server.client()
    with contextlib.closing(client):
        client.set_response_callback("INFO", lambda answer, **_: answer)
        return bytes(client.execute_command("INFO", "replication"))


class Decided:
    """One task of a new driver, prepared and confirmed; ``commit`` applies its rows and may be called again.

    Attributes:
        handle: the task's handle.
        scan_start: the attempt's scan start.
    """

    def __init__(self, sink: RedisSink, rows: pa.RecordBatch) -> None:
        driver = Driver(sink)
        self._committer = driver.committer
        self.scan_start = driver.begin()
        self.handle = driver.prepare(rows)
        self._committer.confirm([self.handle], 0)

    def commit(self) -> Evidence:
        found = self._committer.commit([self.handle], self.scan_start)
        assert list(found) == [self.handle]
        return found[self.handle]

    def blockers(self) -> Sequence[str]:
        """Why the last commit did not succeed."""
        return self._committer.blockers()


def owner_of(servers: list[LocalRedis], slot: int) -> bytes:
    """The id of the slot's node."""
    for line in servers[0].execute("CLUSTER", "NODES").splitlines():
        words = line.split()
        for low, _, high in (place.partition(b"-") for place in words[8:] if not place.startswith(b"[")):
            if int(low) <= slot <= int(high or low):
                return bytes(words[0])
    return b""


class Move:
    """A move of one slot, with its keys moved one by one. Until its end, the source answers ASK for keys that have left."""

    def __init__(self, servers: list[LocalRedis], slot: int) -> None:
        self._slot = slot
        self._source = next(one for one in servers if one.execute("CLUSTER", "MYID") == owner_of(servers, slot))
        self.target = next(server for server in servers if server is not self._source)
        self._target_id = self.target.execute("CLUSTER", "MYID")
        self.target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", self._source.execute("CLUSTER", "MYID"))
        self._source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", self._target_id)

    def move(self, prefix: bytes = b"") -> list[bytes]:
        """Move the keys that begin with the prefix. Return the others."""
        names = self._source.execute("CLUSTER", "GETKEYSINSLOT", self._slot, 100)
        for name in names:
            if name.startswith(prefix):
                self._source.execute("MIGRATE", "127.0.0.1", self.target.port, name, 0, 1000)
        return [name for name in names if not name.startswith(prefix)]

    def keys_in_target(self) -> list[bytes]:
        names: list[bytes] = self.target.execute("CLUSTER", "GETKEYSINSLOT", self._slot, 100)
        return names

    def end(self) -> None:
        assert not self.move()
        for server in (self.target, self._source):
            server.execute("CLUSTER", "SETSLOT", self._slot, "NODE", self._target_id)
