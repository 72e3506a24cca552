"""Bad rows stop the batch before its decision. If a key turns bad afterwards, the batch is applied once it is fixed."""

from __future__ import annotations

import contextlib
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis

from tests.live.one_task import OneTask, apply, batch
from tests.live.redis.support import Decided, left_behind, sink_of, unique
from twopc.attempt import Evidence
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.crash_points import arm, disarm
from twopc.errors import BadRecordError, CommitBlockedError, ConfigurationError, RefusedStartError, SchemaError
from twopc.files import LocalFiles
from twopc.integration.services.redis import LocalRedis
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import (
    Expire,
    HashIncrBy,
    HashSet,
    IncrBy,
    IncrByFloat,
    ListPush,
    Set,
    SetAdd,
    SortedSetAdd,
)
from twopc.sinks.staged.committer import StagedCommitter
from twopc.testing.contract.drivers import QUERY_ID, Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.live.redis.services import RedisService
    from twopc.sinks.redis.mappings import Mapping


@pytest.fixture
def client(redis_server: RedisService) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as made:
        yield made


KEY = "bad:{id}"
_BAD: list[tuple[Mapping, dict[str, Any], type[Exception], str]] = [
    (Set("bad:{nobody}", "v"), {"v": ["a"]}, SchemaError, "no column 'nobody'"),
    (Set(KEY, "nobody"), {"id": [1]}, SchemaError, "no column 'nobody'"),
    (HashSet(KEY, ("a", "b")), {"id": [1], "a": [1]}, SchemaError, "no column 'b'"),
    (Set(KEY, "v"), {"id": [1], "v": [[1, 2]]}, SchemaError, "to_json"),
    (IncrBy(KEY, "n"), {"id": [1], "n": [1.5]}, SchemaError, "cast it to bigint"),
    (IncrByFloat(KEY, "n"), {"id": [1], "n": ["1"]}, SchemaError, "cast it to double"),
    (Set(KEY, "v"), {"id": [1, 2], "v": ["a", None]}, BadRecordError, "null in row 1"),
    (Set(KEY, "v"), {"id": [1, None], "v": ["a", "b"]}, BadRecordError, "null in row 1"),
    (
        Set(KEY, "v"),
        {"id": pa.array([0, 2_932_897], pa.date32()), "v": ["a", "b"]},
        BadRecordError,
        "years 1 to 9999 in row 1",
    ),
    (IncrBy(KEY, "n"), {"id": [1], "n": pa.array([2**63], pa.uint64())}, BadRecordError, "64-bit"),
    (SortedSetAdd(KEY, "s", "id"), {"id": [1], "s": [float("nan")]}, BadRecordError, "NaN"),
    (IncrByFloat(KEY, "s"), {"id": [1], "s": [float("inf")]}, BadRecordError, "infinity"),
    (
        SortedSetAdd(KEY, "s", "id"),
        {"id": [1, 2], "s": [1, 2**53 + 1]},
        BadRecordError,
        "9007199254740993 in row 1 .*a double",
    ),
    (
        IncrByFloat(KEY, "s"),
        {"id": [1, 2], "s": pa.array([Decimal(1), Decimal("1E-18")], pa.decimal128(38, 18))},
        BadRecordError,
        "1E-18 in row 1 .*only 17 digits",
    ),
    (Set("{id}", "id"), {"id": ["a", "twopc:x"]}, BadRecordError, "reserved for the sink"),
    (
        Expire(KEY, "ms"),
        {"id": [1, 2], "ms": [1, 2**63 - 1]},
        BadRecordError,
        "'ms' contains a time to live of 9223372036854775807",
    ),
]


@pytest.mark.parametrize(("mapping", "columns", "error", "words"), _BAD)
def test_a_row_that_redis_cannot_store_stops_the_task(
    mapping: Mapping, columns: dict[str, Any], error: type[Exception], words: str, redis_server: RedisService
) -> None:
    driver = Driver(sink_of(redis_server.url, mapping))
    driver.begin()
    with pytest.raises(error, match=words):
        driver.prepare(batch(**columns))


