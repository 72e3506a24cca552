"""Every mapping on a real server: each row takes effect exactly once."""

from __future__ import annotations

import contextlib
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.live.one_task import apply, batch
from tests.live.redis.support import left_behind, sink_of, unique
from twopc.attempt import Evidence
from twopc.sinks.redis.mappings import (
    Delete,
    Expire,
    HashIncrBy,
    HashSet,
    IncrBy,
    IncrByFloat,
    ListPush,
    Set,
    SetAdd,
    SortedSetAdd,
    StreamAdd,
)
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.redis.services import RedisService


@pytest.fixture
def client(redis_server: RedisService) -> Iterator[redis.Redis]:
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as made:
        yield made


@pytest.fixture
def key() -> str:
    return unique()


def write(service: RedisService, mapping: Any, *, chunk_rows: int = 2, **columns: Any) -> None:
    """Write rows and commit them twice, as after a crash before the response to the commit."""
    sink = sink_of(service.url, mapping, chunk_rows=chunk_rows)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(**columns))
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert Driver(sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert left_behind(service.url, sink) == ["applied", "control"]


def test_set_writes_a_value(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, Set(f"{key}:{{id}}", "v"), id=[1, 2, 3], v=["a", "b", "ü"])
    assert [client.get(f"{key}:{number}") for number in (1, 2, 3)] == [b"a", b"b", "ü".encode()]


def test_the_last_row_of_a_key_wins_across_chunks_and_tasks(
    redis_server: RedisService, client: redis.Redis, key: str
) -> None:
    sink = sink_of(redis_server.url, Set(key, "v"), chunk_rows=2)
    apply(sink, batch(v=[1, 2, 3, 4, 5]), batch(v=[6, 7, 8]))
    assert client.get(key) == b"8"


def test_set_can_specify_a_time_to_live(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, Set(key, "v", expire_ms=60_000), v=["a"])
    assert 0 < client.pttl(key) <= 60_000


def test_hash_set_writes_a_field_per_column_and_keeps_other_fields(
    redis_server: RedisService, client: redis.Redis, key: str
) -> None:
    client.hset(f"{key}:7", "other", "stays")
    write(redis_server, HashSet(f"{key}:{{id}}", ("sum", "day")), id=[7], sum=[Decimal("1.50")], day=[date(2026, 1, 2)])
    assert client.hgetall(f"{key}:7") == {b"other": b"stays", b"sum": b"1.50", b"day": b"2026-01-02"}


def test_increments_are_added_exactly_once(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, IncrBy(f"{key}:{{id}}", "n"), id=["a", "b", "a", "a", "b"], n=[1, 10, 2, 3, -4])
    assert (client.get(f"{key}:a"), client.get(f"{key}:b")) == (b"6", b"6")


def test_an_increment_can_be_the_same_for_every_row(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, IncrBy(key, 2), id=[1, 2, 3])
    assert client.get(key) == b"6"


def test_one_hash_can_hold_several_totals(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, HashIncrBy(f"{key}:{{id}}", ("sum", "count")), id=["a", "a"], sum=[5, 6], count=[1, 1])
    assert client.hgetall(f"{key}:a") == {b"sum": b"11", b"count": b"2"}


def test_fractions_are_added_exactly_once(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, IncrByFloat(key, "f"), f=[0.5, 0.25, 1.0])
    assert client.get(key) == b"1.75"


def test_members_are_added_to_a_set(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, SetAdd(key, "m"), m=["a", "b", "a"])
    assert client.smembers(key) == {b"a", b"b"}


def test_the_last_score_of_a_member_wins(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, SortedSetAdd(key, "s", "m"), s=[1.5, 2.0, 3.0], m=["a", "b", "a"])
    assert client.zrange(key, 0, -1, withscores=True) == [(b"b", 2.0), (b"a", 3.0)]


def test_values_are_pushed_once_and_in_order(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, ListPush(key, "v"), v=[b"\x00", b"\xff\xfe", b"", b"c", b"d"])
    assert client.lrange(key, 0, -1) == [b"\x00", b"\xff\xfe", b"", b"c", b"d"]


def test_each_row_becomes_an_entry_of_a_stream(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, StreamAdd(key, ("a", "b")), a=[1, 2, 3], b=[True, False, True])
    entries = [fields for _, fields in client.xrange(key) or []]
    assert entries == [{b"a": b"1", b"b": b"true"}, {b"a": b"2", b"b": b"false"}, {b"a": b"3", b"b": b"true"}]


def test_expire_sets_a_time_to_live(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    client.mset({f"{key}:1": "a", f"{key}:2": "b", f"{key}:3": "c"})
    write(redis_server, Expire(f"{key}:{{id}}", "ms"), id=[1, 2], ms=[60_000, 90_000])
    assert 0 < client.pttl(f"{key}:1") <= 60_000 < client.pttl(f"{key}:2") <= 90_000
    assert client.pttl(f"{key}:3") == -1


def test_delete_removes_keys_of_any_type(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    client.set(f"{key}:1", "a")
    client.rpush(f"{key}:2", "b")
    write(redis_server, Delete(f"{key}:{{id}}"), id=[1, 2, 3])
    assert client.exists(f"{key}:1", f"{key}:2") == 0


@pytest.mark.parametrize("rows", [1, 999, 1000, 1001, 4500])
def test_slices_of_any_size_are_applied_whole(
    rows: int, redis_server: RedisService, client: redis.Redis, key: str
) -> None:
    write(redis_server, ListPush(key, "v"), chunk_rows=1000, v=list(range(rows)))
    assert client.lrange(key, 0, -1) == [b"%d" % number for number in range(rows)]


def test_a_large_row_forms_a_separate_chunk(redis_server: RedisService, client: redis.Redis, key: str) -> None:
    write(redis_server, ListPush(key, "v"), chunk_rows=1000, v=[b"a", b"x" * 3_000_000, b"b"])
    assert [client.lindex(key, at) for at in (0, 2)] == [b"a", b"b"]
    assert len(client.lindex(key, 1) or b"") == 3_000_000


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("?protocol=3&client_name=twopc&health_check_interval=30&max_connections=3&socket_keepalive=yes&db=1", {}),
        ("?protocol=2", {"client_name": "twopc", "db": 1}),
        ("?protocol=3&legacy_responses=false", {"client_name": "twopc", "db": 1}),
    ],
)
def test_options_that_pass_the_check_do_not_change_which_rows_are_written(
    query: str, options: dict[str, Any], redis_server: RedisService, key: str
) -> None:
    sink = sink_of(redis_server.url + query, IncrBy(key, "n"), options=options)
    apply(sink, batch(n=[1, 2]))
    apply(sink, batch(n=[2**62]))  # a rehearsal, too
    with contextlib.closing(redis.Redis.from_url(redis_server.url, db=1)) as client:
        assert client.get(key) == b"%d" % (2**62 + 3)
        assert sorted(name.decode().rpartition("}:")[2] for name in client.scan_iter(f"twopc:{sink.name}:*")) == [
            "applied",
            "control",
        ]
