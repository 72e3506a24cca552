"""DataFrames of Spark Connect: which of their RDDs are the batch, and which of their names the server may resolve twice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

from pyspark.errors import AnalysisException
from pyspark.sql.connect import proto

from twopc import CheckpointConfig
from twopc.errors import ConfigurationError
from twopc.integration.connect import mode
from twopc.integration.connect.frames import (
    functions_in,
    has_barrier,
    is_by_name,
    other_data,
    plan_of_rows,
    references,
    require_no_subquery,
    require_own_rows,
    require_own_views,
    resolved,
    views_of,
)
from twopc.integration.connect.plans import Plan, parsed
from twopc.integration.connect.start import Start
from twopc.integration.connect.worker import CalledBatch
from twopc.integration.spark.several import SinkFrame

if TYPE_CHECKING:
    from collections.abc import Mapping

_BATCH = {"key#1", "value#2"}
_QUERY = parsed("""== Analyzed Logical Plan ==
key: string, value: string
~WriteToMicroBatchDataSourceV1 ForeachBatchSink, 472a0bc2, [checkpointLocation=/tmp/cp], Append, 0
+- ~SubqueryAlias src
   +- View (`src`, [key#50, value#51])
      +- Relation [key#50,value#51] json
""")
#: A plan as Spark 4.0.5 prints it.
_VIEW = """== Analyzed Logical Plan ==
key: string, value: string
Project [key#1, value#2]
+- SubqueryAlias rows
   +- View (`rows`, [key#1, value#2])
      +- LogicalRDD [key#1, value#2], false

== Physical Plan ==
*(1) Scan ExistingRDD[key#1,value#2]
"""
#: The rows of a DataFrame that the function has made with createDataFrame().
_COLLECTED = """== Analyzed Logical Plan ==
key: string, value: string
LocalRelation [key#8, value#9]

== Physical Plan ==
LocalTableScan [key#8, value#9]
"""
_ALIAS = "_pyspark_connect_temp_view_68b9"
#: The batch, and a table.
_JOINED = """== Analyzed Logical Plan ==
key: string, value: string
Join Inner, (key#1 = key#8)
:- LogicalRDD [key#1, value#2], false
+- SubqueryAlias spark_catalog.default.t
   +- Relation [key#8,n#9] parquet

== Physical Plan ==
*(1) Scan ExistingRDD[key#1,value#2]
"""


@dataclass
class Session:
    """A session with views, and plans of DataFrames as text."""

    views: dict[str, Frame] = field(default_factory=dict)
    client: None = None

    @property
    def catalog(self) -> SimpleNamespace:
        return SimpleNamespace(dropTempView=self.views.pop)

    def table(self, name: str) -> Frame:
        return Frame(table(name), self.views[name].text, self)


@dataclass
class Frame:
    """A DataFrame: its message, and its plan as text."""

    relation: Any
    text: str = ""
    session: Session = field(default_factory=Session)

    @property
    def _plan(self) -> SimpleNamespace:
        return SimpleNamespace(plan=lambda _client: self.relation)

    @property
    def sparkSession(self) -> Session:  # noqa: N802 - Spark's name
        return self.session

    def createTempView(self, name: str) -> None:  # noqa: N802 - Spark's name
        self.session.views[name] = self

    def _explain_string(self, *, extended: bool) -> str:
        assert extended
        return self.text


def by_id(number: str) -> Any:
    return proto.Relation(cached_remote_relation=proto.CachedRemoteRelation(relation_id=number))


def table(name: str) -> Any:
    return proto.Relation(read=proto.Read(named_table=proto.Read.NamedTable(unparsed_identifier=name)))


def sql(query: str) -> Any:
    return proto.Relation(sql=proto.SQL(query=query))


def where(child: Any, condition: str) -> Any:
    expression = proto.Expression(expression_string=proto.Expression.ExpressionString(expression=condition))
    return proto.Relation(filter=proto.Filter(input=child, condition=expression))


def union(left: Any, right: Any) -> Any:
    return proto.Relation(set_op=proto.SetOperation(left_input=left, right_input=right))


def of_sql(query: str, given: Any) -> Any:
    """SQL that a DataFrame was passed to."""
    alias = proto.Relation(subquery_alias=proto.SubqueryAlias(input=given, alias=_ALIAS))
    return proto.Relation(with_relations=proto.WithRelations(root=sql(query), references=[alias]))


@pytest.mark.parametrize(
    ("relation", "is_named"),
    [
        (by_id("b"), False),
        (where(by_id("b"), "extract(year FROM at) = 2024 AND key IN ('a')"), False),
        (where(by_id("b"), "key IN (SELECT key FROM rows)"), True),
        (where(by_id("b"), "key IN ( table rows)"), True),
        (union(by_id("b"), table("rows")), True),
        (where(sql("SELECT 1"), "true"), True),
        (of_sql("SELECT 1", by_id("b")), True),
    ],
)
def test_a_dataframe_that_names_a_table_or_a_view_is_recognized(relation: Any, *, is_named: bool) -> None:
    assert is_by_name(Frame(relation)) == is_named


def test_each_rdd_with_an_id_is_counted_as_often_as_it_occurs_in_the_plan() -> None:
    assert references(Frame(union(by_id("b"), union(by_id("c"), by_id("b")))), "") == {"b": 2, "c": 1}
    used = f"+- View (`{_ALIAS}`, [key#1])\n"
    for times in range(3):
        assert references(Frame(of_sql("SELECT 1", by_id("b"))), used * times)["b"] == times


@pytest.mark.parametrize(
    ("relation", "hides"),
    [
        (by_id("b"), False),
        (where(by_id("b"), "true"), False),
        (by_id("a local checkpoint of the batch"), True),
        (sql("SELECT * FROM rows"), True),
    ],
)
def test_an_rdd_counts_as_the_batch_only_if_it_has_the_batchs_id(relation: Any, *, hides: bool) -> None:
    """A local checkpoint of the batch has the batch's columns."""
    frame = Frame(relation, _VIEW)
    assert plan_of_rows(frame, frame, Frame(by_id("b"))).hides_rows == hides


def test_only_dataframes_that_contain_names_are_resolved_and_their_views_are_dropped() -> None:
    session = Session()
    given: Any = {"a": Frame(by_id("b"), session=session), "c": Frame(table("v"), session=session)}
    frames = [SinkFrame(name, one, ()) for name, one in given.items()]
    with resolved(frames) as found:
        assert found[0] is frames[0]
        [(name, view)] = session.views.items()
        assert view is given["c"]
        held: Any = found[1].frame
        assert held.relation.read.named_table.unparsed_identifier == name
        assert found[1].name == "c"
    assert not session.views


def named(relation: Any, text: str = _VIEW) -> tuple[Plan, Any]:
    plan = parsed(text)
    return plan, references(Frame(relation), plan.analyzed)


def require_own(
    query: Plan, frames: Mapping[str, Any], batch: set[str], others: Any, known: Mapping[str, str] | None = None
) -> None:
    require_own_views(7, {name: plan for name, (plan, _) in frames.items()}, known or {})
    require_own_rows(7, query, frames, batch, others)


def test_a_view_of_the_batch_and_a_join_with_a_table_are_written() -> None:
    rows = named(sql("SELECT * FROM rows"))
    require_own(_QUERY, {"a": rows}, _BATCH, list)
    joined = named(union(by_id("b"), table("t")), _JOINED)
    require_own(_QUERY, {"a": joined, "b": joined}, _BATCH, lambda: ["other"])


def lookup(number: int) -> str:
    """A plan of Spark 4.0.5: the batch, joined with a view of rows that somebody has passed to createDataFrame()."""
    return f"""== Analyzed Logical Plan ==
key: string, n: bigint
SubqueryAlias __twopc_68b9
+- View (`__twopc_68b9`, [key#1, n#{number}L])
   +- Project [key#1, n#{number}L]
      +- Join Inner, (key#1 = key#{number})
         :- SubqueryAlias {_ALIAS}
         :  +- View (`{_ALIAS}`, [key#1, value#2])
         :     +- LogicalRDD [key#1, value#2], false
         +- SubqueryAlias rates
            +- View (`rates`, [key#{number}, n#{number}L])
               +- Project [_0#{number} AS key#{number}, _1#{number}L AS n#{number}L]
                  +- LocalRelation [_0#{number}, _1#{number}L]

== Physical Plan ==
LocalTableScan [key#1, n#{number}L]
"""


#: A view that a client has made in SQL. Spark numbers its columns anew each time that it resolves the name.
_VALUE = """== Analyzed Logical Plan ==
n: int
SubqueryAlias one
+- View (`one`, [n#43])
   +- Project [1 AS n#43]
      +- OneRowRelation

== Physical Plan ==
*(1) Scan OneRowRelation[]
"""
#: The same view in a subquery.
_WITH_VALUE = """== Analyzed Logical Plan ==
key: string, value: string
Filter NOT value#2 IN (list#28 [])
:  +- Project [n#9]
:     +- SubqueryAlias one
:        +- View (`one`, [n#9])
:           +- Project [1 AS n#9]
:              +- OneRowRelation
+- LogicalRDD [key#1, value#2], false

== Physical Plan ==
*(1) Scan ExistingRDD[key#1,value#2]
"""
#: A view of rows whose columns Spark does not show, because ``spark.sql.debug.maxToStringFields`` is 0.
_HIDDEN = """== Analyzed Logical Plan ==
SubqueryAlias rates
+- View (`rates`, [... 2 more fields])
   +- LocalRelation [... 2 more fields]

== Physical Plan ==
LocalTableScan [... 2 more fields]
"""
#: The rows of a view, which the function has collected.
_COLLECTED_VIEW = _VIEW.replace("LogicalRDD [key#1, value#2], false", "LocalRelation [key#1, value#2]")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (_COLLECTED_VIEW, "`rows`"),
        (_COLLECTED_VIEW.replace("`rows`", "`global_temp`.`rows`"), "`global_temp`.`rows`"),
        (lookup(8), "`rates`"),
        (_VALUE, "`one`"),
    ],
)
def test_a_view_of_collected_rows_may_be_another_querys(text: str, name: str) -> None:
    """Two queries may use one helper, which collects the batch and makes the view. Such a view has no RDD."""
    frames = {"a": named(of_sql("SELECT * FROM rows", by_id("b")), text)}
    with pytest.raises(
        ConfigurationError, match=rf"batch 7.*sink 'a'.*the view {name} contains rows.*Nothing was written.*\{{rows\}}"
    ):
        require_own(_QUERY, frames, _BATCH, list)


@pytest.mark.parametrize(
    "text",
    [
        _COLLECTED,
        _COLLECTED_VIEW.replace("`rows`", f"`{_ALIAS}`"),
        _COLLECTED_VIEW.replace("`rows`", "`spark_catalog`.`default`.`rows`"),
        _VIEW.replace("LogicalRDD [key#1, value#2], false", "Relation [key#1,value#2] parquet"),
    ],
    ids=["no view", "a DataFrame passed to SQL", "a view in the catalog", "a table"],
)
def test_rows_that_no_other_query_can_replace_are_written(text: str) -> None:
    require_own(_QUERY, {"a": named(sql("SELECT 1"), text)}, _BATCH, lambda: ["other"])


def known(*texts: str) -> dict[str, str]:
    return {name: text for one in texts for name, text in parsed(one).identities.items()}


def test_a_view_that_is_unchanged_since_the_start_is_read_by_all_dataframes() -> None:
    joined, one = named(of_sql("SELECT *", by_id("b")), lookup(8)), named(by_id("b"), _WITH_VALUE)
    require_own(_QUERY, {"a": joined, "b": joined}, _BATCH, lambda: ["other"], known(lookup(8)))
    require_own(_QUERY, {"a": one, "b": one}, _BATCH, lambda: ["other"], known(_VALUE))


@pytest.mark.parametrize(
    ("before", "text", "batch"),
    [
        (lookup(8), lookup(9), _BATCH),
        (_VALUE, _VALUE.replace("1 AS n", "2 AS n"), _BATCH),
        (_HIDDEN, _HIDDEN, _BATCH),  # if Spark shows no columns, all views of rows look the same
    ],
)
def test_a_view_that_was_replaced_since_the_start_is_refused(before: str, text: str, batch: set[str]) -> None:
    frames = {"a": named(of_sql("SELECT *", by_id("b")), text)}
    with pytest.raises(ConfigurationError, match="contains rows that are neither from a table"):
        require_own(_QUERY, frames, batch, list, known(before))


def test_two_dataframes_of_a_call_do_not_read_one_view_of_a_table() -> None:
    """A loop may have reused the view's name for each part of a table."""
    text = _VIEW.replace("LogicalRDD [key#1, value#2], false", "Relation [key#1,value#2] parquet")
    frames = dict.fromkeys(("a", "b"), named(sql("SELECT * FROM rows"), text))
    with pytest.raises(ConfigurationError, match="another DataFrame in the same call also reads the view `rows`"):
        require_own(_QUERY, frames, _BATCH, list)


def test_the_views_before_the_start_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"`rates`": lookup(8), "`global_temp`.`a``b`": _VALUE.replace("`one`", "`global_temp`.`a`b`")}
    listed = [("", "rates"), ("global_temp", "a`b"), ("", "of a table that is gone")]
    rows = [SimpleNamespace(namespace=namespace, viewName=name) for namespace, name in listed]

    def find(name: str) -> Frame:
        if name not in texts:
            raise AnalysisException("there is no such table")
        return Frame(None, texts[name])

    session = SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: rows), table=find)
    assert views_of(session) == known(*texts.values())
    monkeypatch.setattr(session, "sql", lambda _: find("no list"))
    assert not views_of(session)


_SHARED = replace(_QUERY, analyzed=_QUERY.analyzed.replace("[key#50, value#51]", "[key#1, value#2]"))
_OMITTED = replace(_QUERY, analyzed=_QUERY.analyzed.replace("value#51]", "... 30 more fields]"))


@pytest.mark.parametrize(
    ("query", "texts", "reason"),
    [
        (_QUERY, [_VIEW.replace("#1", "#10")], "may not belong to this batch"),
        (_QUERY, [_VIEW + "... 3 more characters"], "may not belong to this batch"),
        (_SHARED, [_VIEW], "the query itself reads a view"),
        (replace(_QUERY, is_cut=True), [_VIEW], "the query itself reads a view"),
        (_OMITTED, [_VIEW], "the query itself reads a view"),
        (_QUERY, [_VIEW, _VIEW], "another DataFrame in the same call also reads the view `rows`"),
    ],
)
def test_rows_that_a_name_may_have_changed_are_refused(query: Plan, texts: list[str], reason: str) -> None:
    frames = {f"sink{number}": named(sql("SELECT * FROM rows"), text) for number, text in enumerate(texts)}
    with pytest.raises(ConfigurationError, match=rf"batch 7.*{reason}.*Nothing was written.*\{{rows\}}"):
        require_own(query, frames, _BATCH, list)


def test_a_view_is_refused_if_spark_shows_no_columns() -> None:
    """If ``spark.sql.debug.maxToStringFields`` is 0, the rows of every RDD look the same."""
    omitted = _VIEW.replace("key#1, value#2", "... 2 more fields").replace("key#1,value#2", "... 2 more fields")
    with pytest.raises(ConfigurationError, match="may not belong to this batch"):
        require_own(_QUERY, {"a": named(sql("SELECT * FROM rows"), omitted)}, set(), list)


def test_a_view_is_refused_if_it_may_belong_to_another_query_with_the_same_columns() -> None:
    """Both queries read one DataFrame, whose columns are numbered once."""
    frames = {"a": named(sql("SELECT * FROM rows"))}
    with pytest.raises(ConfigurationError, match=r"batch 7.*query other in the same session.*Nothing was.*\{rows\}"):
        require_own(_QUERY, frames, _BATCH, lambda: ["other"])


def test_an_assertion_about_the_plan_does_not_prove_that_a_view_belongs_to_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mode, "batch_columns", lambda: _BATCH)
    given: Any = Frame(sql("SELECT * FROM rows"), _VIEW.replace("#1", "#10"))
    query: Any = SimpleNamespace(plan=lambda: _QUERY, batch_id=7)
    connect = mode.ConnectMode(given.session, query, Start())
    options = SimpleNamespace(select={}, checkpoints=CheckpointConfig(deterministic_plan=True))
    batch: Any = SimpleNamespace(batch_id=7)
    with connect.resolved([SinkFrame("a", given, ())]) as [held]:
        attempt: Any = SimpleNamespace(rows=[SimpleNamespace(name="a", source=held.frame)], options=options)
        with pytest.raises(ConfigurationError, match="may not belong to this batch"):
            connect._require_sound(batch, attempt)


@pytest.mark.parametrize(
    ("parts", "text", "reason"),
    [
        ([where(by_id("b"), f"ts {sign} now()") for sign in ("<", ">=")], _VIEW, "'a' and 'b' use the clock"),
        ([by_id("b"), table("rows")], _COLLECTED_VIEW, "'b'.*the view `rows` contains rows"),
    ],
)
def test_the_parts_of_a_batch_and_their_views_are_a_part_of_the_check(
    parts: list[Any], text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, "batch_columns", lambda: _BATCH)
    query: Any = SimpleNamespace(plan=lambda: _QUERY, batch_id=7)
    session = Session()
    frames: list[Any] = [Frame(one, text, session) for one in parts]
    connect = mode.ConnectMode(frames[0].session, query, Start())
    options = SimpleNamespace(select={}, checkpoints=CheckpointConfig(deterministic_plan=True))
    batch: Any = SimpleNamespace(batch_id=7)
    with connect.resolved([SinkFrame(name, one, ()) for name, one in zip("ab", frames, strict=True)]) as held:
        rows = [SimpleNamespace(name=one.name, source=one.frame) for one in held]
        attempt: Any = SimpleNamespace(rows=rows, options=options)
        with pytest.raises(ConfigurationError, match=reason):
            connect._require_sound(batch, attempt)


@pytest.mark.parametrize(("number", "since_ms"), [("b", None), ("a local checkpoint of the batch", 5.0)])
def test_an_rdd_that_is_not_the_batch_may_hide_a_broadcast_table(
    number: str, since_ms: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_since_ms(Frame(by_id(number), _VIEW), monkeypatch) == since_ms


@pytest.mark.parametrize(
    ("text", "since_ms"),
    [
        pytest.param(_COLLECTED, 5.0, id="rows that the function may have collected"),
        pytest.param(_VIEW + "".join(_COLLECTED.splitlines(keepends=True)[2:3]), None, id="a table beside the batch"),
    ],
)
def test_rows_that_replace_the_batch_may_have_been_collected_earlier(
    text: str, since_ms: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = "b" if since_ms is None else "no batch"
    assert kept_since_ms(Frame(by_id(number), text), monkeypatch) == since_ms


def test_the_planning_time_of_a_runs_first_batch_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier run may have stored it, on another host, or before the clock was set back."""
    given = Frame(by_id("a local checkpoint of the batch"), _VIEW)
    assert kept_since_ms(given, monkeypatch, first=7) == 0


def kept_since_ms(given: Any, monkeypatch: pytest.MonkeyPatch, first: int = 6) -> float | None:
    """What a run whose first batch is ``first`` finds out about batch 7."""
    called: Any = Frame(by_id("b"))
    monkeypatch.setattr(mode, "called_batch", lambda: CalledBatch(called, 7))
    monkeypatch.setattr(mode, "planning_time_ms", lambda _files, _batch_id: 5.0)
    query: Any = SimpleNamespace(plan=lambda: _QUERY, batch_id=first)
    connect = mode.ConnectMode(given.session, query, Start())
    attempt: Any = SimpleNamespace(rows=[SimpleNamespace(name="a", frame=lambda: given)])
    batch: Any = SimpleNamespace(batch_id=7)
    files: Any = None
    with connect.resolved([SinkFrame("a", given, ())]):
        return connect._kept_since_ms(files, batch, attempt)


def test_a_query_in_a_sinks_expression_is_refused() -> None:
    require_no_subquery(7, {"a": ["upper(key) AS key", "extract(year FROM at) AS value"]})
    with pytest.raises(ConfigurationError, match=r"batch 7: select\['a'\].*SELECT max.*Nothing was written"):
        require_no_subquery(7, {"a": ["key", "(SELECT max(n) FROM v) AS value"]})


def files(path: str) -> Any:
    return proto.Relation(read=proto.Read(data_source=proto.Read.DataSource(format="json", paths=[path])))


ROWS = proto.Relation(local_relation=proto.LocalRelation(schema="a INT"))


@pytest.mark.parametrize(
    ("relation", "found"),
    [
        (by_id("batch"), None),
        (where(by_id("batch"), "key = 'a'"), None),
        (union(where(by_id("batch"), "true"), ROWS), None),
        (table("v"), "the name of a table or a view"),
        (where(by_id("batch"), "key IN (SELECT key FROM v)"), "the name of a table or a view"),
        (where(files("/staged"), "true"), "read"),
        (union(by_id("batch"), files("/staged")), "read"),
        (proto.Relation(), "None"),
    ],
    ids=["batch", "part", "rows", "view", "subquery", "files", "union", "unknown"],
)
def test_only_a_dataframe_of_the_batch_a_checkpoint_or_given_rows_has_the_same_rows_each_time(
    relation: Any, found: str | None
) -> None:
    assert other_data(Frame(relation)) == found


def function(command: bytes) -> Any:
    return proto.CommonInlineUserDefinedFunction(function_name="f", python_udf=proto.PythonUDF(command=command))


def test_the_functions_of_a_dataframe_are_found_at_any_depth() -> None:
    mapped = proto.Relation(map_partitions=proto.MapPartitions(input=by_id("batch"), func=function(b"mapped")))
    column = proto.Expression(common_inline_user_defined_function=function(b"column"))
    sum_of = proto.Expression.UnresolvedFunction(function_name="sum", arguments=[column])
    selected = proto.Project(input=mapped, expressions=[proto.Expression(unresolved_function=sum_of)])
    assert sorted(functions_in(Frame(proto.Relation(project=selected)))) == [b"column", b"mapped"]
    assert functions_in(Frame(by_id("batch"))) == []


def test_code_in_barrier_mode_is_found() -> None:
    parts = proto.MapPartitions(input=by_id("batch"), func=function(b"mapped"), is_barrier=True)
    assert has_barrier(Frame(where(proto.Relation(map_partitions=parts), "true")))
    parts.is_barrier = False
    assert not has_barrier(Frame(proto.Relation(map_partitions=parts)))
