"""The calls that the callable refuses before it examines a batch, and second calls for a batch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pytest
from pyspark.sql import DataFrame

from tests.unit.fake_sink import FakeSink, World
from twopc.errors import ConfigurationError
from twopc.integration.spark.query_runs import QueryRun
from twopc.integration.spark.several import Call, SinkFrame, by_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self


class ConnectFrame(DataFrame):
    """Stands in for ``pyspark.sql.connect.dataframe.DataFrame``, which cannot be imported without grpc."""

    __module__ = "pyspark.sql.connect.dataframe"

    def __new__(cls) -> Self:
        return object.__new__(cls)


@pytest.mark.parametrize("of_sink", [False, True])
def test_a_dataframe_of_spark_connect_is_refused_in_the_driver_of_a_classic_session(*, of_sink: bool) -> None:
    frame = ConnectFrame()
    with pytest.raises(ConfigurationError, match=r"Spark Connect.*classic session.*Nothing was written"):
        by_frame({"fake": frame} if of_sink else frame, [FakeSink(World(), "fake")], 0)


@pytest.mark.parametrize("of_sink", [False, True])
def test_the_error_for_a_pandas_dataframe_says_that_it_is_not_a_spark_dataframe(*, of_sink: bool) -> None:
    frame: Any = pd.DataFrame({"id": [1]})
    with pytest.raises(
        ConfigurationError,
        match=r"batch 3 .*a DataFrame from the module pandas\..*Nothing was written\. Pass a Spark DataFrame.*createDataFrame",
    ):
        by_frame({"fake": frame} if of_sink else frame, [FakeSink(World(), "fake")], 3)


class OwnFrame(DataFrame):
    """Stands in for a DataFrame of a classic session."""

    def __new__(cls, _: str) -> Self:
        return object.__new__(cls)

    def __init__(self, made_for: str) -> None:
        self.made_for = made_for


class OnAccess(Mapping[str, Any]):
    """Makes each DataFrame when it is asked for it, and keeps none. CPython gives the next one the same id."""

    def __getitem__(self, name: str) -> DataFrame:
        return OwnFrame(name)

    def __iter__(self) -> Iterator[str]:
        return iter(("one", "two"))

    def __len__(self) -> int:
        return 2


def test_each_sink_takes_its_own_dataframe_from_a_mapping_that_makes_them_on_access() -> None:
    """Fails if one sink receives the other's rows, because the first DataFrame was released."""
    found = by_frame(OnAccess(), [ONE, TWO], 0)
    taken = [(cast("OwnFrame", one.frame).made_for, [sink.name for sink in one.sinks]) for one in found]
    assert taken == [("one", ["one"]), ("two", ["two"])]


class Frame:
    """Stands in for a DataFrame. Frames with the same plan have the same semantics."""

    def __init__(self, plan: str) -> None:
        self._plan = plan

    def sameSemantics(self, other: Frame) -> bool:  # noqa: N802 - Spark's name
        return self._plan == other._plan


class Writer:
    def __init__(self, *tables: Frame) -> None:
        self.is_closed = False
        self._tables = tables

    def close(self) -> None:
        self.is_closed = True

    def other_data(self, frame: Any) -> str | None:
        return "Relation [key] JDBCRelation(staged)" if frame in self._tables else None


def same_rows(frame: Any, other: Any) -> bool:
    return frame is other or bool(frame.sameSemantics(other))


ONE, TWO = FakeSink(World(), "one"), FakeSink(World(), "two")
FRAME, OTHER = Frame("a"), Frame("b")


def call(*frames: tuple[Frame, FakeSink], batch_id: int = 0, select: str = "*") -> Call:
    parts: Any = tuple(SinkFrame(sink.name, cast("Any", frame), (sink,)) for frame, sink in frames)
    return Call(batch_id, parts, {"one": [select]})


def new_run() -> QueryRun:
    nothing: Any = None
    return QueryRun(nothing, nothing)


def visible_run(writer: Writer, first: Call) -> QueryRun:
    run = new_run()
    assert run.take(first, writer)
    run.begin(first, same_rows, is_undecided=False)
    run.finish(first, first.passed, writer)
    return run


