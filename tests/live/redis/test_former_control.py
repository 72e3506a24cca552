"""This version reads a control record of version 0.1, and rewrites it under the new names when it acquires the sink."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.contract.cases import redis_counters
from tests.live.redis.support import sink_of
from tests.unit.fake_sink import Crash
from twopc import crash_points
from twopc.attempt import Claim
from twopc.errors import FencedError
from twopc.sinks.redis import keys as redis_names
from twopc.sinks.redis.mappings import IncrBy
from twopc.testing.contract.drivers import Query, all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.redis.services import RedisService
    from twopc.sinks.redis import RedisSink

#: The original script of version 0.1.
FORMER_ACQUIRE = """
local incarnation = redis.call('HGET', KEYS[1], 'incarnation') or '0'
if redis.call('HGET', KEYS[1], 'run') == ARGV[1] then return tonumber(incarnation) end
if incarnation ~= ARGV[2] then return 0 end
redis.call('HSETNX', KEYS[1], 'id', ARGV[4])
if redis.call('HGET', KEYS[1], 'lineage') ~= ARGV[3] then redis.call('HDEL', KEYS[1], 'decided') end
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'lineage', ARGV[3])
return redis.call('HINCRBY', KEYS[1], 'incarnation', 1)
"""
FORMER_FIELDS = {"query_id": "lineage", "driver_epoch": "incarnation"}


@pytest.fixture(autouse=True)
def _disarm_crash_points() -> Iterator[None]:
    crash_points.disarm()
    yield
    crash_points.disarm()


@pytest.fixture
def client(redis_server: RedisService) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_server.url, decode_responses=True)) as made:
        yield made


@pytest.fixture
def sink(redis_server: RedisService, client: Any) -> RedisSink:
    """A sink that version 0.1 has acquired twice for ``query-a``, with a recorded decision."""
    made = sink_of(redis_server.url, IncrBy("{id}"))
    control = redis_names.control(made.name)
    for seen, run in enumerate(["run-1", "run-2"]):
        assert client.eval(FORMER_ACQUIRE, 1, control, run, seen, "query-a", "the-id") == seen + 1
    client.hset(control, mapping={"version": 1_700_000_000_009, "decided": 1_700_000_000_005})
    return made


def test_a_record_of_version_0_1_is_read_and_not_changed(sink: RedisSink, client: Any) -> None:
    before = client.hgetall(redis_names.control(sink.name))
    committer = sink.create_committer()
    assert committer.inspect() == "query-a"
    assert committer.binding()["id"] == "the-id"
    assert committer.has_newer_decision({"base": 1_700_000_000_004})
    assert not committer.has_newer_decision({"base": 1_700_000_000_005})
    assert client.hgetall(redis_names.control(sink.name)) == before
    committer.close()


def test_acquiring_rewrites_the_record_under_the_new_names_and_keeps_its_values(sink: RedisSink, client: Any) -> None:
    committer, late = sink.create_committer(), sink.create_committer()
    for one in (committer, late):
        one.inspect()
    claim = Claim("query-a", "run-3", "registers")
    assert [committer.acquire(claim), committer.acquire(claim)] == [3, 3]
    assert client.hgetall(redis_names.control(sink.name)) == {
        "id": "the-id",
        "run": "run-3",
        "query_id": "query-a",
        "driver_epoch": "3",
        "version": "1700000000009",
        "decided": "1700000000005",
    }
    with pytest.raises(FencedError):  # it inspected the former record
        late.acquire(Claim("query-a", "run-4", "registers"))
    assert committer.inspect() == "query-a"
    assert committer.has_newer_decision({"base": 1_700_000_000_004})
    assert committer.begin_attempt()["base"] > 1_700_000_000_009
    committer.close()
    late.close()


def test_another_query_that_acquires_the_sink_drops_the_former_decision(sink: RedisSink, client: Any) -> None:
    committer = sink.create_committer()
    committer.inspect()
    committer.acquire(Claim("query-b", "run-3", "registers"))
    assert "decided" not in client.hgetall(redis_names.control(sink.name))
    committer.close()


@pytest.mark.parametrize("point", ["driver.decided", "driver.committing", "driver.committed"])
def test_a_crashed_query_of_version_0_1_is_resumed(
    point: str, client: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = redis_counters(request)
    query = Query(case, tmp_path)
    query.run(0)
    crash_points.arm(point, case.crash)
    with contextlib.suppress(Crash):
        query.run(1)
    crash_points.disarm()
    control = redis_names.control(case.sink.name)
    fields = client.hgetall(control)
    client.delete(control)
    client.hset(control, mapping={FORMER_FIELDS.get(name, name): value for name, value in fields.items()})
    query.run(1, 2)
    assert case.visible() == all_rows(0, 1, 2)
