"""Rows are applied once in a cluster whose slots move and whose nodes die, behind Sentinel, over TLS, for an ordinary user."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import redis
import trustme
from redis.crc import key_slot
from redis.sentinel import SentinelManagedSSLConnection

from tests.live.one_task import apply, batch
from tests.live.redis.support import Decided, Move, owner_of, replication, sink_of, unique, until
from twopc.attempt import Attempt, Evidence, TaskAttempt
from twopc.errors import BadRecordError, ConfigurationError, RetriableError, UnavailableError
from twopc.integration.services.redis import DURABLE, LocalRedis
from twopc.sinks.redis import keys as redis_names
from twopc.sinks.redis.client import Call
from twopc.sinks.redis.mappings import IncrBy, ListPush
from twopc.sinks.staged.slices import SliceState
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.redis.services import RedisService
    from twopc.sinks.redis import RedisSink
    from twopc.sinks.redis.writer import RedisWriter

IDS = [number % 40 for number in range(200)]
TOTALS = dict.fromkeys(range(40), 5)
#: Numbers whose keys are in different slots under any prefix, because CRC-16 distinguishes differences within 16 bits.
ONE_SLOT_EACH = (1, 2, 3)


def totals(servers: list[LocalRedis], key: str) -> dict[int, int]:
    with contextlib.closing(redis.RedisCluster.from_url(servers[0].url)) as client:
        return {number: int(client.get(f"{key}:{number}") or 0) for number in range(40)}


def cluster_sink(servers: list[LocalRedis], key: str, **arguments: Any) -> Any:
    return sink_of(servers[0].url, IncrBy(f"{key}:{{id}}"), cluster=True, chunk_rows=2, **arguments)


# -- cluster -----------------------------------------------------------------------------------------------------------


def test_a_tasks_commands_are_grouped_by_slot(redis_cluster: list[LocalRedis]) -> None:
    key = unique()
    sink = cluster_sink(redis_cluster, key)
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=IDS))
    assert {slot for slot, _, _ in handle.groups} == {key_slot(f"{key}:{number}".encode()) for number in range(40)}
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert totals(redis_cluster, key) == TOTALS
    left = [name for server in redis_cluster for name in server.execute("KEYS", f"twopc:{sink.name}:*")]
    assert not [name for name in left if not name.endswith((b":applied", b":control"))]


def test_keys_with_the_same_hash_tag_are_one_group(redis_cluster: list[LocalRedis]) -> None:
    key = unique()
    sink = sink_of(redis_cluster[0].url, IncrBy(f"{{{{{key}}}}}:{{id}}"), cluster=True)
    driver = Driver(sink)
    driver.begin()
    assert [slot for slot, _, _ in driver.prepare(batch(id=IDS)).groups] == [key_slot(key.encode())]


def test_the_slots_of_a_task_may_have_different_numbers_of_chunks(redis_cluster: list[LocalRedis]) -> None:
    key = unique()
    few, many = sorted((0, 1), key=lambda number: key_slot(f"{key}:{number}".encode()))
    assert apply(cluster_sink(redis_cluster, key), batch(id=[few] + 7 * [many])) == [Evidence.COMMITTED]
    found = totals(redis_cluster, key)
    assert (found[few], found[many]) == (1, 7)


def slices(servers: list[LocalRedis], sink: RedisSink) -> list[str]:
    """The sink's staged slices, and the list of them."""
    found = [name for server in servers for name in server.execute("KEYS", f"twopc:{sink.name}:*:slice*")]
    return sorted(name.decode().rpartition("}:")[2].partition(":")[0] for name in found)


@pytest.fixture
def task(redis_cluster: list[LocalRedis]) -> Iterator[tuple[RedisSink, Driver, RedisWriter]]:
    """A task that wrote to three slots one after another, and its driver."""
    sink = cluster_sink(redis_cluster, unique())
    driver = Driver(sink)
    driver.begin()
    writer = sink.create_writer(TaskAttempt("query-a", 0, Attempt(1, 1), 0, driver.driver_epoch, -1))
    for number in ONE_SLOT_EACH:
        writer.write_rows(batch(id=[number]))
    assert slices(redis_cluster, sink) == ["slice"] * 3 + ["slices"]
    yield sink, driver, writer
    writer.hand_over()
    writer.close()


