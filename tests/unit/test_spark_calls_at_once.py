"""Calls for one batch that an interceptor makes in another thread, or while an earlier call is still writing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from tests.unit.fake_sink import FakeSink, World
from twopc.errors import ConfigurationError
from twopc.integration.spark.foreach_batch import ExactlyOnce
from twopc.integration.spark.interceptors import InterceptedBatch, Interceptor
from twopc.integration.spark.options import Options
from twopc.integration.spark.query_runs import QueryRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from twopc.integration.spark.several import Call, Frames


class Frame(DataFrame):
    """Stands in for the batch."""

    sparkSession: Any = None  # noqa: N815 - PySpark's name

    def __new__(cls) -> Self:
        return object.__new__(cls)

    def __init__(self) -> None:
        """Needs no session."""


class Query:
    """Stands in for a run of a query, which makes its calls in the thread of the test."""

    query_id = run_id = "q"
    may_call = True
    checkpoint_location = "/checkpoint"
    batch_id = 0

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    def makes_this_call(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        raise NotImplementedError


class Writer:
    """Records the calls that reach the sinks."""

    location = "/checkpoint"

    def __init__(self) -> None:
        nothing: Any = None
        self.run = QueryRun(Query(), nothing)
        self.calls: list[Call] = []
        self.during: Callable[[], None] = lambda: None
        self.reads: dict[int, str] = {}

    def open_writer(self, session: object) -> Writer:
        del session
        return self

    def write(self, call: Call) -> None:
        self.calls.append(call)
        self.during()

    def other_data(self, frame: object) -> str | None:
        return self.reads.get(id(frame))

    def close(self) -> None:
        """Holds no connections."""


class InPool(Interceptor):
    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        with ThreadPoolExecutor(1, "mine") as pool:
            pool.submit(proceed, batch.frames).result()


class Nested(Interceptor):
    """Proceeds again while the first call is writing."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        self._writer.during = lambda: proceed(batch.frames)
        proceed(batch.frames)


class Twice(Interceptor):
    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        proceed(batch.frames)
        proceed(batch.frames)


class Derives(Interceptor):
    """Makes a new DataFrame from the batch each time, as ``withColumn`` does."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.error: Exception | None = None
        self.passes: list[Frame] = [Frame()]

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        self.seen.append(batch.batch_id)
        for _ in self.passes:
            proceed(Frame())
        if self.error is not None:
            raise self.error


def each(writer: Writer, interceptor: Interceptor) -> ExactlyOnce:
    made = ExactlyOnce([FakeSink(World())], None, Options(interceptors=(interceptor,)))
    made._calls = writer
    return made


def test_a_call_from_an_interceptors_own_thread_writes_nothing() -> None:
    writer = Writer()
    with pytest.raises(
        ConfigurationError, match=r"proceed for batch 0 in thread 'mine.*wrote nothing.*CheckpointConfig"
    ):
        each(writer, InPool())(Frame(), 0)
    assert not writer.calls


def test_a_call_during_another_call_writes_nothing() -> None:
    writer = Writer()
    with pytest.raises(ConfigurationError, match=r"batch 0 came before the first call was over.*wrote nothing"):
        each(writer, Nested(writer))(Frame(), 0)
    assert len(writer.calls) == 1
    writer.during = lambda: None
    each(writer, Twice())(Frame(), 0)  # the refused calls block no later call
    assert len(writer.calls) == 2


def test_a_function_may_repeat_a_call_if_an_interceptor_derives_the_rows() -> None:
    writer, interceptor, batch = Writer(), Derives(), Frame()
    write = each(writer, interceptor)
    write(batch, 0)
    write(batch, 0)
    assert len(writer.calls) == 1
    assert interceptor.seen == [0]
    with pytest.raises(ConfigurationError, match="second call for batch 0"):
        write(Frame(), 0)
    assert interceptor.seen == [0], "an interceptor does not see a refused call"


class Joins(Interceptor):
    """Adds a table's rows to the batch."""

    def __init__(self, writer: Writer) -> None:
        self.passed: list[Frame] = []
        self._writer = writer

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        del batch
        self.passed.append(Frame())
        self._writer.reads[id(self.passed[-1])] = "a table"
        proceed(self.passed[-1])


def test_a_repeated_call_is_refused_if_an_interceptor_added_data_of_its_own() -> None:
    """The table may have changed, and then the second call's rows would be lost."""
    writer, batch = Writer(), Frame()
    interceptor = Joins(writer)
    write = each(writer, interceptor)
    write(batch, 0)
    with pytest.raises(ConfigurationError, match="second call for batch 0"):
        write(batch, 0)
    assert len(writer.calls) == 1


def test_a_repeated_call_reaches_an_interceptor_that_wrote_nothing() -> None:
    writer, interceptor, batch = Writer(), Derives(), Frame()
    write = each(writer, interceptor)
    interceptor.passes = []
    write(batch, 0)
    interceptor.passes = [Frame()]
    write(batch, 0)
    assert len(writer.calls) == 1
    assert interceptor.seen == [0, 0]


def test_a_repeated_call_is_refused_if_an_interceptor_failed_after_a_part_of_the_rows() -> None:
    """The interceptor may have meant to write more rows, so this call must not count as visible."""
    writer, interceptor, batch = Writer(), Derives(), Frame()
    write = each(writer, interceptor)
    interceptor.error = RuntimeError("the other part is missing")
    with pytest.raises(RuntimeError):
        write(batch, 0)
    with pytest.raises(ConfigurationError, match="second call for batch 0"):
        write(batch, 0)
    assert interceptor.seen == [0, 0]
