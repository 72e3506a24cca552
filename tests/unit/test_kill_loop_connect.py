"""The processes that each kill hits under Spark Connect, with stand-ins for the server, its workers and the client."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from twopc.integration.services import ServiceError
from twopc.testing.kill_loop.connect import ConnectRun, ConnectSessions
from twopc.testing.kill_loop.hold import end_of
from twopc.testing.kill_loop.kills import Kill, Moment, Victim

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Stands in for what a server starts: a JVM, which starts the function's process and a task's worker.
_SLEEPS = "import time; time.sleep(60)"
_JVM = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {_SLEEPS!r}, "a.task"])
if sys.argv[1] == "True":
    subprocess.Popen([sys.executable, "-c", {_SLEEPS!r}, "pyspark.foreach_batch_worker"])
{_SLEEPS}
"""
_SERVER = f"""
import pathlib, subprocess, sys
jvm = subprocess.Popen([sys.executable, "-c", {_JVM!r}, sys.argv[2], "the.jvm"])
pathlib.Path(sys.argv[1]).write_text("1234")
{_SLEEPS}
"""


@dataclass(frozen=True)
class StandIn:
    """A run that starts stand-ins."""

    reached: str
    kill: Kill | None = None
    server: str = ""
    has_function: bool = True
    starts: bool = True

    def command(self) -> list[str]:
        return [sys.executable, "-c", _SLEEPS, "the.client", self.server]

    def server_command(self, ready: str) -> list[str]:
        script = _SERVER if self.starts else "raise SystemExit('no port is free')"
        return [sys.executable, "-c", script, ready, str(self.has_function), "the.server"]


class Started:
    """A run, and its processes by their last word."""

    def __init__(self, query: ConnectRun, directory: Path, names: set[str]) -> None:
        self.query = query
        self._directory = directory
        self.require(names)
        self.first = self.processes

    @property
    def processes(self) -> dict[str, psutil.Process]:
        found: dict[str, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(self._directory):
                    words = [word for word in process.cmdline() if word.startswith(("the.", "a.", "pyspark."))]
                    is_guard = "guard.py" in " ".join(process.cmdline())
                    found |= {} if is_guard or not words else {words[-1].rpartition(".")[2]: process}
        return found

    def require(self, names: set[str]) -> None:
        """Wait until these processes are there, and no others."""
        deadline = time.monotonic() + 30
        while self.left != names and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.left == names

    @property
    def left(self) -> set[str]:
        return set(self.processes)


ALL = {"client", "server", "jvm", "task", "foreach_batch_worker"}


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[ConnectSessions]:
    one = ConnectSessions(tmp_path, [])
    yield one
    one.close()
    assert not one._living


@pytest.fixture
def run(tmp_path: Path) -> Any:
    return StandIn(str(tmp_path / "reached"))


def test_with_the_victim_all_every_process_is_killed(sessions: ConnectSessions, run: Any, tmp_path: Path) -> None:
    with sessions.started(run, tmp_path / "log") as query:
        started = Started(query, tmp_path, ALL)
        assert query.kill(Victim.ALL) is Victim.ALL
        assert query.exit_code == 128 + signal.SIGKILL
        assert started.left == set()


def test_with_the_victim_worker_only_the_functions_process_is_killed(
    sessions: ConnectSessions, run: Any, tmp_path: Path
) -> None:
    with sessions.started(run, tmp_path / "log") as query:
        started = Started(query, tmp_path, ALL)
        assert query.kill(Victim.WORKER) is Victim.WORKER
        started.require(ALL - {"foreach_batch_worker"})
        assert query.exit_code is None
    assert started.left == set()


def test_all_processes_of_a_query_without_a_function_are_killed(
    sessions: ConnectSessions, run: Any, tmp_path: Path
) -> None:
    with sessions.started(replace(run, has_function=False), tmp_path / "log") as query:
        started = Started(query, tmp_path, ALL - {"foreach_batch_worker"})
        assert query.kill(Victim.WORKER) is Victim.ALL
        assert started.left == set()


def test_with_the_victim_server_the_functions_process_stays_stopped_until_a_batch_is_finished(
    sessions: ConnectSessions, run: Any, tmp_path: Path
) -> None:
    end_of(run.reached).write_text("of an earlier batch")
    with sessions.started(run, tmp_path / "log") as query:
        started = Started(query, tmp_path, ALL)
        assert query.kill(Victim.SERVER) is Victim.SERVER
    function = started.first["foreach_batch_worker"]
    # The process that started the JVM keeps running: when it ends, what the JVM has left behind ends, too.
    assert started.left == {"server", "foreach_batch_worker"}
    assert function.status() == psutil.STATUS_STOPPED
    assert not Path(f"{run.reached}.released").exists()
    assert not end_of(run.reached).exists()
    sessions.batch_finished()
    assert function.status() != psutil.STATUS_STOPPED
    assert Path(f"{run.reached}.released").exists()
    end_of(run.reached).write_text("FencedError")
    sessions.close()
    assert sessions.zombies == ["FencedError"]
    assert started.left == set()


def test_with_the_victim_client_the_server_is_left_to_the_next_run_unless_that_run_needs_armed_workers(
    sessions: ConnectSessions, run: Any, tmp_path: Path
) -> None:
    with sessions.started(run, tmp_path / "log") as query:
        first = Started(query, tmp_path, ALL)
        assert query.kill(Victim.CLIENT) is Victim.CLIENT
        assert query.exit_code == 128 + signal.SIGKILL
    assert first.left == ALL - {"client"}
    assert Path(f"{run.reached}.released").exists()
    with sessions.started(run, tmp_path / "log") as query:
        again = Started(query, tmp_path, ALL)
        assert again.first["server"] == first.first["server"]
        query.kill(Victim.CLIENT)
    armed = replace(run, kill=Kill(moment=Moment.POINT, point="task.prepared"))
    with sessions.started(armed, tmp_path / "log") as query:
        assert Started(query, tmp_path, ALL).first["server"] != first.first["server"]
    assert first.left == set()


def test_a_server_that_does_not_start_shows_its_log(sessions: ConnectSessions, run: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(ServiceError, match=r"did not start.*\n.*no port is free"),
        sessions.started(replace(run, starts=False), tmp_path / "log"),
    ):
        raise AssertionError("it has started")


def test_a_process_that_outlived_its_server_is_ended_with_the_loop(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, signal, sys
sys.path[:] = {sys.path!r}
from tests.unit.test_kill_loop_connect import ALL, StandIn, Started
from twopc.testing.kill_loop.connect import ConnectSessions
from twopc.testing.kill_loop.kills import Victim
here = pathlib.Path(sys.argv[1])
sessions = ConnectSessions(here, [])
with sessions.started(StandIn(str(here / "reached")), here / "log") as query:
    started = Started(query, here, ALL)
    query.kill(Victim.SERVER)
print(started.first["foreach_batch_worker"].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(10)
    assert not psutil.pid_exists(int(done.stdout))