def test_a_failed_task_removes_its_rows_from_every_slot(
    task: tuple[RedisSink, Driver, RedisWriter], redis_cluster: list[LocalRedis]
) -> None:
    sink, _, writer = task
    writer.close()
    assert slices(redis_cluster, sink) == []


def test_the_sweep_removes_an_orphans_rows_from_every_slot(
    task: tuple[RedisSink, Driver, RedisWriter], redis_cluster: list[LocalRedis]
) -> None:
    sink, driver, _ = task
    driver.committer.recover_and_abort([])
    assert slices(redis_cluster, sink) == ["slices"]


def test_a_task_applied_in_one_slot_and_lost_in_another_is_left_unchanged(
    redis_cluster: list[LocalRedis],
) -> None:
    """The first slot contains its rows, the second still needs them, and the third has lost them.

    A tombstone in the second slot would lose rows forever.
    """
    sink = cluster_sink(redis_cluster, unique())
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=list(ONE_SLOT_EACH)))
    applied, _, lost = handle.groups
    with contextlib.closing(sink.create_committer()) as other, contextlib.closing(sink.create_client()) as direct:
        assert not other._apply(replace(handle, groups=(applied,)), scan_start["base"])
        direct.execute([Call(lost[0], ("DEL", redis_names.staged(sink.name, lost[0], handle.entry)))])
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
        assert "is partly applied" in driver.committer.blockers()[0]
        states = other._slots([handle], scan_start["base"], durable=False)
        assert states == {handle: [SliceState.COMMITTED, SliceState.PREPARED, SliceState.LOST]}
        # A driver that wakes up may have applied one slot in the meantime.
        assert not other._tombstone(handle, scan_start["base"])


def test_rows_are_applied_once_even_if_slots_move_before_the_commit(own_cluster: list[LocalRedis]) -> None:
    key = unique()
    sink = cluster_sink(own_cluster, key, timeout_ms=5_000)
    task = Decided(sink, batch(id=IDS))
    source, target = own_cluster[0], own_cluster[1]
    target_id = target.execute("CLUSTER", "MYID")
    source.execute("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", 0, 2000, "NODE", target_id)
    until(lambda: source.execute("CLUSTER", "COUNTKEYSINSLOT", 0) == 0 and owner_of(own_cluster, 0) == target_id)
    assert task.commit() is Evidence.COMMITTED
    assert totals(own_cluster, key) == TOTALS
    assert task.commit() is Evidence.COMMITTED
    assert totals(own_cluster, key) == TOTALS


@pytest.mark.whole
def test_a_slot_that_is_being_moved_delays_its_rows_and_duplicates_none(
    own_cluster: list[LocalRedis],
) -> None:
    key = unique()
    sink = cluster_sink(own_cluster, key, timeout_ms=3_000)
    task = Decided(sink, batch(id=IDS))
    move = Move(own_cluster, min(slot for slot, _, _ in task.handle.groups))
    # The slice is still on this node, but new counters already belong to the other node.
    assert task.commit() is Evidence.UNKNOWN
    move.end()
    assert task.commit() is Evidence.COMMITTED
    assert totals(own_cluster, key) == TOTALS


def test_a_commit_waits_while_the_staged_rows_have_moved_but_their_data_has_not(own_cluster: list[LocalRedis]) -> None:
    """A script on the new node would not find the data, and would create a second copy of it."""
    key = unique()
    sink = cluster_sink(own_cluster, key, timeout_ms=1_000)
    driver = Driver(sink)
    scan_start = driver.begin()
    assert driver.commit([driver.prepare(batch(id=IDS))], scan_start) == [Evidence.COMMITTED]
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[7] * 5))
    ((slot, _, _),) = handle.groups
    driver.committer.confirm([handle], 0)
    move = Move(own_cluster, slot)
    assert move.move(b"twopc:") == [f"{key}:7".encode()]
    evidence = driver.committer.commit([handle], scan_start)[handle]
    assert all(name.startswith(b"twopc:") for name in move.keys_in_target())
    assert evidence is Evidence.UNKNOWN
    assert f"hash slot {slot} is moving" in driver.committer.blockers()[0]
    move.end()
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert totals(own_cluster, key) == {**TOTALS, 7: 10}


