"""An override by name does not open the sink to an older copy of the checkpoint, and does not lock out its own query."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.contract.cases import redis_counters
from twopc import crash_points
from twopc.errors import InDoubtError, RefusedStartError
from twopc.override import Abandon, Overrides
from twopc.settings import Settings
from twopc.testing.contract import Crash
from twopc.testing.contract.drivers import QUERY_ID, Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.redis.services import RedisService


@pytest.fixture
def client(redis_server: RedisService) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as made:
        yield made


@pytest.mark.parametrize("before", [(), (5,)], ids=["from before the adoption", "from later"])
def test_an_older_copy_adds_nothing_twice_even_if_the_adoption_setting_is_still_in_the_code(
    before: tuple[int, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case, adopting = redis_counters(request), Settings(overrides=Overrides(adopt_query_id=QUERY_ID))
    query = Query(case, tmp_path)
    query.run(*before, settings=adopting)
    copy, batch = query.copied(tmp_path / "copy"), 5 + len(before)
    query.run(batch, settings=adopting)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "older copy"):
        copy.run(batch, settings=adopting)
    query.run(batch + 1, settings=adopting)
    assert case.visible() == all_rows(*before, batch, batch + 1)


def test_a_lost_batch_that_was_left_behind_is_abandoned_and_the_query_continues_after_a_crash(
    client: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case, given_up = redis_counters(request), Settings(overrides=Overrides(abandoned={Abandon(0)}))
    query = Query(case, tmp_path)
    crash_points.arm("driver.decided", case.crash)
    with pytest.raises(Crash):
        query.run(0)
    client.delete(next(client.scan_iter(f"twopc:{case.sink.name}:*:slice:*", count=1000)))
    with pytest.raises(InDoubtError, match=rf"restart with override=Abandon\(0, '{QUERY_ID}'\)\."):
        query.run(1)
    kept = case.visible()
    assert len(kept) == 5
    crash_points.arm("driver.prepared", case.crash)
    with pytest.raises(Crash):
        query.run(1, settings=given_up)
    query.run(1, 2)
    assert case.visible() == sorted(kept + all_rows(1, 2))
