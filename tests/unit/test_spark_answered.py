"""Each call from Spark ends with an answer, because py4j reports only an ``Exception``."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from twopc.errors import DecisionInDoubtError
from twopc.integration.spark.interceptors import Interceptor, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable


def outcome(call: Callable[[], object]) -> BaseException | None:
    """Call a function in a thread, as py4j does."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the tests look at its kind
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


class Leaving(Interceptor):
    def intercept(self, batch: Any, proceed: Any) -> None:
        del batch, proceed
        raise SystemExit(3)


def test_another_function_for_foreach_batch_answers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    query = SimpleNamespace(checkpoint_location="/c", run_id="r")
    monkeypatch.setattr("twopc.integration.spark.running.calling_query", lambda *_: query)
    frame: Any = SimpleNamespace(sparkSession=None)
    found = outcome(lambda: intercepted(print, Leaving())(frame, 7))
    assert isinstance(found, DecisionInDoubtError)
    assert "batch 7: code that ran for the batch raised SystemExit(3)" in str(found)


def test_a_process_that_ends_with_its_main_thread_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Spark Connect, the batch runs in the main thread of a process of its own."""
    query = SimpleNamespace(checkpoint_location="/c", run_id="r")
    monkeypatch.setattr("twopc.integration.spark.running.calling_query", lambda *_: query)
    frame: Any = SimpleNamespace(sparkSession=None)
    with pytest.raises(SystemExit):
        intercepted(print, Leaving())(frame, 7)