@pytest.mark.parametrize("held", ["many", 2**63 - 2])
def test_the_check_waits_for_data_that_has_not_moved(own_cluster: list[LocalRedis], held: str | int) -> None:
    """On the new node, the check and the rehearsal would find no number, and accept every increment."""
    key = unique()
    sink = cluster_sink(own_cluster, key, timeout_ms=1_000)
    driver = Driver(sink)
    scan_start = driver.begin()
    assert driver.commit([driver.prepare(batch(id=IDS))], scan_start) == [Evidence.COMMITTED]
    driver.begin()
    handle = driver.prepare(batch(id=[7] * 5))
    ((slot, _, _),) = handle.groups
    with contextlib.closing(redis.RedisCluster.from_url(own_cluster[0].url)) as client:
        client.set(f"{key}:7", held)
    move = Move(own_cluster, slot)
    move.move(b"twopc:")
    with pytest.raises(UnavailableError, match=f"hash slot {slot} is moving"):
        driver.committer.confirm([handle], 0)
    move.end()
    with pytest.raises(BadRecordError, match=f"key '{key}:7'"):
        driver.committer.confirm([handle], 0)


def test_rows_already_moved_to_the_other_node_are_confirmed_when_the_move_ends(own_cluster: list[LocalRedis]) -> None:
    """All keys have moved, but not the slot: its node answers ASK. To a client, this looks like the middle of the move."""
    key = unique()
    driver = Driver(cluster_sink(own_cluster, key, timeout_ms=1_000))
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=IDS))
    move = Move(own_cluster, min(slot for slot, _, _ in handle.groups))
    assert not move.move()
    with pytest.raises(UnavailableError, match="is moving"):
        driver.committer.confirm([handle], 0)
    move.end()
    driver.committer.confirm([handle], 0)
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert totals(own_cluster, key) == TOTALS


def test_a_query_that_starts_during_a_move_waits_for_its_rows_and_loses_none(own_cluster: list[LocalRedis]) -> None:
    """The record's slot moves, too, to a node that has not loaded any of the scripts."""
    key = unique()
    sink = cluster_sink(own_cluster, key, timeout_ms=1_000)
    first = Driver(sink)
    scan_start = first.begin()
    assert first.commit([first.prepare(batch(id=[7] * 2))], scan_start) == [Evidence.COMMITTED]
    moves = [
        Move(own_cluster, slot) for slot in (redis_names.slot_of_control(sink.name), key_slot(f"{key}:7".encode()))
    ]
    for move in moves:
        move.move(b"twopc:")
        move.target.execute("SCRIPT", "FLUSH")
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[7] * 3))
    with pytest.raises(UnavailableError, match="is moving"):
        driver.committer.confirm([handle], 0)
    for move in moves:
        move.end()
    driver.committer.confirm([handle], 0)
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert totals(own_cluster, key)[7] == 5


def test_a_commit_waits_while_the_data_has_moved_but_the_staged_rows_have_not(own_cluster: list[LocalRedis]) -> None:
    """The script then runs on the old node, which rejects only its commands."""
    key = unique()
    driver = Driver(cluster_sink(own_cluster, key, timeout_ms=1_000))
    scan_start = driver.begin()
    assert driver.commit([driver.prepare(batch(id=[7]))], scan_start) == [Evidence.COMMITTED]
    scan_start = driver.begin()
    handle = driver.prepare(batch(id=[7] * 2))
    ((slot, _, _),) = handle.groups
    driver.committer.confirm([handle], 0)
    move = Move(own_cluster, slot)
    assert all(name.startswith(b"twopc:") for name in move.move(key.encode()))
    with pytest.raises(UnavailableError, match=f"hash slot {slot} is moving to another node"):
        driver.committer.confirm([handle], 0)
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    [blocker] = driver.committer.blockers()
    assert f"has not been applied: hash slot {slot} is moving to another node" in blocker
    move.end()
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert totals(own_cluster, key)[7] == 3


