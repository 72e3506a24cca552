"""The object of ``exactly_once`` in a Spark Connect client: what it refuses, and what its copy on the server contains."""

from __future__ import annotations

import contextlib
import gc
import logging
import pickle
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from tests.unit.fake_sink import Cluster, FakeSink, World, all_rows
from twopc import CheckpointConfig, Listener
from twopc.errors import BadRecordError, ConfigurationError, RetriableError
from twopc.integration.alerts import Alerts, ConsecutiveFailures
from twopc.integration.connect import calls
from twopc.integration.connect.calls import ConnectCalls
from twopc.integration.connect.query import local_files
from twopc.integration.connect.start import Start
from twopc.integration.connect.worker import called_batch, is_worker
from twopc.integration.history import CheckpointLog, PrometheusMetrics
from twopc.integration.spark import Interceptor, exactly_once, foreach_batch
from twopc.integration.spark.engine import SparkEngine
from twopc.integration.spark.installed import HERE
from twopc.integration.spark.task import TaskResult
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twopc.engine import Work
    from twopc.records import TaskReport

#: PySpark's program that calls the function.
_WORKER = "pyspark/sql/connect/streaming/worker/foreach_batch_worker.py"


class Passing(Interceptor):
    def intercept(self, batch: Any, proceed: Any) -> None:
        proceed(batch.frames)


@pytest.fixture(autouse=True)
def of_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark sets it with the first session of Spark Connect


def sink() -> FakeSink:
    return FakeSink(World(), "fake")


def test_the_checkpoint_location_must_be_given() -> None:
    with pytest.raises(ConfigurationError, match=r"under Spark Connect.*Pass checkpoint_location"):
        exactly_once(sink())


@pytest.mark.parametrize("option", [{"staging": True}, {"interceptors": [Passing()]}])
def test_an_unavailable_option_is_rejected_with_an_error_that_identifies_it(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"{next(iter(option))}=….*not available under Spark Connect"):
        exactly_once(sink(), checkpoint_location="/checkpoint", **option)


class Locked(Listener):
    """A user-defined listener, which opens something too early."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_listener_that_cannot_be_sent_to_the_server_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"the listener Locked cannot be sent to Spark Connect's server.*first event"
    ):
        exactly_once(sink(), checkpoint_location="/checkpoint", listeners=[Locked()])


def test_the_toolkits_listeners_can_be_sent_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus, "REGISTRY", prometheus.CollectorRegistry())
    listeners = [Alerts([ConsecutiveFailures("broken", 2)]), CheckpointLog(), PrometheusMetrics("orders", port=1)]
    pickle.dumps(exactly_once(sink(), checkpoint_location="/checkpoint", listeners=listeners))


def test_a_copy_made_by_pickle_has_the_same_arguments_and_no_connection() -> None:
    each = exactly_once(sink(), checkpoint_location="/checkpoint", select={"fake": ["1 AS id"]})
    copy = pickle.loads(pickle.dumps(each))  # noqa: S301 - the bytes are our own
    assert isinstance(copy._calls, ConnectCalls)
    assert copy._calls._writer is None
    assert copy._calls._location == "/checkpoint"
    assert copy._options.select == {"fake": ["1 AS id"]}


def test_the_server_refuses_an_object_that_a_client_of_another_version_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's version may read the client's settings differently: a field that it does not know is dropped silently."""
    with monkeypatch.context() as client:
        client.setattr(foreach_batch, "HERE", replace(HERE, version="0.1.9", digest=""))
        sent = pickle.dumps(exactly_once(sink(), checkpoint_location="/checkpoint"))
    with pytest.raises(ConfigurationError, match=r"the client and a Python process .*The client runs version 0\.1\.9"):
        pickle.loads(sent)  # noqa: S301 - the bytes are our own


