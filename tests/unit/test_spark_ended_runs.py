"""Other threads close a run's connections. They never do so while a call of that run is writing."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from twopc.integration.spark import query_runs
from twopc.integration.spark.classic import ClassicCalls
from twopc.integration.spark.options import Options
from twopc.integration.spark.query_runs import QueryRun, enter_run
from twopc.integration.spark.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Query:
    """Stands in for a run of a query, which makes its calls in the thread of the test."""

    checkpoint_location = "/checkpoint"
    batch_id = 0

    def __init__(self, name: str) -> None:
        self.query_id = self.run_id = name
        self.may_call = True
        self.is_closed = False

    def makes_this_call(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True


class Part:
    """Stands in for a run's writer and its shuffle check."""

    def __init__(self, error: Exception | None = None) -> None:
        self.run: Any = None
        self.is_closed = False
        self._error = error

    def close(self) -> None:
        self.is_closed = True
        if self._error is not None:
            raise self._error

    def other_data(self, frame: DataFrame) -> str | None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_runs, "_runs", {})


def run_of(query: Query, writer: Part) -> tuple[QueryRun, Any]:
    shuffles: Any = Part()
    run = enter_run(query, lambda: shuffles)
    run.writer, writer.run = writer, run
    return run, shuffles


def writer_of(run: QueryRun) -> Any:
    return run.writer


def in_a_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def start_another() -> QueryRun:
    started: list[QueryRun] = []
    nothing: Any = Part()
    in_a_thread(lambda: started.append(enter_run(Query("another"), lambda: nothing)))
    return started[0]


def test_another_query_closes_a_run_that_has_ended_but_no_run_that_may_call() -> None:
    query, writer = Query("q"), Part()
    _, shuffles = run_of(query, writer)
    assert start_another().among_others.running == {"q", "another"}
    assert not writer.is_closed and not shuffles.is_closed
    query.may_call = False
    assert enter_run(Query("third"), lambda: shuffles).among_others.running == {"another", "third"}
    assert writer.is_closed and shuffles.is_closed


def test_a_run_whose_jvm_has_ended_keeps_its_connections_until_its_call_is_over() -> None:
    query, writer = Query("q"), Part()
    run, shuffles = run_of(query, writer)
    with run.alone(0):
        query.may_call = False
        start_another()
        assert not writer.is_closed and not shuffles.is_closed
    assert writer.is_closed and shuffles.is_closed


def calls_of(writer: Part) -> ClassicCalls:
    calls = ClassicCalls([], None, Options())
    made: Any = weakref.ref(writer)
    calls._writer = made
    return calls


def test_an_object_that_is_closed_during_a_call_closes_its_connections_after_the_call() -> None:
    query, writer = Query("q"), Part()
    run, shuffles = run_of(query, writer)
    calls = calls_of(writer)
    with run.alone(0):
        in_a_thread(calls.close)
        assert not writer.is_closed
    assert writer.is_closed and not shuffles.is_closed  # the function may make another call
    query.may_call = False
    calls.close()
    assert shuffles.is_closed
    assert not query_runs._runs


def test_a_call_waits_for_a_thread_that_is_closing_the_runs_connections() -> None:
    begun, order = threading.Event(), []

    class Slow(Part):
        def close(self) -> None:
            begun.set()
            deadline = time.monotonic() + 10
            while not run._writing.locked() and time.monotonic() < deadline:  # the call is about to write
                time.sleep(0.001)
            order.append("closed")

    run, _ = run_of(Query("q"), Slow())
    thread = threading.Thread(target=lambda: run.close(writer_of(run)))
    thread.start()
    assert begun.wait(10)
    with run.alone(0):
        order.append("called")
    thread.join()
    assert order == ["closed", "called"]


def test_an_ended_run_lets_go_of_sparks_query_after_its_last_call() -> None:
    """Spark's query holds the user's function. If the run held the query for ever, neither process could free anything."""
    query, writer = Query("q"), Part()
    run, _ = run_of(query, writer)
    with run.alone(0):
        query.may_call = False
        start_another()
        assert not query.is_closed
    assert query.is_closed


def test_an_object_does_not_keep_the_writer_of_a_run_that_has_ended() -> None:
    query, writer = Query("q"), Part()
    run, _ = run_of(query, writer)
    calls, kept = calls_of(writer), weakref.ref(writer)
    del writer, run
    gc.collect()
    assert kept() is not None  # the run may make another call
    query.may_call = False
    start_another()
    gc.collect()
    assert kept() is None
    calls.close()  # has nothing left to close


def test_a_query_that_is_closed_keeps_none_of_sparks_objects_and_makes_no_call() -> None:
    class Java:
        def id(self) -> str:
            return "q"

        def runId(self) -> str:  # noqa: N802 - Java's name
            return "r"

        def queryExecutionThread(self) -> Java:  # noqa: N802 - Java's name
            return self

        def equals(self, _: object) -> bool:
            return True

    java, threads = Java(), SimpleNamespace(currentThread=lambda: None)
    query, kept = RunningQuery(java, threads), weakref.ref(java)
    del java
    query.close()
    gc.collect()
    assert kept() is None
    assert not query.may_call and not query.makes_this_call()
    assert (query.query_id, query.run_id) == ("q", "r")


def test_an_error_while_a_run_is_closed_stops_no_query(caplog: pytest.LogCaptureFixture) -> None:
    query, writer = Query("q"), Part(RuntimeError("no broker"))
    _, shuffles = run_of(query, writer)
    query.may_call = False
    start_another()
    assert writer.is_closed and shuffles.is_closed
    assert "query q (run q) were not closed properly. No data is at risk" in caplog.text and "no broker" in caplog.text


def test_a_run_is_closed_without_the_lock_that_other_queries_need_to_start() -> None:
    class StartsAnother(Part):
        def close(self) -> None:
            super().close()
            start_another()

    query, writer = Query("q"), StartsAnother()
    _, shuffles = run_of(query, writer)
    query.may_call = False
    enter_run(Query("second"), lambda: shuffles)
    assert writer.is_closed
    assert set(query_runs._runs) == {"second", "another"}