def test_the_settings_of_every_primary_are_checked(own_cluster: list[LocalRedis]) -> None:
    sink = cluster_sink(own_cluster, unique())
    own_cluster[1].execute("CONFIG", "SET", "proto-max-bulk-len", "2mb")
    with contextlib.closing(sink.create_client()) as own_client:
        assert own_client.largest_argument_bytes() == 2 * 1024 * 1024
    own_cluster[2].execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with (
        contextlib.closing(sink.create_committer()) as committer,
        pytest.raises(ConfigurationError, match="noeviction"),
    ):
        committer.inspect()


@pytest.mark.whole
def test_a_commit_is_unknown_while_a_node_is_down(own_cluster: list[LocalRedis]) -> None:
    key = unique()
    sink = cluster_sink(own_cluster, key, timeout_ms=2_000)
    task = Decided(sink, batch(id=IDS))
    own_cluster[2].kill()
    assert task.commit() is Evidence.UNKNOWN
    own_cluster[2].start()
    until(lambda: task.commit() is Evidence.COMMITTED)
    assert totals(own_cluster, key) == TOTALS


def test_a_cluster_and_a_single_server_are_distinguished(
    redis_cluster: list[LocalRedis], redis_server: RedisService
) -> None:
    with pytest.raises(ConfigurationError, match="pass cluster=True"):
        sink_of(redis_cluster[0].url, ListPush("rows", "v")).create_committer().inspect()
    with pytest.raises(ConfigurationError, match="remove cluster=True"):
        sink_of(redis_server.url, ListPush("rows", "v"), cluster=True).create_committer().inspect()


