"""The Redis sink beside the client alone: redis-py's own pipeline without any guarantee, in turn, on one server.

``.venv/bin/python benchmarks/redis_sink.py --rows 100000 --pairs 5``. What is timed is everything between the Arrow batch
and the last acknowledgement: for the sink encoding, staging, confirming, applying and proving; for the client encoding of
Python values that are made beforehand, and pipelines of the same size. Each pair gives one ratio of rates.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from integration.services.redis import LocalRedis
from sinks.redis import RedisSink
from sinks.redis.mappings import HashIncrBy, HashSet, IncrBy, ListPush, Set
from twopc.attempt import Attempt, Claim, Evidence, TaskAttempt

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from sinks.redis.mappings import Mapping

PIPELINE_ROWS = 1_000
BATCH_ROWS = 10_000  # Spark's spark.sql.execution.arrow.maxRecordsPerBatch
VALUE = "x" * 50
console = Console()

#: Name, the sink's mapping, and the same command of the client.
WORKLOADS: list[tuple[str, Callable[[str], Mapping], Callable[[Any, str, int], Any]]] = [
    ("SET (upsert)", lambda p: Set(f"{p}:{{id}}", "v"), lambda c, p, i: c.set(f"{p}:{i}", VALUE)),
    (
        "HSET, 2 fields (upsert)",
        lambda p: HashSet(f"{p}:{{id}}", ("n", "v")),
        lambda c, p, i: c.hset(f"{p}:{i}", mapping={"n": i, "v": VALUE}),
    ),
    ("INCRBY (increment)", lambda p: IncrBy(f"{p}:{{id}}", "n"), lambda c, p, i: c.incrby(f"{p}:{i}", i)),
    (
        "HINCRBY (increment)",
        lambda p: HashIncrBy(f"{p}:{{id}}", ("n",)),
        lambda c, p, i: c.hincrby(f"{p}:{i}", "n", i),
    ),
    ("RPUSH (append)", lambda p: ListPush(f"{p}:list", "v"), lambda c, p, _: c.rpush(f"{p}:list", VALUE)),
]


def with_client(client: redis.Redis, send: Callable[[Any, str, int], Any], rows: int) -> float:
    """Seconds for so many rows by the client alone."""
    prefix = uuid.uuid4().hex[:8]
    began = time.perf_counter()
    for start in range(0, rows, PIPELINE_ROWS):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + PIPELINE_ROWS, rows)):
            send(pipeline, prefix, number)
        pipeline.execute()
    return time.perf_counter() - began


def with_sink(url: str, mapping: Callable[[str], Mapping], batches: list[pa.RecordBatch]) -> list[float]:
    """Seconds for these rows by the sink, up to the end of each step: staged, confirmed, applied."""
    name = f"b{uuid.uuid4().hex[:8]}"
    sink = RedisSink(name=name, url=url, mapping=mapping(name))
    committer = sink.create_committer()
    committer.inspect()
    driver_epoch = committer.acquire(Claim("bench", uuid.uuid4().hex, "none"))
    began = time.perf_counter()
    ends = []
    scan_start = committer.begin_attempt()
    writer = sink.create_writer(TaskAttempt("bench", 0, Attempt(0, 0), 0, driver_epoch, -1))
    for batch in batches:
        writer.write_rows(batch)
    handle = writer.snapshot_state(0)
    if handle is None:
        raise AssertionError("there are rows")
    writer.hand_over()
    writer.close()
    ends.append(time.perf_counter() - began)
    committer.confirm([handle], 0)
    ends.append(time.perf_counter() - began)
    found = committer.commit([handle], scan_start)
    ends.append(time.perf_counter() - began)
    if found != {handle: Evidence.COMMITTED}:
        raise AssertionError(f"not committed: {found}")
    committer.close()
    return ends


def main(
    rows: Annotated[int, typer.Option(help="Rows of one run.")] = 100_000,
    pairs: Annotated[int, typer.Option(help="Runs of each side, in turn.")] = 5,
) -> None:
    """Print rates, their ratio, the parts of the sink's time, and the longest that Redis was busy with one script."""
    table = Table(title=f"{rows} rows, {pairs} pairs, medians; ratio = sink / client alone")
    for column in (
        "command",
        "client rows/s",
        "sink rows/s",
        "ratio",
        "of all pairs",
        "staged, confirmed, applied",
        "longest",
    ):
        table.add_column(column)
    ids = [pa.array(range(start, min(start + BATCH_ROWS, rows)), pa.int64()) for start in range(0, rows, BATCH_ROWS)]
    batches = [pa.record_batch({"id": i, "n": i, "v": pa.array([VALUE] * len(i))}) for i in ids]
    server = LocalRedis(options={"slowlog-log-slower-than": "1000"})
    with server, contextlib.closing(server.client()) as client:
        for name, mapping, send in WORKLOADS:
            alone, ours = [], []
            longest_us = 0
            for _ in range(pairs):
                client.flushall()
                alone.append(with_client(client, send, rows))
                client.flushall()
                client.slowlog_reset()
                ours.append(with_sink(server.url, mapping, batches))
                longest_us = max([longest_us, *(entry["duration"] for entry in client.slowlog_get(128))])
            ratios = sorted(a / o[-1] for a, o in zip(alone, ours, strict=True))
            [statistics.median(steps) for steps in zip(*([o[0], o[1] - o[0], o[2] - o[1]] for o in ours), strict=True)]
            steps = zip(*([o[0], o[1] - o[0], o[2] - o[1]] for o in ours), strict=True)
            table.add_row(
                name,
                f"{rows / statistics.median(alone):,.0f}",
                f"{rows / statistics.median(o[-1] for o in ours):,.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                " ".join(f"{part:.2f} s" for part in map(statistics.median, steps)),
                f"{longest_us / 1000:.1f} ms",
            )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
