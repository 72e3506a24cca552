"""Calls in other threads, also after the main thread of a program has ended."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from twopc.threads import Beside, at_once

_ROOT = Path(__file__).parents[2]


def steps(step: Any, items: Any, threads: int = 3) -> Any:
    return at_once(step, items, threads=threads, name="test")


def test_the_results_come_in_order() -> None:
    def step(number: int) -> int:
        time.sleep((5 - number) / 100)
        return number * number

    assert list(steps(step, range(5))) == [0, 1, 4, 9, 16]
    assert list(steps(step, [])) == []


def test_several_steps_run_at_once_but_no_more_than_allowed() -> None:
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(3, timeout=20)

    def step(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    list(steps(step, range(9)))
    assert most == 3


def test_an_error_is_raised_in_its_place_and_no_further_step_begins() -> None:
    begun = []

    def step(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise ValueError(number)
        time.sleep(0.01)
        return number

    results = steps(step, range(100), threads=2)
    assert next(results) == 0
    with pytest.raises(ValueError, match="1"):
        next(results)
    assert len(begun) < 100
    assert not any(one.name == "test" for one in threading.enumerate())


def test_closing_the_results_waits_for_the_steps_that_run() -> None:
    ended = []

    def step(number: int) -> int:
        time.sleep(0.05)
        ended.append(number)
        return number

    with closing(steps(step, range(100), threads=2)) as results:
        next(results)
    count = len(ended)
    assert count < 100
    time.sleep(0.15)
    assert len(ended) == count


def test_calls_are_made_one_after_another_in_one_thread() -> None:
    beside = Beside("test-beside")
    made: list[tuple[int, int]] = []
    laters = [beside.submit(lambda number=number: made.append((number, threading.get_ident()))) for number in range(5)]  # type: ignore[misc]
    for later in laters:
        later.result()
    assert [number for number, _ in made] == list(range(5))
    assert {thread for _, thread in made} != {threading.get_ident()}
    assert len({thread for _, thread in made}) == 1
    beside.close()


def test_a_calls_error_is_raised_with_its_result_and_the_next_call_is_made() -> None:
    beside = Beside("test-beside")
    failed, later = beside.submit(lambda: 1 // 0), beside.submit(lambda: 7)
    assert later.result() == 7
    with pytest.raises(ZeroDivisionError):
        failed.result()
    beside.close()


def test_a_call_after_the_end_starts_another_thread() -> None:
    beside = Beside("test-beside")
    beside.close()
    assert beside.submit(lambda: 1).result() == 1
    beside.close()
    assert beside.submit(lambda: 2).result() == 2
    beside.close()


def test_the_caller_makes_the_calls_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert list(steps(lambda number: -number, range(4))) == [0, -1, -2, -3]
    assert Beside("test").submit(threading.get_ident).result() == threading.get_ident()


_PROGRAM = """
import sys, threading, time
from twopc.threads import Beside, at_once

beside = Beside("test")
assert beside.submit(lambda: 1).result() == 1

def go_on():
    threading.main_thread().join()
    time.sleep(0.2)
    assert list(at_once(lambda number: number + 1, range(5), threads=3, name="test")) == [1, 2, 3, 4, 5]
    assert beside.submit(lambda: 2).result() == 2
    assert Beside("another").submit(lambda: 3).result() == 3
    Beside("busy").submit(lambda: time.sleep(600))
    print("went on", flush=True)

threading.Thread(target=go_on).start()
"""


def test_threads_go_on_after_the_main_thread_and_do_not_keep_the_process_alive() -> None:
    """For example, a program may end with a thread that waits for its query. An executor would accept no more calls."""
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=_ROOT)
    assert (done.stdout, done.stderr, done.returncode) == ("went on\n", "", 0)
