"""Defects of the HBase library's connections that the sink works around, and how it locates rows."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.live.hbase.support import sink_of, until
from twopc.errors import RetriableError
from twopc.sinks.hbase import cluster as hbase_cluster
from twopc.sinks.hbase.client import HBaseClient
from twopc.sinks.hbase.cluster import Cluster, locate_master, locate_meta
from twopc.sinks.hbase.connection import RegionServer
from twopc.sinks.hbase.errors import AbsentTableError
from twopc.sinks.hbase.mappings import Put
from twopc.sinks.hbase.messages import client_pb
from twopc.sinks.hbase.row_ops import look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.hbase.support import Store

#: Sizes at which a request's length needs another byte, and sizes at which the library's own framing makes the length
#: negative.
_SIZES = (0, 100, 128, 16_384, 131_072, 200_000, 1_500_000, 3_000_000)


@pytest.mark.parametrize("size", _SIZES)
def test_a_request_of_any_size_arrives_unchanged(size: int, store: Store) -> None:
    store.write(size, b"v" + b"x" * size, at_ms=1)
    assert store.value(size) == b"v" + b"x" * size


# -- missing responses ---------------------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(10)
        yield made


@pytest.fixture
def server(listener: socket.socket) -> Iterator[RegionServer]:
    with contextlib.closing(RegionServer(*listener.getsockname(), user="tests", timeout_s=0.2)) as made:
        yield made


def test_a_silent_server_causes_a_connection_error(server: RegionServer) -> None:
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:\d+: timed out"):
        server.send_request(client_pb.MultiRequest(), "Multi")


def test_the_call_after_a_lost_response_uses_a_new_connection(server: RegionServer, listener: socket.socket) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionError):
            server.send_request(client_pb.MultiRequest(), "Multi")
        with listener.accept()[0] as accepted:
            assert accepted.recv(4) == b"HBas"


def test_a_connection_starts_with_the_given_user(server: RegionServer, listener: socket.socket) -> None:
    with pytest.raises(ConnectionError):
        server.send_request(client_pb.MultiRequest(), "Multi")
    with listener.accept()[0] as accepted:
        assert b"tests" in accepted.recv(1_000)


def test_an_unreachable_quorum_is_reported_within_the_sinks_timeout(store: Store, listener: socket.socket) -> None:
    nobody = f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    sink = sink_of(store, Put("{id}", {"d:v": "v"}), zookeeper=nobody, timeout_ms=500)
    began = time.monotonic()
    with contextlib.closing(sink.create_committer()) as committer, pytest.raises(RetriableError, match=nobody):
        committer.inspect()
    assert time.monotonic() - began < 5


def test_a_silent_quorum_is_asked_once_and_not_once_per_row(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def counted(quorum: str, timeout_s: float, znode: str) -> tuple[str, int]:
        asked.append(timeout_s)
        return locate_meta(quorum, timeout_s, znode)

    monkeypatch.setattr(hbase_cluster, "locate_meta", counted)
    cluster = Cluster(f"127.0.0.1:{listener.getsockname()[1]}", user="tests", timeout_s=0.2)
    answers = HBaseClient(cluster, timeout_s=0.1).execute([look("t", b"%d" % number) for number in range(20)])
    assert [type(answer) for answer in answers] == [ConnectionError] * 20
    assert asked == [0.2]


def test_a_failed_lookup_leaves_no_client_behind(store: Store) -> None:
    before = threading.active_count()
    with pytest.warns(UserWarning, match="chroot"), pytest.raises(ConnectionError, match="no znode /hbase/master"):
        locate_master(f"{store.zookeeper}/nowhere", 10)
    until(lambda: threading.active_count() == before)


# -- locating rows -----------------------------------------------------------------------------------------------------


def test_the_first_row_of_a_region_is_in_that_region(store: Store) -> None:
    store.table = f"begin-{store.prefix}"
    store.create_table()
    store.split(b"m")
    until(lambda: len({store.region_of(b"m"), store.region_of(b"a"), b""}) == 3)
    for row, start in (
        (b"", b""),
        (b"l", b""),
        (b"l\xff", b""),
        (b"m", b"m"),
        (b"m\0", b"m"),
        (b"m,", b"m"),
        (b"z", b"m"),
    ):
        store.cluster.forget(store.table)
        assert store.cluster.region_of(store.table, row).start == start, row


def test_tables_with_a_common_name_prefix_are_distinguished(store: Store) -> None:
    names = [f"{store.prefix}{end}" for end in ("", "-", ".x", "0", "_z")]
    for name in names[::2]:
        store.create_table(name)
    for name in names[::2]:
        region = store.cluster.region_of(f"default:{name}", b"row,with,commas")
        assert region.name.startswith(f"{name},,".encode())
    for name in names[1::2]:
        with pytest.raises(AbsentTableError, match=name):
            store.cluster.region_of(name, b"row")