# -- Sentinel ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def watched_pair() -> Iterator[tuple[LocalRedis, LocalRedis, LocalRedis]]:
    """A primary, its replica, and a Sentinel that knows both."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(LocalRedis(options=DURABLE))
        second = stack.enter_context(LocalRedis(options={**DURABLE, "replicaof": f"127.0.0.1 {first.port}"}))
        watch = {
            "sentinel monitor": f"shop 127.0.0.1 {first.port} 1",
            "sentinel down-after-milliseconds": "shop 300",
            "sentinel failover-timeout": "shop 2000",
        }
        sentinel = stack.enter_context(LocalRedis(options=watch, arguments=["--sentinel"]))
        until(lambda: len(sentinel.execute("SENTINEL", "REPLICAS", "shop")) == 1)
        until(lambda: b"connected_slaves:1" in replication(first))
        yield first, second, sentinel


@pytest.mark.whole
def test_a_commit_follows_the_primary_reported_by_sentinel() -> None:
    with watched_pair() as (first, second, sentinel):
        sink = sink_of(
            "redis://",
            IncrBy("n"),
            sentinels=(("127.0.0.1", sentinel.port),),
            service="shop",
            wait_replicas=1,
            timeout_ms=5_000,
        )
        task = Decided(sink, batch(id=IDS))
        first.kill()
        until(lambda: _is_primary(second))
        first.options["replicaof"] = f"127.0.0.1 {second.port}"
        first.start()
        until(lambda: task.commit() is Evidence.COMMITTED)
        assert (second.execute("GET", "n"), first.execute("GET", "n")) == (b"200", b"200")


@pytest.mark.whole
def test_a_commit_succeeds_after_sentinel_has_replaced_a_hanging_primary() -> None:
    """A hung server closes no connection, so only the timeout of a call ends the first try."""
    with watched_pair() as (first, second, sentinel):
        places = (("127.0.0.1", sentinel.port),)
        sink = sink_of("redis://", IncrBy("n"), sentinels=places, service="shop", timeout_ms=9_000)
        task = Decided(sink, batch(id=IDS))
        until(lambda: second.execute("DBSIZE") == first.execute("DBSIZE"))
        first.pause()
        assert task.commit() is Evidence.COMMITTED
        assert second.execute("GET", "n") == b"200"


def test_the_sentinels_may_have_their_own_password() -> None:
    with LocalRedis() as primary:
        watch = {"sentinel monitor": f"shop 127.0.0.1 {primary.port} 1"}
        with LocalRedis(options=watch, arguments=["--sentinel"]) as sentinel:
            sentinel.execute("ACL", "SETUSER", "default", "resetpass", ">of-sentinel")

            def sink_with(**arguments: Any) -> RedisSink:
                places = (("127.0.0.1", sentinel.port),)
                return sink_of("redis://", IncrBy("n"), sentinels=places, service="shop", **arguments)

            with pytest.raises(ConfigurationError, match=r"No master found.* the Sentinels in sentinel_options$"):
                sink_with().create_committer().inspect()
            sink = sink_with(sentinel_options={"password": "of-sentinel"})
            assert apply(sink, batch(id=[1, 2])) == [Evidence.COMMITTED]
            assert primary.execute("GET", "n") == b"2"
            assert "of-sentinel" not in repr(sink)


def test_behind_sentinel_the_url_supplies_user_database_and_tls() -> None:
    sink = sink_of("rediss://ann:secret@ignored:1/3", IncrBy("n"), sentinels=(("h", 1),), service="shop")
    client: Any = sink.connect()
    given = client.connection_pool.connection_kwargs
    assert client.connection_pool.connection_class is SentinelManagedSSLConnection
    assert {name: given.get(name) for name in ("username", "password", "db", "host")} == {
        "username": "ann",
        "password": "secret",
        "db": 3,
        "host": None,
    }


def _is_primary(server: LocalRedis) -> bool:
    # A server closes its clients' connections when it is promoted.
    with contextlib.suppress(redis.ConnectionError):
        return bool(server.execute("ROLE")[0] == b"master")
    return False


class _Forward(socketserver.BaseRequestHandler):
    """Forwards bytes between a TLS connection and the server, which itself is built without TLS."""

    server: _Front

    def handle(self) -> None:
        with (
            contextlib.suppress(OSError),
            self.server.context.wrap_socket(self.request, server_side=True) as near,
            socket.create_connection(self.server.target) as far,
        ):
            back = threading.Thread(target=_carry, args=(far, near))
            back.start()
            _carry(near, far)
            far.shutdown(socket.SHUT_WR)
            back.join()


class _Front(socketserver.ThreadingTCPServer):
    daemon_threads = True
    context: ssl.SSLContext
    target: tuple[str, int]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connections."""


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)


@contextlib.contextmanager
def _tls_in_front_of(url: str, context: ssl.SSLContext) -> Iterator[int]:
    """A local port that accepts TLS."""
    place = urlsplit(url)
    with _Front(("127.0.0.1", 0), _Forward) as front:
        front.context, front.target = context, (place.hostname or "", place.port or 6379)
        thread = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield front.server_address[1]
        finally:
            front.shutdown()
            thread.join()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


# -- TLS and users -----------------------------------------------------------------------------------------------------


def test_rows_can_be_written_over_tls(redis_server: RedisService, tmp_path: Path, stack: contextlib.ExitStack) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    encrypted = stack.enter_context(_tls_in_front_of(redis_server.url, context))
    url = f"rediss://127.0.0.1:{encrypted}"
    key = unique()
    sink = sink_of(url, ListPush(key, "v"), options={"ssl_ca_certs": str(tmp_path / "ca.pem")})
    assert apply(sink, batch(v=[1, 2])) == [Evidence.COMMITTED]
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as client:
        assert client.llen(key) == 2
    with pytest.raises(RetriableError, match=r"certificate|CERTIFICATE"):
        sink_of(url, ListPush("rows", "v")).create_committer().inspect()
