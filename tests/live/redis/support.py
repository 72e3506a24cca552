"""What the tests of the Redis sink share: a query over one sink, and a look at what it has left."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import redis

from sinks.redis import RedisSink
from tests.contract.drivers import Driver, run_task
from twopc.decision import TaskReport
from twopc.sink import Evidence, TaskAttempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from integration.local_redis import LocalRedis
    from sinks.redis_mappings import Mapping
    from twopc.coordinator import Work

_DEADLINE_S = 60


def unique() -> str:
    """A name for a sink and the beginning of its keys."""
    return f"r{uuid.uuid4().hex[:10]}"


def sink_of(url: str, mapping: Mapping, **arguments: Any) -> RedisSink:
    return RedisSink(name=unique(), url=url, mapping=mapping, **{"timeout_ms": 1_000, **arguments})


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    )


def apply(sink: RedisSink, *tasks: pa.RecordBatch) -> list[Any]:
    """One batch of a new driver, decided and committed: its evidence."""
    driver = Driver(sink)
    since = driver.begin()
    handles = [driver.prepare(rows, partition=number) for number, rows in enumerate(tasks)]
    return driver.commit(handles, since)


def left_behind(url: str, sink: RedisSink) -> list[str]:
    """The sink's own keys."""
    with contextlib.closing(redis.Redis.from_url(url)) as client:
        return sorted(key.decode().rpartition("}:")[2] for key in client.scan_iter(f"twopc:{sink.name}:*", count=1000))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def replication(server: LocalRedis) -> bytes:
    """What it says about its replicas or its primary."""
    client: Any = server.client()
    with contextlib.closing(client):
        client.set_response_callback("INFO", lambda answer, **_: answer)
        return bytes(client.execute_command("INFO", "replication"))


class Decided:
    """One task of a new driver, prepared and confirmed: what is left is to apply its rows, as often as one likes.

    Attributes:
        handle: the task's.
        since: what the attempt began with.
    """

    def __init__(self, sink: RedisSink, rows: pa.RecordBatch) -> None:
        driver = Driver(sink)
        self._committer = driver.committer
        self.since = driver.begin()
        self.handle = driver.prepare(rows)
        self._committer.confirm([self.handle], 0)

    def commit(self) -> Evidence:
        found = self._committer.commit([self.handle], self.since)
        assert list(found) == [self.handle]
        return found[self.handle]


class OneTask:
    """An engine whose batch is one task."""

    def __init__(self, sink: RedisSink, rows: pa.RecordBatch) -> None:
        self._sink, self._rows = sink, rows

    def prepare(self, work: Work) -> list[TaskReport]:
        name, place = self._sink.name, work.checkpoint
        task = TaskAttempt(place.lineage, place.batch, work.attempt, 0, work.incarnations[name], work.settled_through)
        handles = {name: self._sink.encode_handle(run_task(self._sink, task, self._rows))}
        return [TaskReport(partition=0, rows=self._rows.num_rows, checksum=0, handles=handles)]

    def evaluate(self) -> None:
        """Nothing here has state that must be written."""
