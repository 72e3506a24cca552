"""A local HBase: its ports, its data, and how it ends."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.live.hbase.support import Store, sink_of
from tests.live.one_task import apply, batch
from twopc.attempt import Evidence
from twopc.errors import RetriableError
from twopc.integration.services import server as local_server
from twopc.integration.services.hbase import LocalHBase, ServiceError
from twopc.integration.services.ports import HOST, free_ports
from twopc.sinks.hbase.cluster import locate_master
from twopc.sinks.hbase.mappings import Put
from twopc.sinks.hbase.row_ops import look
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from pathlib import Path

MAPPING = Put("{id}", {"d:v": "v"})


@pytest.mark.whole
def test_acknowledged_rows_survive_a_kill_and_a_restart_on_the_same_address(
    store: Store, local_hbase_server: LocalHBase
) -> None:
    address, pid = local_hbase_server.zookeeper, local_hbase_server.pid
    store.write(1, b"there", at_ms=1)
    local_hbase_server.kill()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ServiceError, match=r"HBase .* is not running"):
        local_hbase_server.pause()
    local_hbase_server.start()
    assert local_hbase_server.zookeeper == address
    assert store.value(1) == b"there"


def test_a_paused_hbase_is_silent_until_it_is_resumed(store: Store, local_hbase_server: LocalHBase) -> None:
    store.write(1, b"there", at_ms=1)
    local_hbase_server.pause()
    assert local_hbase_server.is_running
    with contextlib.closing(sink_of(store, MAPPING, timeout_ms=300).create_client()) as impatient:
        [answer] = impatient.execute([look(store.table, store.row(1))])
    assert isinstance(answer, ConnectionError)
    local_hbase_server.resume()
    assert store.value(1) == b"there"


@pytest.mark.whole
def test_a_paused_hbase_can_be_stopped_and_restarted_with_the_same_ports_and_data(tmp_path: Path) -> None:
    with LocalHBase(data_dir=tmp_path) as server:
        pid, address = server.pid, server.zookeeper
        with contextlib.closing(Store(address)) as store:
            store.create_table()
            store.write(1, b"there", at_ms=1)
            server.pause()
            server.stop()
            assert not psutil.pid_exists(pid)
            server.stop()
            server.start()
            assert server.zookeeper == address
            assert store.value(1) == b"there"


# The master, the region server and ZooKeeper each report an occupied port in different words.
@pytest.mark.whole
@pytest.mark.parametrize("at", [pytest.param(0, marks=pytest.mark.whole), pytest.param(1, marks=pytest.mark.whole), 2])
def test_a_port_occupied_before_the_server_binds_it_is_replaced(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(6)
    choices = [ports[:3], ports[3:]]
    monkeypatch.setattr(local_server, "free_ports", lambda _: choices.pop(0))
    with socket.create_server((HOST, ports[at])), LocalHBase() as server:
        assert locate_master(server.zookeeper, 10) == (HOST, ports[3])
        assert server.zookeeper == f"{HOST}:{ports[5]}"


def test_the_error_of_a_start_with_a_bad_property_contains_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(
        ServiceError, match=r"^HBase [\d.]+: exited during startup[^\n]*server\.log\):\n[\s\S]*\"many\""
    ):
        LocalHBase(data_dir=tmp_path, properties={"hbase.master.port": "many"}).start()


@pytest.mark.whole
def test_an_hbase_with_a_different_znode_is_found() -> None:
    with (
        LocalHBase(properties={"zookeeper.znode.parent": "/apart/hbase"}) as server,
        contextlib.closing(Store(server.zookeeper, znode="/apart/hbase")) as store,
    ):
        store.create_table()
        with pytest.raises(RetriableError, match=r"no znode /hbase/master: check that HBase is running"):
            Driver(sink_of(store, MAPPING, timeout_ms=500))
        assert apply(sink_of(store, MAPPING, znode="/apart/hbase"), batch(id=[1], v=["there"])) == [Evidence.COMMITTED]
        assert store.client.execute([look(store.table, b"1")])[0].cell[0].value == b"there"
