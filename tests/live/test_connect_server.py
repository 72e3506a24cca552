"""A client and a server of Spark Connect are separate processes. One of them dies, and the process of the function lives on.

``TWOPC_CONNECT_CLIENT`` names another interpreter for the client, for example one with only ``pyspark-client``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.live.connect_client import READY_TO_START, RUNNING, STOPPED
from tests.live.connect_server import READY
from tests.live.spark_support import Pipeline, processes_of, wait_until
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.ports import free_ports

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

pytestmark = pytest.mark.whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.live.services import KafkaService

_HERE = Path(__file__).parent
_TIMEOUT_S = 200.0
#: The errors that a client may report after it has lost to another client: Spark's own error names, or the fence.
_LOST = ("CONCURRENT_QUERY", "CONCURRENT_STREAM_LOG_UPDATE", "concurrently using", "already active", "FencedError")


def _process(root: Path, script: str, *arguments: str, interpreter: str = sys.executable) -> GuardedProcess:
    root.mkdir()
    paths = os.pathsep.join([str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = ["env", f"PYTHONPATH={paths}", interpreter, str(_HERE / script), *arguments]
    return GuardedProcess(command, log=root / "log", cwd=root)


class Server:
    """A server, and everything that it starts."""

    def __init__(self, root: Path, **settings: str) -> None:
        [port] = free_ports(1)
        self.url = f"sc://127.0.0.1:{port}"
        self.log = root / "log"
        self._process = _process(root, "connect_server.py", str(port), json.dumps(settings))
        self._session = os.getpgid(self._process.pid)
        wait_until(lambda: READY in self.text or self._process.exit_code is not None, f"{self.log}: ready", _TIMEOUT_S)
        assert READY in self.text, self.text[-3000:]

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self, *, leaving: psutil.Process | None = None) -> None:
        for process in processes_of(self._session):
            if process != leaving:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait(10)


@contextlib.contextmanager
def server(root: Path, **settings: str) -> Iterator[Server]:
    one = Server(root, **settings)
    try:
        yield one
    finally:
        one.kill()


class Client:
    """A client of a server, with one query."""

    def __init__(
        self,
        root: Path,
        server: Server,
        pipeline: Pipeline,
        waits_at: str = "",
        go: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        pipeline.flush()
        options = pipeline.options
        given = {
            "server": server.url,
            "name": options.name,
            "bootstrap_servers": options.bootstrap_servers,
            "source": options.sources[0],
            "topic": options.topic,
            "checkpoint": options.checkpoint,
            "waits_at": waits_at,
            "gate": str(root / "gate"),
            "go": "" if go is None else str(go),
            "settings": settings or {},
        }
        self._gate = root / "gate"
        interpreter = os.environ.get("TWOPC_CONNECT_CLIENT", sys.executable)
        self.log = root / "log"
        self.process = _process(root, "connect_client.py", json.dumps(given), interpreter=interpreter)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def waiting_worker(self) -> psutil.Process:
        """Wait until the function's process has reached its crash point."""
        reached = self._gate.with_name("gate.reached")

        def waits() -> bool:
            return reached.exists() and bool(reached.read_text())

        wait_until(lambda: waits() or self.process.exit_code is not None, f"{self.log}: it waits", _TIMEOUT_S)
        assert waits(), self.text[-3000:]
        return psutil.Process(int(reached.read_text()))

    def open_gate(self) -> None:
        self._gate.touch()

    def stop_query(self) -> None:
        self._gate.with_name("gate.stop").touch()

    def wait_for(self, line: str, *, or_for_its_end: bool = False) -> None:
        """Wait until the client has printed a line."""
        wait_until(lambda: line in self.text or self.process.exit_code is not None, f"{self.log}: {line}", _TIMEOUT_S)
        assert line in self.text or or_for_its_end, self.text[-3000:]

    def error(self) -> str:
        """Wait until the process of the function has failed; its server's log may be lost."""
        failed = self._gate.with_name("gate.error")
        wait_until(lambda: failed.exists() and bool(failed.read_text()), f"{self.log}: it fails", _TIMEOUT_S)
        return failed.read_text()

    def ended(self) -> int:
        code = self.process.wait(_TIMEOUT_S)
        assert code is not None, self.text[-3000:]
        return code


def pipeline_of(kafka: KafkaService, root: Path) -> Pipeline:
    return Pipeline(kafka.bootstrap_servers, root, max_offsets=20)