@pytest.mark.parametrize(
    ("mapping", "held", "words"),
    [
        (Set("{k}", "v"), ("RPUSH", "x"), "it contains a list, but SET needs a string"),
        (HashSet("{k}", ("v",)), ("SET", "x"), "it contains a string, but HSET needs a hash"),
        (ListPush("{k}", "v"), ("SADD", "x"), "it contains a set, but RPUSH needs a list"),
        (SetAdd("{k}", "v"), ("SET", "x"), "it contains a string, but SADD needs a set"),
        (IncrBy("{k}", "v"), ("SET", "1.5"), "not an integer"),
        (IncrByFloat("{k}", "v"), ("SET", "x"), "on 'x' returns ERR value is not a valid float"),
        (
            IncrBy("{k}", "v"),
            ("SET", "9223372036854775800"),
            "INCRBY 9000 on '9223372036854775800' returns ERR .*would overflow",
        ),
    ],
)
def test_a_key_of_another_type_stops_the_batch_before_its_decision(
    mapping: Mapping, held: tuple[str, str], words: str, redis_server: RedisService, client: Any
) -> None:
    key = unique()
    client.execute_command(held[0], f"{key}:2", held[1])
    sink = sink_of(redis_server.url, mapping, chunk_rows=1)
    with pytest.raises(BadRecordError, match=f"{key}:2.*{words}"):
        apply(sink, batch(k=[f"{key}:1", f"{key}:2"], v=[3, 9_000]))
    assert client.exists(f"{key}:1") == 0


@pytest.mark.parametrize("chunk_rows", [1, 1000])
def test_increments_whose_sum_overflows_stop_the_batch_before_its_decision(
    chunk_rows: int, redis_server: RedisService, client: Any
) -> None:
    """Each of them fits the key's value alone; the last one would block a decided batch."""
    key = unique()
    sink = sink_of(redis_server.url, IncrBy("{k}", "v"), chunk_rows=chunk_rows)
    with pytest.raises(BadRecordError, match=f"{key}.*would overflow"):
        apply(sink, batch(k=[key] * 2, v=[2**62 - 1] * 2), batch(k=[key], v=[2**62]))
    assert client.exists(key) == 0


def test_sums_are_kept_apart_even_if_their_keys_and_fields_form_the_same_string(
    redis_server: RedisService, client: Any
) -> None:
    key, large = unique(), 3 * 2**61  # twice that exceeds 64 bits
    rows = batch(k=[f"{key}a", key], b=[large, 0], ab=[0, large])
    assert apply(sink_of(redis_server.url, HashIncrBy("{k}", ("b", "ab"))), rows) == [Evidence.COMMITTED]
    assert (client.hget(f"{key}a", "b"), client.hget(key, "ab")) == (b"%d" % large, b"%d" % large)


def test_a_key_that_becomes_invalid_after_the_decision_blocks_the_commit_until_it_is_fixed(
    redis_server: RedisService, client: Any, tmp_path: Path
) -> None:
    key = unique()
    sink = sink_of(redis_server.url, ListPush("{k}", "v"), chunk_rows=3)
    rows = batch(k=[f"{key}:{number}" for number in (1, 1, 2, 3, 2, 1, 1)], v=list(range(7)))
    batch_0 = Batch("query-a", 0, ("0",), lambda _: ("0",))
    arm("driver.decided", lambda: client.set(f"{key}:2", "in the way"))
    with pytest.raises(CommitBlockedError, match=rf"slice.*{key}:2.*WRONGTYPE"):
        Coordinator([sink], LocalFiles(tmp_path)).process(batch_0, OneTask(sink, rows))
    disarm()
    with pytest.raises(CommitBlockedError):
        Coordinator([sink], LocalFiles(tmp_path)).process(batch_0, OneTask(sink, rows))
    client.delete(f"{key}:2")
    Coordinator([sink], LocalFiles(tmp_path)).process(batch_0, OneTask(sink, rows))
    assert [client.lrange(f"{key}:{number}", 0, -1) for number in (1, 2, 3)] == [
        [b"0", b"1", b"5", b"6"],
        [b"2", b"4"],
        [b"3"],
    ]
    assert left_behind(redis_server.url, sink) == ["applied", "control"]


def test_a_row_above_the_servers_limit_stops_the_task() -> None:
    with LocalRedis(options={"proto-max-bulk-len": "1mb"}) as server:
        driver = Driver(sink_of(server.url, ListPush("rows", "v")))
        driver.begin()
        with pytest.raises(BadRecordError, match="proto-max-bulk-len"):
            driver.prepare(batch(v=["a", "x" * 1_100_000]))


def test_a_server_that_may_evict_keys_is_refused() -> None:
    with LocalRedis(options={"maxmemory-policy": "allkeys-lru"}) as server:
        sink = sink_of(server.url, ListPush("rows", "v"))
        with pytest.raises(ConfigurationError, match=r"maxmemory-policy is 'allkeys-lru'.*noeviction"):
            sink.create_committer().inspect()
        assert left_behind(server.url, sink) == []


