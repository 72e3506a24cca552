"""The cost of a batch for Redis, limited by bounds on its round trips, which do not depend on the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.connection import AbstractConnection

from tests.budget import counting_method, require_within
from tests.live.redis.support import sink_of, unique
from tests.live.staged_budget import APPLY, BEGIN, CONFIRM, STAGE, round_trips
from twopc.sinks.redis.mappings import IncrBy, Set

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.redis.services import RedisService

CHUNK = 1_000
#: The requests of one task. The writer connects again, as a Python worker does after a long idle time.
BUDGET = {BEGIN: 2, STAGE: 6, CONFIRM: 1, APPLY: 7}


@pytest.mark.parametrize("kind", [Set, IncrBy])
@pytest.mark.parametrize("rows", [1, CHUNK, 4 * CHUNK])
def test_a_batch_takes_the_same_few_round_trips_however_many_rows_it_has(
    redis_server: RedisService, tmp_path: Path, kind: type[Set | IncrBy], rows: int
) -> None:
    sink = sink_of(redis_server.url, kind(f"{unique()}:{{id}}", "n"), chunk_rows=CHUNK, timeout_ms=30_000)
    with counting_method(AbstractConnection, "send_packed_command") as sent:
        found = round_trips(sink, rows, sent, tmp_path)
    require_within(found, BUDGET)
