from __future__ import annotations

import os
import pwd
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil
import pytest

from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.server import wait_until

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 20


def start(tmp_path: Path, *command: str) -> GuardedProcess:
    return GuardedProcess(list(command), log=tmp_path / "log", cwd=tmp_path)


def test_the_output_and_the_exit_code_are_those_of_the_child(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "echo out; echo err >&2; pwd; exit 7")
    assert process.wait(TIMEOUT_S) == 7
    assert (tmp_path / "log").read_text() == f"out\nerr\n{tmp_path}\n"
    process.kill()
    process.terminate(TIMEOUT_S)


def test_signals_reach_the_child(tmp_path: Path) -> None:
    process = start(tmp_path, "sleep", "600")
    assert process.exit_code is None
    process.kill()
    assert process.exit_code == 128 + signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.timeout(TIMEOUT_S)
def test_a_child_can_be_killed_after_ctrl_c_has_interrupted_a_poll_of_it(tmp_path: Path) -> None:
    """An interrupt between two instructions in `Popen.poll` leaves a lock held forever."""
    process = start(tmp_path, "sleep", "600")
    process._guard._waitpid_lock.acquire()  # type: ignore[attr-defined]
    process.kill()
    assert process.exit_code == 128 + signal.SIGKILL


def test_threads_that_poll_simultaneously_see_the_same_exit_code(tmp_path: Path) -> None:
    for _ in range(20):
        process = start(tmp_path, "sh", "-c", "exit 7")
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(process.wait, [TIMEOUT_S] * 8)) == {7}


def test_a_stopped_child_can_be_terminated(tmp_path: Path) -> None:
    process = start(tmp_path, "sleep", "600")
    process.signal(signal.SIGSTOP)
    process.terminate(TIMEOUT_S)
    assert process.exit_code == 128 + signal.SIGTERM


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    process.signal(signal.SIGTERM)
    process.terminate(0.3)
    assert process.exit_code is not None


def test_a_missing_command_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot execute no-such-command"):
        start(tmp_path, "no-such-command")


def test_the_childs_own_children_end_with_it_even_stopped_ones(tmp_path: Path) -> None:
    command = ["sh", "-c", "setsid sleep 600 & kill -STOP $!; echo $!; setsid sleep 600 & echo $!; wait"]
    process = GuardedProcess(command, log=tmp_path / "log", cwd=tmp_path, ends_family=True)
    assert wait_until(lambda: (tmp_path / "log").read_text().count("\n") == 2, TIMEOUT_S)
    process.kill()
    for pid in (tmp_path / "log").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_by_default_the_childs_own_children_are_left_alone(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "setsid sleep 600 & echo $!")
    assert process.wait(TIMEOUT_S) == 0
    os.kill(int((tmp_path / "log").read_text()), signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_child_can_run_as_another_user_without_further_groups_and_still_ends_with_its_owner(tmp_path: Path) -> None:
    script = "id -u; id -G; exec sleep 600"
    nobody = pwd.getpwnam("nobody").pw_uid
    process = GuardedProcess(["sh", "-c", script], log=tmp_path / "log", cwd=tmp_path, user=nobody)
    assert wait_until(lambda: (tmp_path / "log").read_text().count("\n") == 2, TIMEOUT_S)
    assert (tmp_path / "log").read_text().split() == [str(nobody)] * 2
    os.kill(process._guard.pid, signal.SIGKILL)
    assert wait_until(lambda: not psutil.pid_exists(process.pid), TIMEOUT_S)
    process.wait()
