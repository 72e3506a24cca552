"""A list of a query that is killed again and again contains every row once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.live.redis.support import sink_of
from twopc.integration.spark import exactly_once
from twopc.sinks.redis.mappings import ListPush

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.live.redis.services import RedisService
    from twopc.testing.kill_loop import Outcome


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_killed_query_pushes_every_row_once(redis_server: RedisService, kill_loop: Callable[..., Outcome]) -> None:
    # Two rows per chunk: a kill may come between two chunks of a task.
    sink = sink_of(redis_server.url, ListPush("{key}", "number"), chunk_rows=2, timeout_ms=10_000)

    def query(frame: DataFrame, _checkpoint: str) -> DataStreamWriter:
        rows = frame.selectExpr(f"'{sink.name}:rows' AS key", "number")
        return rows.writeStream.foreachBatch(exactly_once(sink, write_by="tasks"))

    def pushed() -> list[Any]:
        with contextlib.closing(redis.Redis.from_url(redis_server.url)) as client:
            return client.lrange(f"{sink.name}:rows", 0, -1)

    outcome = kill_loop(pushed, query=query, kills=3, crash_points=["driver.committing"])
    outcome.require_exactly_once()
    assert not outcome.missed