def test_a_visible_batch_is_not_written_again_for_the_same_dataframes(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer()
    run = visible_run(writer, call((FRAME, ONE)))
    assert not run.take(call((FRAME, ONE)), writer)
    assert "batch 0 is already visible in 'one'" in caplog.text
    assert run.take(call((OTHER, ONE), batch_id=1), writer)


@pytest.mark.parametrize(
    "second",
    [
        call((OTHER, ONE)),
        call((Frame("a"), ONE)),  # an equal plan may read a table that has changed
        call((FRAME, TWO)),
        call((FRAME, ONE), (FRAME, TWO)),
        call((FRAME, ONE), (OTHER, TWO)),
    ],
    ids=["other", "equal", "other sink", "one more sink", "one more"],
)
def test_a_second_call_with_different_rows_is_refused_and_the_error_says_which_rows_are_visible(
    second: Call,
) -> None:
    writer = Writer()
    run = visible_run(writer, call((FRAME, ONE)))
    with pytest.raises(ConfigurationError) as raised:
        run.take(second, writer)
    message = str(raised.value)
    assert "second call for batch 0" in message and "first call's rows are visible in 'one'" in message
    assert "This call wrote nothing" in message and "no row is missing, so do not write any rows by hand" in message
    assert "unionByName" in message and "by other means" in message


def test_a_second_call_is_refused_if_one_of_its_dataframes_may_see_other_rows() -> None:
    """The object is the same, but Spark reads a table each time it evaluates the object."""
    table = Frame("table")
    writer = Writer(table)
    run = visible_run(writer, call((FRAME, ONE), (table, TWO)))
    with pytest.raises(
        ConfigurationError,
        match=r"second call for batch 0, and its DataFrame for sink 'two' reads data other than the batch "
        r"\(Relation.*staged.*rows are visible in 'one', 'two'.*This call wrote nothing.*retries only the part after",
    ):
        run.take(call((FRAME, ONE), (table, TWO)), writer)


def test_a_second_call_through_another_object_is_refused_because_it_may_write_other_columns() -> None:
    run = visible_run(Writer(), call((FRAME, ONE)))
    with pytest.raises(ConfigurationError, match="second call for batch 0"):
        run.take(call((FRAME, ONE)), Writer())


def test_a_visible_batch_keeps_no_dataframe_alive() -> None:
    frame = Frame("a")
    gone = weakref.ref(frame)
    run = visible_run(Writer(), call((frame, ONE)))
    del frame
    gc.collect()
    assert gone() is None
    with pytest.raises(ConfigurationError, match="second call"):
        run.take(call((Frame("a"), ONE)), Writer())


def failed_run(first: Call) -> QueryRun:
    run = new_run()
    run.take(first, Writer())
    run.begin(first, same_rows, is_undecided=False)
    return run


OTHERS = [
    call((OTHER, ONE)),
    call((FRAME, TWO)),
    call((FRAME, ONE), (OTHER, TWO)),
    call((FRAME, ONE), select="id"),
]


@pytest.mark.parametrize("second", OTHERS, ids=["other", "other sink", "one more", "other columns"])
def test_a_call_with_different_rows_is_refused_after_a_failure_that_may_have_decided_the_batch(second: Call) -> None:
    run = failed_run(call((FRAME, ONE)))
    assert run.take(second, Writer())
    with pytest.raises(
        ConfigurationError, match="does not pass the same DataFrame objects to the same sinks as the first call"
    ) as raised:
        run.begin(second, same_rows, is_undecided=False)
    assert "do not write any rows by hand, and restart" in str(raised.value)
    repeated = call((Frame("a"), ONE))  # the refused call has decided nothing, so the first call counts
    run.begin(repeated, same_rows, is_undecided=False)


def test_equal_dataframes_are_refused_if_their_names_may_mean_something_else_now_but_another_attempt_is_not() -> None:
    """Fails if a view was replaced after the first call, and the second call's rows are lost."""
    first = call((FRAME, ONE))
    run = new_run()
    for _ in range(2):
        run.begin(first, lambda *_: False, is_undecided=False)
    with pytest.raises(ConfigurationError, match="names a table or a view counts as a different one in each call"):
        run.begin(call((FRAME, ONE)), lambda *_: False, is_undecided=False)


@pytest.mark.parametrize("second", OTHERS, ids=["other", "other sink", "one more", "other columns"])
def test_a_call_with_different_rows_is_accepted_after_a_failure_before_the_decision(
    second: Call, caplog: pytest.LogCaptureFixture
) -> None:
    run = failed_run(call((FRAME, ONE)))
    run.begin(second, same_rows, is_undecided=True)
    assert "only its rows are written" in caplog.text
    with pytest.raises(ConfigurationError):  # the second call may already have been decided
        run.begin(call((FRAME, ONE)), same_rows, is_undecided=False)
