"""DataFrames of one call under Spark Connect: whether they may be parts of one batch."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

from pyspark import cloudpickle
from pyspark.sql.connect import proto

from tests.unit.test_connect_frames import Frame, by_id, of_sql, sql, table, where
from twopc.errors import ConfigurationError
from twopc.integration.connect import mode
from twopc.integration.connect.parts import _content, calls_python, require_parts
from twopc.integration.connect.start import Start

if TYPE_CHECKING:
    from collections.abc import Callable

_pickled: Callable[[object], bytes] = cloudpickle.dumps
_SELF_JOINED = "Join Inner\n:- LogicalRDD [now()#5, value#2], false\n"


class Made(Frame):
    """A DataFrame whose message is made anew for each request."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(None)
        self.made = make

    @property
    def _plan(self) -> SimpleNamespace:
        return SimpleNamespace(plan=lambda _client: self.made())

    def sameSemantics(self, other: Made) -> bool:  # noqa: N802 - Spark's name
        return _content(self.made()) == _content(other.made())


def number(relation: Any, plan_id: int) -> Any:
    relation.common.plan_id = plan_id
    return relation


def filtered(batch: Any, function: Callable[[int], bool], plan_id: int) -> Any:
    """What PySpark sends for ``batch.where(udf(function)(batch.value))``. It pickles the function for each request."""
    attribute = proto.Expression.UnresolvedAttribute(unparsed_identifier="value", plan_id=plan_id)
    call = proto.CommonInlineUserDefinedFunction(
        function_name="<lambda>",
        arguments=[proto.Expression(unresolved_attribute=attribute)],
        python_udf=proto.PythonUDF(eval_type=100, command=_pickled(function)),
    )
    condition = proto.Expression(common_inline_user_defined_function=call)
    return number(proto.Relation(filter=proto.Filter(input=batch, condition=condition)), plan_id)


def called(name: str, *arguments: Any) -> Any:
    function = proto.Expression.UnresolvedFunction(function_name=name, arguments=arguments)
    condition = proto.Expression(unresolved_function=function)
    return proto.Relation(filter=proto.Filter(input=by_id("b"), condition=condition))


def split(*, is_bound: bool, batch: Callable[[str], Any] = lambda _: by_id("b")) -> dict[str, Any]:
    """The parts of a batch, which a loop makes."""
    frames: dict[str, Any] = {}
    for part, (sink, digit) in enumerate({"even": "0", "odd": "f"}.items()):

        def mine(value: int, bound: int | None = part if is_bound else None) -> bool:
            return value % 2 == (part if bound is None else bound)  # noqa: B023 - the mistake

        frames[sink] = Made(partial(made, batch, digit * 32, mine, 10 + part))
    return frames


def made(batch: Callable[[str], Any], random: str, function: Callable[[int], bool], plan_id: int) -> Any:
    return filtered(batch(random), function, plan_id)


def through_sql(random: str) -> Any:
    relation = of_sql("SELECT *", by_id("b"))
    alias = f"_pyspark_connect_temp_view_{random}"
    relation.with_relations.references[0].subquery_alias.alias = alias
    relation.with_relations.root.sql.query = f"TABLE {alias}"
    return relation


@pytest.mark.parametrize("batch", [lambda _: by_id("b"), through_sql], ids=["DataFrame", "SQL"])
def test_parts_that_a_functions_variable_was_to_tell_apart_are_refused(batch: Callable[[str], Any]) -> None:
    """When PySpark pickles the functions, the loop has ended. So both parts would have the last part's rows."""
    with pytest.raises(
        ConfigurationError, match=r"batch 7.*'even' and 'odd' call a Python function.*Nothing was written.*part=part"
    ):
        require_parts(7, split(is_bound=False, batch=batch), {})
    require_parts(7, split(is_bound=True, batch=batch), {})


def test_equal_dataframes_without_a_python_function_are_written() -> None:
    require_parts(7, {"a": Frame(where(by_id("b"), "true")), "b": Frame(where(by_id("b"), "true"))}, {})
    require_parts(7, {"": split(is_bound=False)["odd"]}, {})


_NOW = where(by_id("b"), "ts < now()")


@pytest.mark.parametrize(
    "late",
    [
        _NOW,
        where(by_id("b"), "day = CURRENT_DATE"),
        where(by_id("b"), "n < unix_timestamp( )"),
        called("current_timestamp"),
        called("localtimestamp"),
        called("unix_timestamp"),
        sql("SELECT * FROM rows WHERE day < curdate()"),
        where(called("now"), "true"),
    ],
)
def test_dataframes_that_see_different_times_are_refused(late: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"batch 7.*'late' and 'live' use the clock.*Nothing was written.*sf\.lit"
    ):
        require_parts(7, {"late": Frame(late), "all": Frame(by_id("b")), "live": Frame(_NOW)}, {})
    require_parts(7, {"late": Frame(late), "all": Frame(by_id("b"))}, {})
    require_parts(7, {"": Frame(late)}, {})


def test_the_clock_in_a_view_is_seen_but_a_column_with_the_name_of_the_clock_is_not_the_clock() -> None:
    frames = {"late": Frame(table("late")), "live": Frame(table("live"))}
    require_parts(7, frames, dict.fromkeys(frames, _SELF_JOINED))
    with pytest.raises(ConfigurationError, match="use the clock"):
        require_parts(7, frames, dict.fromkeys(frames, "Filter (ts#1 < current_timestamp())"))


@pytest.mark.parametrize(
    "frame",
    [
        where(by_id("b"), "n < unix_timestamp(ts)"),
        where(by_id("b"), "zone = current_timezone()"),
        called("unix_timestamp", proto.Expression()),
        where(by_id("b"), "known"),
    ],
)
def test_a_dataframe_without_the_clock_is_a_part(frame: Any) -> None:
    require_parts(7, {"a": Frame(frame), "b": Frame(frame)}, {})


def connect_mode() -> mode.ConnectMode:
    query: Any = SimpleNamespace(batch_id=7)
    return mode.ConnectMode(None, query, Start())


def test_an_equal_dataframe_has_other_rows_if_its_names_or_variables_may_mean_something_else_now() -> None:
    same, of_python = connect_mode().same_rows, split(is_bound=False)
    plain: list[Any] = [Made(lambda: where(by_id("b"), "true")) for _ in range(2)]
    named: Any = Made(lambda: table("part"))
    assert same(plain[0], plain[1]) and same(plain[0], plain[0])
    assert not same(named, named)
    assert same(of_python["odd"], of_python["odd"])
    assert not same(of_python["odd"], of_python["even"])
    assert calls_python(of_python["odd"]) and not calls_python(plain[0])


@pytest.mark.parametrize(("at_start", "now"), [(2, 1), (1, 2)])
def test_state_in_a_format_that_keeps_the_first_evaluation_is_refused(
    at_start: int, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, "called_batch", lambda: SimpleNamespace(frame=None))
    conf = SimpleNamespace(get=lambda name, default: str(now) if "FormatVersion" in name else default)
    query: Any = SimpleNamespace(batch_id=7)
    connect = mode.ConnectMode(SimpleNamespace(conf=conf), query, Start(state_format=at_start))
    connect.__dict__["is_stateless"] = False
    nothing: Any = None
    with pytest.raises(ConfigurationError, match=r"batch 7 belongs to a query that keeps state.*is 2\..*to 1"):
        connect._state(nothing, SimpleNamespace(batch_id=7))  # type: ignore[arg-type]
    connect.__dict__["is_stateless"] = True
    assert connect._state(nothing, SimpleNamespace(batch_id=7)) is None  # type: ignore[arg-type]