def test_the_copy_on_the_server_knows_which_runs_were_already_active(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark makes the copy just before it starts the query."""
    session = MagicMock()
    session.streams.active = [SimpleNamespace(runId="run-of-another")]
    monkeypatch.setattr(calls, "_session_at_start", lambda: session)
    monkeypatch.setattr(Start, "of", lambda _: Start())
    each = exactly_once(sink(), checkpoint_location="/checkpoint")
    assert isinstance(each._calls, ConnectCalls)
    assert each._calls._earlier == {"run-of-another"}


@pytest.mark.parametrize("location", ["/a/b", "file:/a/b", "file:///a/b", "file://localhost/a/b"])
def test_a_local_checkpoint_is_opened(location: str) -> None:
    assert Path(local_files(location).location) == Path("/a/b")


@pytest.mark.parametrize("location", ["s3a://bucket/a", "hdfs:///a", "dbfs:/a", "file://other/a", "a/b"])
def test_a_checkpoint_that_is_not_local_is_refused_before_anything_is_written(location: str) -> None:
    with pytest.raises(ConfigurationError, match="Nothing was written"):
        local_files(location)


class Batch:
    """A batch's DataFrame."""


def require_released(function: Callable[[Batch, int], None]) -> None:
    """Call a function as Spark does, and check that the batch does not wait for the garbage collector."""
    spark: dict[str, Any] = {}
    exec(compile("def process(batch_df, batch_id, func):\n    func(batch_df, batch_id)", _WORKER, "exec"), spark)  # noqa: S102
    batch = Batch()
    released = weakref.ref(batch)
    gc.disable()
    try:
        spark["process"](batch, 0, function)
        del batch
        assert released() is None
    finally:
        gc.enable()


def test_a_batch_is_released_when_sparks_call_ends() -> None:
    """Not later, by the garbage collector: PySpark then sends a request from any thread, even one that gRPC is starting."""

    def function(frame: Batch, batch_id: int) -> None:
        called: Any = called_batch()
        assert called == (frame, batch_id)

    require_released(function)


class RpcError(Exception):
    """Raises itself, as gRPC's errors do."""

    def wait(self) -> None:
        raise self


def _fail_as_sparks_client() -> None:
    try:
        RpcError("Job aborted: twopc.errors.RetriableError: a broker was away").wait()
    except RpcError as error:
        raise RetriableError("a broker was away") from error


@pytest.mark.parametrize(
    "options",
    [{"settings": Settings(max_attempts=2)}, {"checkpoints": CheckpointConfig(tolerable_failures=1)}],
    ids=["another attempt", "another checkpoint"],
)
def test_a_batch_is_released_after_a_failed_attempt(
    options: dict[str, Any], cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # so that pytest does not keep each log record's error
    query = cluster.start(**{"settings": Settings(max_attempts=1)} | options)
    failures = [_fail_as_sparks_client]
    prepare = query.engine.prepare

    def fail_once(work: Work) -> list[TaskReport]:
        if failures:
            failures.pop()()
        return prepare(work)

    query.engine.prepare = fail_once  # type: ignore[method-assign]
    require_released(lambda _, batch_id: query.run(batch_id))
    assert not failures
    assert cluster.store.visible() == all_rows(0)


class Engine(SparkEngine):
    """An engine whose jobs end at once."""

    @contextlib.contextmanager
    def _cancelled_after(self, tag: str, timeout_ms: float | None) -> Iterator[Callable[[], bool]]:
        del tag, timeout_ms
        yield lambda: False

    def _jobs(self, work: Work) -> Any:
        del work
        return [None]

    def _task(self, *_: object, **__: object) -> Any:
        return None

    def _results(self, *_: object) -> list[TaskResult]:
        return self.slots()  # type: ignore[operator, no-any-return]


def _aborted() -> list[TaskResult]:
    raise RuntimeError("Job aborted")


def _aborted_by_a_task() -> list[TaskResult]:
    raise RuntimeError("Job aborted: twopc.errors.RetriableError: a broker was away\n")


def _reported() -> list[TaskResult]:
    return [TaskResult(error=("BadRecordError", "row 7 is too large"))]


def test_each_attempt_begins_the_check_of_the_state() -> None:
    """The attempts at a batch share the engine."""
    nothing: Any = MagicMock()
    state = MagicMock()
    engine = Engine(
        batch=(),
        sinks=(),
        runs=nothing,
        shuffles=nothing,
        slots=_aborted,  # type: ignore[arg-type]
        staging=None,
        way=nothing,
        budget=nothing,
        timeout_ms=None,
        may_be_sorted=nothing,
        depends_on_task=nothing,
        tell=nothing,
        kept_since_ms=nothing,
        state=state,
    )
    for attempt in (1, 2):
        with pytest.raises(RuntimeError):
            engine.prepare(SimpleNamespace(pending=MagicMock(), timeout_ms=None))  # type: ignore[arg-type]
        assert state.begin.call_count == attempt


@pytest.mark.parametrize("results", [_aborted, _aborted_by_a_task, _reported])
def test_a_batch_is_released_if_the_function_catches_the_error(results: Callable[[], list[TaskResult]]) -> None:
    nothing: Any = MagicMock()
    engine = Engine(
        batch=(),
        sinks=(),
        runs=nothing,
        shuffles=nothing,
        slots=results,  # type: ignore[arg-type]
        staging=None,
        way=nothing,
        budget=nothing,
        timeout_ms=None,
        may_be_sorted=nothing,
        depends_on_task=nothing,
        tell=nothing,
        kept_since_ms=nothing,
    )
    work = SimpleNamespace(pending=MagicMock(), timeout_ms=None)

    def function(frame: Batch, batch_id: int) -> None:
        del frame, batch_id
        with contextlib.suppress(RuntimeError, RetriableError, BadRecordError):
            engine.prepare(work)  # type: ignore[arg-type]

    require_released(function)


def test_only_a_call_that_spark_has_made_counts_as_a_call() -> None:
    def process(batch_df: object, batch_id: int) -> Any:
        del batch_df, batch_id
        return called_batch()

    assert process(None, 1) is None
    assert not is_worker()
