"""Compare the Redis sink with redis-py's own pipeline, which gives no guarantee, on one server.

``make bench ARGS="--only redis"`` runs the sides in turn. The time covers everything between the Arrow batch and the last
acknowledgement. The sink encodes, stages, confirms, applies and proves. The client encodes prepared Python values, and sends
pipelines of 1000 commands.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from benchmarks.counting import WrongCountError
from benchmarks.measured import TWOPC, Case
from benchmarks.one_task import ARROW_ROWS, Steps, run_task
from benchmarks.turns import in_turn
from twopc.integration.services.redis import LocalRedis
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import HashIncrBy, HashSet, IncrBy, ListPush, Set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from benchmarks.settings import Settings
    from twopc.sinks.redis.mappings import Mapping

TITLE: Final = "Redis: the sink beside redis-py's bare pipeline"
X_LABEL: Final = ""
CLIENT: Final = "redis-py, a pipeline"
_ROWS: Final = 50_000
_PIPELINE_ROWS: Final = 1_000
_VALUE: Final = "x" * 50

#: For each command: its name, the sink's mapping, and the client's call.
WORKLOADS: list[tuple[str, Callable[[str], Mapping], Callable[[Any, str, int], Any]]] = [
    ("SET (upsert)", lambda p: Set(f"{p}:{{id}}", "v"), lambda c, p, i: c.set(f"{p}:{i}", _VALUE)),
    (
        "HSET, 2 fields (upsert)",
        lambda p: HashSet(f"{p}:{{id}}", ("n", "v")),
        lambda c, p, i: c.hset(f"{p}:{i}", mapping={"n": i, "v": _VALUE}),
    ),
    ("INCRBY (increment)", lambda p: IncrBy(f"{p}:{{id}}", "n"), lambda c, p, i: c.incrby(f"{p}:{i}", i)),
    (
        "HINCRBY (increment)",
        lambda p: HashIncrBy(f"{p}:{{id}}", ("n",)),
        lambda c, p, i: c.hincrby(f"{p}:{i}", "n", i),
    ),
    ("RPUSH (append)", lambda p: ListPush(f"{p}:list", "v"), lambda c, p, _: c.rpush(f"{p}:list", _VALUE)),
]


def cases(_: Settings) -> dict[str, tuple[Callable[[str], Mapping], Callable[[Any, str, int], Any]]]:
    """Return each command's mapping and client call, by the case's name."""
    return {name: (mapping, send) for name, mapping, send in WORKLOADS}


def measure(settings: Settings) -> Iterator[Case]:
    """Yield a case for each command."""
    rows = settings.rows(_ROWS)
    ids = [pa.array(range(start, min(start + ARROW_ROWS, rows)), pa.int64()) for start in range(0, rows, ARROW_ROWS)]
    batches = [pa.record_batch({"id": i, "n": i, "v": pa.array([_VALUE] * len(i))}) for i in ids]
    server = LocalRedis(options={"slowlog-log-slower-than": "1000"})
    with server, contextlib.closing(server.client()) as client:
        for name, (mapping, send) in settings.wanted(cases(settings)):
            yield _case(settings.rounds, _Workload(server.url, client, rows), name, (mapping, send, batches))


class _Workload:
    def __init__(self, url: str, client: redis.Redis, rows: int) -> None:
        self._url = url
        self._client = client
        self._rows = rows
        self.steps: list[Steps] = []
        self.longest_ms = 0.0

    def by_client(self, send: Callable[[Any, str, int], Any]) -> float:
        """Return the client's rows per second."""
        self._client.flushall()
        prefix = uuid.uuid4().hex[:8]
        began = time.perf_counter()
        for start in range(0, self._rows, _PIPELINE_ROWS):
            pipeline = self._client.pipeline(transaction=False)
            for number in range(start, min(start + _PIPELINE_ROWS, self._rows)):
                send(pipeline, prefix, number)
            pipeline.execute()
        rate = self._rows / (time.perf_counter() - began)
        self._count(prefix)
        return rate

    def by_sink(self, mapping: Callable[[str], Mapping], batches: list[pa.RecordBatch]) -> float:
        """Return the sink's rows per second."""
        self._client.flushall()
        self._client.slowlog_reset()
        name = f"b{uuid.uuid4().hex[:8]}"
        steps = run_task(RedisSink(name=name, url=self._url, mapping=mapping(name)), batches)
        self._count(name)
        self.steps.append(steps)
        entries: Any = self._client.slowlog_get(128)
        self.longest_ms = max([self.longest_ms, *(entry["duration"] / 1000 for entry in entries)])
        return self._rows / steps.total_s

    def _count(self, prefix: str) -> None:
        """Check the number of rows. Each row is a separate key, or an element of a single list."""
        listed: Any = self._client.llen(f"{prefix}:list")
        found = listed or sum(1 for _ in self._client.scan_iter(f"{prefix}:*", count=10_000))
        if found != self._rows:
            raise WrongCountError(f"Redis has {found} rows with {prefix} instead of {self._rows}")


def _case(
    rounds: int,
    workload: _Workload,
    name: str,
    how: tuple[Callable[[str], Mapping], Callable[[Any, str, int], Any], list[pa.RecordBatch]],
) -> Case:
    mapping, send, batches = how
    sides = {TWOPC: lambda: workload.by_sink(mapping, batches), CLIENT: lambda: workload.by_client(send)}
    ran, _ = in_turn(rounds, sides)
    rows = sum(batch.num_rows for batch in batches)
    return Case(
        name=name,
        unit="rows/s",
        samples=ran,
        counted={side: rows * len(found) for side, found in ran.items()},
        facts={**step_facts(workload.steps), "longest script in Redis, ms": {TWOPC: workload.longest_ms}},
    )


def step_facts(steps: list[Steps]) -> dict[str, dict[str, float]]:
    """Return each step's median time, in ms."""
    return {
        "ms to stage": {TWOPC: statistics.median(1000 * one.write_s for one in steps)},
        "ms to confirm": {TWOPC: statistics.median(1000 * one.confirm_s for one in steps)},
        "ms to apply and prove": {TWOPC: statistics.median(1000 * one.commit_s for one in steps)},
    }