def test_a_full_server_delays_a_decided_batch_and_loses_no_row() -> None:
    with LocalRedis() as server, contextlib.closing(server.client()) as client:
        sink = sink_of(server.url, ListPush("rows", "v"))
        task = Decided(sink, batch(v=list(range(100))))
        client.config_set("maxmemory", "1")
        assert task.commit() is Evidence.UNKNOWN
        assert client.llen("rows") == 0
        client.config_set("maxmemory", "0")
        assert task.commit() is Evidence.COMMITTED
        assert client.llen("rows") == 100


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_server_that_is_full_after_the_decision_is_reported_as_full_and_not_as_silent(
    *, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis refuses to record the decision, or the first write to the list of applied slices. Later chunks do not wait for it."""
    with LocalRedis() as server, contextlib.closing(server.client()) as client:
        sink = sink_of(server.url, ListPush("rows", "v"), chunk_rows=10, timeout_ms=30_000)
        task = Decided(sink, batch(v=list(range(100))))
        apply_all = StagedCommitter._apply_all

        def fill(*arguments: Any) -> None:
            client.config_set("maxmemory", "1")
            apply_all(*arguments)

        if is_recorded:
            monkeypatch.setattr(StagedCommitter, "_apply_all", fill)
        else:
            client.config_set("maxmemory", "1")
        began = time.monotonic()
        assert task.commit() is Evidence.UNKNOWN
        assert time.monotonic() - began < 15
        [blocker] = task.blockers()
        assert "used memory > 'maxmemory'" in blocker
        assert "raise maxmemory" in blocker
        assert "does not respond" not in blocker
        monkeypatch.undo()
        client.config_set("maxmemory", "0")
        assert task.commit() is Evidence.COMMITTED
        assert client.lrange("rows", 0, -1) == [b"%d" % number for number in range(100)]


def test_a_wrong_password_causes_a_configuration_error(redis_server: RedisService) -> None:
    sink = sink_of(redis_server.url.replace("redis://", "redis://nobody:wrong@"), ListPush("rows", "v"))
    with pytest.raises(ConfigurationError, match="user and password"):
        sink.create_committer().inspect()


def test_a_sink_of_another_query_is_refused_unless_end_query_id_identifies_that_query(
    redis_server: RedisService, client: Any, tmp_path: Path
) -> None:
    sink = sink_of(redis_server.url, ListPush("{k}", "v"))
    Driver(sink)
    key = unique()
    engine = OneTask(sink, batch(k=[key], v=[1]))
    other = Batch("query-b", 0, ("0",), lambda _: ("0",))
    with pytest.raises(RefusedStartError, match=rf"{QUERY_ID}.*override=EndQuery\('{QUERY_ID}'\)"):
        Coordinator([sink], LocalFiles(tmp_path)).process(other, engine)
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    Coordinator([sink], LocalFiles(tmp_path), settings=ending).process(other, engine)
    assert client.lrange(key, 0, -1) == [b"1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "a.b"}, "name='a.b'"),
        ({"url": "http://x"}, "redis://"),
        ({"options": {"retry": None}}, "'retry' is reserved"),
        ({"sentinels": (("h", 1),)}, "service"),
        ({"chunk_rows": 0}, "chunk_rows=0"),
        ({"wait_replicas": -1}, "wait_replicas=-1"),
    ],
)
def test_an_invalid_argument_is_rejected_with_an_error_that_identifies_it(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        RedisSink(**{"name": "a", "url": "redis://x", "mapping": ListPush("rows", "v"), **arguments})


@pytest.mark.parametrize("expire_ms", [0, -1, 2**63 - 1, 2**63, 1.5, True])
@pytest.mark.parametrize("make", [lambda ms: Set("k", "v", expire_ms=ms), lambda ms: Expire("k", ms)])
def test_a_time_to_live_that_redis_would_reject_is_reported(make: Callable[[Any], Mapping], expire_ms: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"expire_ms={expire_ms}\): pass an integer from 1 to 9223118634553975808"
    ):
        make(expire_ms)


@pytest.mark.parametrize("by", [2**63, -(2**63) - 1, 1.5, True, None])
def test_an_increment_that_redis_would_reject_is_reported(by: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"IncrBy\(by={by}\): pass an integer from -9223372036854775808"):
        IncrBy("k", by)