def test_a_remote_clients_batches_are_written_exactly_once(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    with server(tmp_path / "server") as one:
        for number in range(2):
            pipeline.feed(40)
            client = Client(tmp_path / f"client-{number}", one, pipeline)
            assert client.ended() == 0, client.text[-3000:]
    pipeline.require_exactly_once()
    pipeline.require_order()


def test_a_killed_client_loses_and_duplicates_nothing(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(60)
    with server(tmp_path / "server") as one:
        client = Client(tmp_path / "client", one, pipeline, "driver.decided")
        client.waiting_worker()
        client.process.kill()
        client.process.wait(10)
        client.open_gate()
        wait_until(lambda: pipeline.visible() == pipeline.given, "the query has ended", _TIMEOUT_S)


def test_the_next_start_completes_a_commit_interrupted_by_an_expired_session(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Spark renews the session of a running query only once a minute (``SparkConnectStreamingQueryCache``).

    The expiry stops the query.
    """
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(60)
    soon = {
        "spark.connect.session.manager.defaultSessionTimeout": "3s",
        "spark.connect.session.manager.maintenanceInterval": "1s",
    }
    with server(tmp_path / "server", **soon) as one:
        client = Client(tmp_path / "client", one, pipeline, "driver.decided")
        worker = client.waiting_worker()
        client.process.kill()
        client.process.wait(10)
        wait_until(lambda: not worker.is_running(), "Spark has stopped the query", _TIMEOUT_S)
    assert not pipeline.visible()
    with server(tmp_path / "successor") as another:
        successor = Client(tmp_path / "client-of-successor", another, pipeline)
        assert successor.ended() == 0, successor.text[-3000:]
    pipeline.require_exactly_once()


def test_a_process_that_outlives_its_server_and_its_successor_decides_nothing(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(40)
    with server(tmp_path / "server") as one:
        client = Client(tmp_path / "client", one, pipeline, "driver.confirmed")
        worker = client.waiting_worker()
        one.kill(leaving=worker)
        with server(tmp_path / "successor") as another:
            successor = Client(tmp_path / "client-of-successor", another, pipeline)
            assert successor.ended() == 0, successor.text[-3000:]
        pipeline.require_exactly_once()
        assert worker.is_running()
        client.open_gate()
        assert "FencedError" in client.error()
        client.process.kill()  # the client is still trying to reach its server
        client.process.wait(10)
    pipeline.require_exactly_once()


@pytest.mark.parametrize("point", ["driver.decided", "driver.committing"])
def test_a_commit_interrupted_by_stopping_the_query_is_completed_by_the_next_start(
    point: str, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(60)
    with server(tmp_path / "server") as one:
        client = Client(tmp_path / "client", one, pipeline, point)
        client.waiting_worker()
        client.stop_query()
        assert client.ended() == 0, client.text[-3000:]
        assert STOPPED in client.text
        assert pipeline.visible() != pipeline.given
        client.open_gate()  # Spark 4.0 has killed the process, but another version may let it continue
        successor = Client(tmp_path / "successor", one, pipeline)
        assert successor.ended() == 0, successor.text[-3000:]
    pipeline.require_exactly_once()
    pipeline.require_order()


def losers_of(pipeline: Pipeline, root: Path, servers: tuple[Server, Server], **settings: str) -> list[Client]:
    """Let two clients start the same query at the same moment, and return the clients that failed.

    A query that has started waits in its first batch until the other client has started its query, too, or has failed.
    A client may fail only with an error in ``_LOST``. If both fail, the query runs to completion on the next start.
    """
    pipeline.feed(60)
    go = root / "go"
    clients = [
        Client(root / f"client-{number}", server, pipeline, "driver.confirmed", go, settings)
        for number, server in enumerate(servers)
    ]
    for client in clients:
        client.wait_for(READY_TO_START)
    go.touch()
    for client in clients:
        client.wait_for(RUNNING, or_for_its_end=True)
    for client in clients:
        client.open_gate()
    losers = [client for client in clients if client.ended() != 0]
    for loser in losers:
        assert any(name in loser.text for name in _LOST), loser.text[-3000:]
    if len(losers) == len(clients):
        assert Client(root / "successor", servers[1], pipeline).ended() == 0
    pipeline.require_exactly_once()
    pipeline.require_order()
    return losers


def test_if_two_clients_start_a_query_simultaneously_on_one_server_one_is_stopped(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with server(tmp_path / "server") as one:
        losers = losers_of(pipeline_of(kafka, tmp_path), tmp_path, (one, one))
        assert losers or "Stopping existing streaming query" in one.text


def test_if_two_clients_start_a_query_simultaneously_on_a_server_that_stops_neither_one_is_refused(
    kafka: KafkaService, tmp_path: Path
) -> None:
    setting = {"spark.sql.streaming.stopActiveRunOnRestart": "false"}
    with server(tmp_path / "server") as one:
        assert len(losers_of(pipeline_of(kafka, tmp_path), tmp_path, (one, one), **setting)) == 1


def test_if_two_clients_start_a_query_simultaneously_on_two_servers_one_client_fails(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with server(tmp_path / "server") as one, server(tmp_path / "other") as other:
        assert losers_of(pipeline_of(kafka, tmp_path), tmp_path, (one, other))
