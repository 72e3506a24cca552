from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import psutil
import pytest

from twopc.integration.services import server as local_server
from twopc.integration.services.ports import HOST, free_ports
from twopc.integration.services.redis import LocalRedis, ServiceError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("position", [0, 1], ids=["clients-port", "nodes-port"])
def test_a_port_occupied_before_the_server_binds_it_is_replaced(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(2)
    choices = [list(first)]
    monkeypatch.setattr(local_server, "free_ports", lambda count: choices.pop() if choices else free_ports(count))
    with (
        socket.create_server((HOST, first[position])) as occupied,
        LocalRedis(options={"cluster-enabled": "yes"}) as server,
    ):
        assert not choices
        assert occupied.getsockname()[1] not in {server.port, server.nodes_port}


def test_the_nodes_of_a_cluster_do_not_listen_on_a_port_meant_for_outgoing_connections() -> None:
    with LocalRedis(options={"cluster-enabled": "yes"}) as server:
        ports = {c.laddr.port for c in psutil.Process(server.pid).net_connections() if c.status == psutil.CONN_LISTEN}
        assert ports == {server.port, server.nodes_port}


def test_a_paused_server_can_be_stopped_and_restarted_with_the_same_port_and_data(tmp_path: Path) -> None:
    with LocalRedis(data_dir=tmp_path, options={"appendonly": "yes"}) as server:
        pid, port = server.pid, server.port
        server.execute("SET", "a", "1")
        server.pause()
        server.stop()
        assert not psutil.pid_exists(pid)
        with pytest.raises(ServiceError, match="Redis is not running"):
            server.pause()
        server.start()
        assert (server.port, server.execute("GET", "a")) == (port, b"1")


def test_the_error_of_a_start_with_a_bad_option_contains_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(
        ServiceError, match=r"^Redis: exited during startup[^\n]*server\.log\):\n[\s\S]*argument must be"
    ):
        LocalRedis(data_dir=tmp_path, options={"appendonly": "perhaps"}).start()
