"""A client and a server of Spark Connect as separate processes: either dies, and the process of the function lives on.

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

from tests.live.connect_client import RUNNING
from tests.live.connect_server import READY
from tests.live.spark_support import Pipeline, processes_of, wait_until
from tests.live.test_spark_executors import is_stopped
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.ports import free_ports

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.services import KafkaService

_HERE = Path(__file__).parent
_TIMEOUT_S = 200.0


def _process(
    root: Path, script: str, *arguments: str, interpreter: str = sys.executable, faults: str = ""
) -> GuardedProcess:
    root.mkdir()
    paths = os.pathsep.join([str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    settings = ["env", f"PYTHONPATH={paths}", f"TWOPC_CRASH_POINTS={faults}"]
    command = [*settings, interpreter, str(_HERE / script), *arguments]
    return GuardedProcess(command, log=root / "log", cwd=root)


class Server:
    """A server, and everything that it starts."""

    def __init__(self, root: Path, faults: str = "") -> None:
        [port] = free_ports(1)
        self.url = f"sc://127.0.0.1:{port}"
        self.log = root / "log"
        self._process = _process(root, "connect_server.py", str(port), faults=faults)
        self._session = os.getpgid(self._process.pid)
        wait_until(lambda: READY in self.text or self._process.exit_code is not None, f"{self.log}: ready", _TIMEOUT_S)
        assert READY in self.text, self.text[-3000:]

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def stopped_worker(self) -> psutil.Process:
        """Wait until the process of the function has stopped itself at a crash point."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = filter(is_stopped, processes_of(self._session))
            return bool(found)

        wait_until(is_there, f"{self.log}: a process has stopped", _TIMEOUT_S)
        return found[0]

    def kill(self, *, leaving: psutil.Process | None = None) -> None:
        for process in processes_of(self._session):
            if process != leaving:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@contextlib.contextmanager
def server(root: Path, faults: str = "") -> Iterator[Server]:
    one = Server(root, faults)
    try:
        yield one
    finally:
        one.kill()


class Client:
    """A client of a server, with one query."""

    def __init__(self, root: Path, server: Server, pipeline: Pipeline) -> None:
        pipeline.flush()
        options = pipeline.options
        given = {
            "server": server.url,
            "name": options.name,
            "bootstrap_servers": options.bootstrap_servers,
            "source": options.sources[0],
            "topic": options.topic,
            "checkpoint": options.checkpoint,
        }
        interpreter = os.environ.get("TWOPC_CONNECT_CLIENT", sys.executable)
        self.log = root / "log"
        self.process = _process(root, "connect_client.py", json.dumps(given), interpreter=interpreter)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

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


@pytest.mark.whole
def test_a_client_that_is_killed_costs_nothing(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(60)
    with server(tmp_path / "server", "driver.decided=stop") as one:
        client = Client(tmp_path / "client", one, pipeline)
        worker = one.stopped_worker()
        assert RUNNING in client.text
        client.process.kill()
        worker.resume()
        wait_until(lambda: pipeline.visible() == pipeline.given, "the query has ended", _TIMEOUT_S)


def test_a_process_that_outlives_its_server_and_its_successor_decides_nothing(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(40)
    with server(tmp_path / "server", "driver.confirmed=stop") as one:
        Client(tmp_path / "client", one, pipeline)
        worker = one.stopped_worker()
        one.kill(leaving=worker)
        with server(tmp_path / "successor") as another:
            client = Client(tmp_path / "client-of-successor", another, pipeline)
            assert client.ended() == 0, client.text[-3000:]
        pipeline.require_exactly_once()
        worker.resume()
        wait_until(lambda: not worker.is_running(), "the old process has ended", _TIMEOUT_S)
        assert "FencedError" in one.text, one.text[-3000:]
    pipeline.require_exactly_once()
