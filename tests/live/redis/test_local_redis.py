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


@pytest.mark.parametrize("offset", [0, 10_000], ids=["clients-port", "nodes-port"])
def test_a_port_occupied_before_the_server_binds_it_is_replaced(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Below the range of outgoing connections, even for the nodes' port.
    occupied = next(port for port in free_ports(200) if port >= 30_000)
    chosen_first = [occupied - offset]
    monkeypatch.setattr(
        local_server, "free_ports", lambda count: [chosen_first.pop()] if chosen_first else free_ports(count)
    )
    with socket.create_server((HOST, occupied)), LocalRedis(options={"cluster-enabled": "yes"}) as server:
        assert not chosen_first
        assert server.port != occupied - offset


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


def test_a_bad_option_fails_the_start_with_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(
        ServiceError, match=r"^Redis: exited during startup[^\n]*server\.log\):\n[\s\S]*argument must be"
    ):
        LocalRedis(data_dir=tmp_path, options={"appendonly": "perhaps"}).start()
