"""Under Spark Connect, too, a sorted DataFrame reaches Redis in the order of the sort. Only its plan's text shows the sort."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.live.connect_calls import OUTCOME
from tests.live.file_query import redis_client
from tests.live.redis.support import unique
from tests.live.redis.test_sorted import PARTITIONS, ROWS
from tests.live.spark_query import Options
from tests.live.test_connect import outcome_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.redis.services import RedisService

pytestmark = pytest.mark.calm


@pytest.mark.whole
def test_cached_rows_are_pushed_in_the_order_of_the_sort(redis_server: RedisService, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "rows.json").write_text("".join(f'{{"n": {row["n"]}}}\n' for row in ROWS))
    options = Options(
        bootstrap_servers="",
        name=unique(),
        sources=(),
        topic=None,
        checkpoint=str(tmp_path / "checkpoint"),
        files=str(files),
        sink={"url": redis_server.url},
        spark={"spark.sql.shuffle.partitions": str(PARTITIONS)},
    )
    assert outcome_of("a_sorted_batch", options, tmp_path) == f"{OUTCOME} no error"
    with contextlib.closing(redis_client(redis_server)) as client:
        pushed = [int(one) for one in client.lrange(f"{options.name}:all", 0, -1)]
    assert pushed == sorted(row["n"] for row in ROWS)
