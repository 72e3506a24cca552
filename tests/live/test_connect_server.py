"""A client and a server of Spark Connect are separate processes. One of them dies, and the process of the function lives on.

``TWOPC_CONNECT_CLIENT`` names another interpreter for the client, for example one with ``pyspark-client`` only.
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

from tests.live.connect_server import READY
from tests.live.spark_support import Pipeline, processes_of, wait_until
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.ports import free_ports

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

pytestmark = pytest.mark.whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.services import KafkaService

_HERE = Path(__file__).parent
_TIMEOUT_S = 200.0


def _process(root: Path, script: str, *arguments: str, interpreter: str = sys.executable) -> GuardedProcess:
    root.mkdir()
    paths = os.pathsep.join([str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = ["env", f"PYTHONPATH={paths}", interpreter, str(_HERE / script), *arguments]
    return GuardedProcess(command, log=root / "log", cwd=root)


class Server:
    """A server, and everything that it starts."""

    def __init__(self, root: Path) -> None:
        [port] = free_ports(1)
        self.url = f"sc://127.0.0.1:{port}"
        self.log = root / "log"
        self._process = _process(root, "connect_server.py", str(port))
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
def server(root: Path) -> Iterator[Server]:
    one = Server(root)
    try:
        yield one
    finally:
        one.kill()


class Client:
    """A client of a server, with one query."""

    def __init__(self, root: Path, server: Server, pipeline: Pipeline, waits_at: str = "") -> None:
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
        }
        self._gate = root / "gate"
        interpreter = os.environ.get("TWOPC_CONNECT_CLIENT", sys.executable)
        self.log = root / "log"
        self.process = _process(root, "connect_client.py", json.dumps(given), interpreter=interpreter)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def waiting_worker(self) -> psutil.Process:
        """Wait until the process of the function waits at its crash point."""
        reached = self._gate.with_name("gate.reached")
        wait_until(lambda: reached.exists() and bool(reached.read_text()), f"{self.log}: it waits", _TIMEOUT_S)
        return psutil.Process(int(reached.read_text()))

    def open_gate(self) -> None:
        self._gate.touch()

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


def test_a_client_elsewhere_gets_its_batches_exactly_once(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    with server(tmp_path / "server") as one:
        for number in range(2):
            pipeline.feed(40)
            client = Client(tmp_path / f"client-{number}", one, pipeline)
            assert client.ended() == 0, client.text[-3000:]
    pipeline.require_exactly_once()
    pipeline.require_order()


def test_a_client_that_is_killed_costs_nothing(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(60)
    with server(tmp_path / "server") as one:
        client = Client(tmp_path / "client", one, pipeline, "driver.decided")
        client.waiting_worker()
        client.process.kill()
        client.process.wait(10)
        client.open_gate()
        wait_until(lambda: pipeline.visible() == pipeline.given, "the query has ended", _TIMEOUT_S)


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
        client.process.kill()  # it still asks for its server
        client.process.wait(10)
    pipeline.require_exactly_once()
