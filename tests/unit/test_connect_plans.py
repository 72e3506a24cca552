"""Plans as Spark 4.0.5 and 4.1.4 print them, and which of them are written under Spark Connect (rule 6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.cut_plans import CUT_SHORT
from twopc.errors import ConfigurationError
from twopc.integration.connect.one_shuffle import NOT_KNOWN, Checksums, require_one_shuffle
from twopc.integration.connect.plans import Plan, columns_of, parsed

_ROWS = """== Parsed Logical Plan ==
LogicalRDD [id#3L], false

== Analyzed Logical Plan ==
id: bigint
LogicalRDD [id#3L], false

== Optimized Logical Plan ==
LogicalRDD [id#3L], false

== Physical Plan ==
*(1) Scan ExistingRDD[id#3L]
"""
_WRITTEN = """== Analyzed Logical Plan ==
id: bigint, p: int
Project [id#3L]
+- LogicalRDD [id#3L], false

== Physical Plan ==
MapInArrow <lambda>(id#3L, p#21)#23, [id#24L, p#25], false
+- Coalesce 4
   +- *(1) Project [id#3L, SPARK_PARTITION_ID() AS p#21]
      +- *(1) Scan ExistingRDD[id#3L]
"""
_SHUFFLED = """== Analyzed Logical Plan ==
id: bigint
~WriteToMicroBatchDataSourceV1 ForeachBatchSink, 6ed63273, [checkpointLocation=/tmp/cp], Append, 0
+- ~Repartition 3, true
   +- ~Project [id#6L AS id#3L]
      +- Relation [id#6L] parquet

== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=true
+- == Final Plan ==
   ResultQueryStage 1
   +- ShuffleQueryStage 0
      +- Exchange RoundRobinPartitioning(3), REPARTITION_BY_NUM, [plan_id=38]
         +- *(1) ColumnarToRow
            +- FileScan parquet [id#6L] Batched: true, DataFilters: [], Format: Parquet
+- == Initial Plan ==
   Exchange RoundRobinPartitioning(3), REPARTITION_BY_NUM, [plan_id=21]
   +- FileScan parquet [id#6L] Batched: true, DataFilters: [], Format: Parquet
"""
_LIMITED = """== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
+- CollectLimit 3
   +- HashAggregate(keys=[id#3L], functions=[count(1)], output=[id#3L, count#27L])
      +- Exchange hashpartitioning(id#3L, 200), ENSURE_REQUIREMENTS, [plan_id=112]
         +- HashAggregate(keys=[id#3L], functions=[partial_count(1)], output=[id#3L, count#30L])
            +- Scan ExistingRDD[id#3L]
"""
_CACHED = """== Physical Plan ==
InMemoryTableScan [id#3L]
   +- InMemoryRelation [id#3L], StorageLevel(disk, memory, deserialized, 1 replicas)
         +- *(1) Scan ExistingRDD[id#3L]
"""
#: A query without a shuffle.
_QUERY = """== Analyzed Logical Plan ==
id: bigint
~WriteToMicroBatchDataSourceV1 ForeachBatchSink, 6ed63273, [checkpointLocation=/tmp/cp], Append, 0
+- ~Project [id#6L AS id#3L]
   +- Relation [id#6L] parquet

== Physical Plan ==
*(1) ColumnarToRow
+- FileScan parquet [id#6L] Batched: true, DataFilters: [], Format: Parquet
"""
#: A query that joins its rows with a cached table whose rows come from a shuffle.
_JOINED_WITH_CACHE = """== Physical Plan ==
*(2) BroadcastHashJoin [id#6L], [k#9L], Inner, BuildRight, false
:- *(2) FileScan parquet [id#6L] Batched: true, DataFilters: [], Format: Parquet
+- BroadcastExchange HashedRelationBroadcastMode(List(input[0, bigint, true]),false), [plan_id=60]
   +- InMemoryTableScan [k#9L]
         +- InMemoryRelation [k#9L], StorageLevel(disk, memory, deserialized, 1 replicas)
               +- Exchange hashpartitioning(p#8, 8), REPARTITION_BY_NUM, [plan_id=50]
                  +- *(1) FileScan parquet [k#9L] Batched: true, DataFilters: [], Format: Parquet
"""
#: A shuffle of cached rows, which an adaptive plan has computed with another shuffle (Spark 4.0.5).
_ABOVE_CACHE = """== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
+- Exchange hashpartitioning(key#1, 3), REPARTITION_BY_NUM, [plan_id=317]
   +- InMemoryTableScan [key#1, value#2]
         +- InMemoryRelation [key#1, value#2], StorageLevel(disk, memory, deserialized, 1 replicas)
               +- AdaptiveSparkPlan isFinalPlan=true
                  +- == Final Plan ==
                     ResultQueryStage 1
                     +- *(2) Project [key#1, value#2]
                        +- ShuffleQueryStage 0
                           +- Exchange hashpartitioning(_nondeterministic#96, 2), REPARTITION_BY_NUM, [plan_id=271]
                              +- *(1) Project [key#1, value#2, rand(6314961185625433791) AS _nondeterministic#96]
                                 +- *(1) Scan ExistingRDD[key#1,value#2]
                  +- == Initial Plan ==
                     Project [key#1, value#2]
                     +- Exchange hashpartitioning(_nondeterministic#96, 2), REPARTITION_BY_NUM, [plan_id=240]
                        +- Project [key#1, value#2, rand(6314961185625433791) AS _nondeterministic#96]
                           +- Scan ExistingRDD[key#1,value#2]
"""
_STATEFUL = """== Physical Plan ==
*(4) HashAggregate(keys=[id#3L], functions=[count(1)], output=[id#3L, count#30L])
+- StateStoreSave [id#3L], state info [ checkpoint = file:/tmp/cp/state, opId = 0], Append, 0, 2
   +- StateStoreRestore [id#3L], state info [ checkpoint = file:/tmp/cp/state, opId = 0], 2
"""
#: Operators without keys, as Spark 4.0.5 prints them. The number of partitions is that of the query's other operators.
_GLOBAL = """== Physical Plan ==
*(4) HashAggregate(keys=[], functions=[count(1)], output=[count#3L])
+- StateStoreSave state info [ checkpoint = file:/tmp/cp/state, runId = 25d4a5ce, opId = 12, ver = 1, numPartitions = 3] \
stateStoreCkptIds = None, Update, 0, 0, 2
   +- *(3) HashAggregate(keys=[], functions=[merge_count(1)], output=[count#14L])
      +- StateStoreRestore state info [ checkpoint = file:/tmp/cp/state, runId = 25d4a5ce, opId = 12, ver = 1, \
numPartitions = 3] stateStoreCkptIds = None, 2
         +- StreamingGlobalLimit 5, state info [ checkpoint = file:/tmp/cp/state, runId = 25d4a5ce, opId = 1, ver = 1, \
numPartitions = 3] stateStoreCkptIds = None, Append
            +- StreamingDeduplicate [id#3L], state info [ checkpoint = file:/tmp/cp/state, runId = 25d4a5ce, opId = 0, \
ver = 1, numPartitions = 3] stateStoreCkptIds = None, 0, 0
"""
#: A node that Spark marks, because its expressions belong to a Python function.
_MARKED = """== Physical Plan ==
!FlatMapGroupsInPandasWithState count(key#28)#52, [key#28], [key#53], state info [ checkpoint = file:/tmp/cp/state, opId = 0]
+- *(1) !Sort [key#28 ASC NULLS FIRST], false, 0
"""
#: Expressions with line breaks, and counted rows (``observe``).
_BROKEN = """== Analyzed Logical Plan ==
v: array<string>, k: string
Project [split(value#1,
, -1) AS v#4, regexp_replace(key#0, \r\n, \x85\u2028, 1) AS k#5]
+- CollectMetrics m, [count(1) AS n#2L], 1
   +- LogicalRDD [key#0, value#1], false

== Physical Plan ==
*(2) Project [split(value#1,
, -1) AS v#4, regexp_replace(key#0, \r
, \x85\u2028, 1) AS k#5]
+- CollectMetrics m, [count(1) AS n#2L]
   +- *(1) Scan ExistingRDD[key#0,value#1]
"""
#: A column whose name contains a line break.
_TWO_LINES = """== Analyzed Logical Plan ==
k
y: string
LogicalRDD [k
y#6, z#7], false

== Physical Plan ==
*(1) Scan ExistingRDD[k
y#6,z#7]
"""
#: A join of the batch with a part of itself, which Spark collects in a separate job.
_SELF_BROADCAST = """== Analyzed Logical Plan ==
id: bigint
Project [id#3L]
+- Join Inner, (id#3L = id#68L)
   :- LogicalRDD [id#3L], false
   +- ResolvedHint (strategy=broadcast)
      +- LogicalRDD [id#3L], false

== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
+- Project [id#3L]
   +- BroadcastHashJoin [id#3L], [id#68L], Inner, BuildRight, false
      :- Scan ExistingRDD[id#3L]
      +- BroadcastExchange HashedRelationBroadcastMode(List(input[0, bigint, false]),false), [plan_id=169]
         +- Scan ExistingRDD[id#68L]
"""
#: A join of the batch with a table, which Spark collects in a separate job.
_LOOKED_UP = _SELF_BROADCAST.replace("LogicalRDD [id#3L], false\n\n", "Relation [id#68L] parquet\n\n").replace(
    "Scan ExistingRDD[id#68L]", "FileScan parquet [id#68L] Batched: true, DataFilters: [], Format: Parquet"
)
#: The same, if a common table expression contains the batch. The analyzed plan shows the batch once.
_IN_CTE = _LOOKED_UP.split("== Physical")[0] + "== Physical" + _SELF_BROADCAST.split("== Physical")[1]
#: Rows that the function has collected.
_COLLECTED = """== Analyzed Logical Plan ==
id: bigint
LocalRelation [id#9L]

== Physical Plan ==
LocalTableScan [id#9L]
"""
_ON = Checksums(())
_OFF = Checksums(("spark.sql.shuffle.orderIndependentChecksum.enabled=true",))
_BATCH = {"id#3"}


def frame_of(text: str) -> Plan:
    """The plan of a DataFrame that names each RDD with the batch's columns by the batch's id."""
    plan = parsed(text)
    return replace(plan, known=plan.rdds.count(_BATCH))


def require(query: str, *frames: str | Plan, checksums: Checksums = _OFF, at_start: Checksums | None = None) -> None:
    both = (checksums if at_start is None else at_start, checksums)
    plans = [frame_of(frame) if isinstance(frame, str) else frame for frame in frames]
    require_one_shuffle(7, parsed(query), plans, lambda: both)


@pytest.mark.parametrize(
    ("text", "shuffles"),
    [
        (_ROWS, 0),
        (_WRITTEN, 0),
        (_SHUFFLED, 1),
        (_LIMITED, None),
        (_CACHED, 0),
        (_STATEFUL, None),
        (_BROKEN, 0),
        (_TWO_LINES, 0),
        (_BROKEN.replace("CollectMetrics m", "Exchange SinglePartition"), 1),
        (_BROKEN.replace("AS v#4", "\n+- Exchange SinglePartition"), 1),  # text that looks like a shuffle
        ("", None),
        (_JOINED_WITH_CACHE, 1),
        (_ABOVE_CACHE, 3),  # the two forms of the cached plan count separately
    ],
)
def test_the_shuffles_of_a_plan_are_counted_once_for_each_of_its_forms(text: str, shuffles: int | None) -> None:
    assert parsed(text).shuffles == shuffles


def test_a_streams_rdd_hides_no_rows_but_a_checkpoint_does() -> None:
    assert not parsed(_QUERY).hides_rows
    assert not parsed(_QUERY.replace("Relation [id#6L] parquet", "~LogicalRDD [id#6L], true")).hides_rows
    assert parsed(_QUERY.replace("Relation [id#6L] parquet", "LogicalRDD [id#6L], false")).hides_rows
    assert not frame_of(_ROWS).hides_rows
    assert replace(frame_of(_ROWS), is_cut=True).hides_rows


def test_an_rdd_is_found_even_if_a_columns_name_contains_a_line_break() -> None:
    assert parsed(_TWO_LINES).rdds == parsed(_TWO_LINES).batches == [{"y#6", "z#7"}]
    assert len(parsed(_BROKEN).rdds) == 1
    below = _TWO_LINES.replace("LogicalRDD", "Project [z#7]\n+- LogicalRDD")
    assert len(parsed(below).rdds) == 1


def test_the_message_names_the_nodes_that_may_shuffle() -> None:
    with pytest.raises(
        ConfigurationError, match=r"in the query: unknown because of CollectLimit, in the DataFrames: 0\)"
    ):
        require(_LIMITED, _WRITTEN)


@pytest.mark.parametrize(
    "text",
    [
        _ROWS + "... 100 more characters",
        *CUT_SHORT,
        "No physical plan. Waiting for data.",
        "Error occurred during query planning: \nout of memory",
        "",
    ],
)
def test_a_plan_that_is_cut_short_or_not_shown_may_contain_anything(text: str) -> None:
    cut = parsed(text)
    assert cut.shuffles is None
    assert cut.reads_cache
    assert cut.keeps_data
    assert cut.keeps_state
    assert cut.hides_rows
    assert cut.may_have({"id#3"})
    assert cut.may_pass_on({"id#3"})


def test_state_a_cache_and_the_batch_are_found() -> None:
    assert parsed(_STATEFUL).keeps_state
    assert parsed(_MARKED).keeps_state
    assert not parsed(_SHUFFLED).keeps_state
    assert parsed(_CACHED).reads_cache
    assert parsed(_WRITTEN).batches == [_BATCH]


def test_operators_without_keys_have_their_state_in_one_partition() -> None:
    assert parsed(_GLOBAL).operators_without_keys == {12, 1}
    assert not parsed(_STATEFUL).operators_without_keys


def test_the_columns_of_a_batch_are_found_in_its_querys_plan() -> None:
    assert parsed(_ROWS).batches[0] <= columns_of(parsed(_SHUFFLED).analyzed)
    assert not parsed(_ROWS).batches[0] <= columns_of(parsed(_SHUFFLED.replace("#3L", "#30L")).analyzed)


def test_a_plan_without_a_shuffle_is_written_with_any_setting() -> None:
    require(_QUERY, _WRITTEN, at_start=NOT_KNOWN)
    require(_QUERY, _WRITTEN, _CACHED)


def test_a_plan_with_one_shuffle_is_written_if_spark_compares_its_rows() -> None:
    require(_SHUFFLED, _WRITTEN, checksums=_ON)
    require(_SHUFFLED, _LOOKED_UP, checksums=_ON)
    require(_QUERY, _SELF_BROADCAST)


def test_a_table_beside_the_batch_or_in_the_query_is_not_a_collected_batch() -> None:
    require(_QUERY, _LOOKED_UP.replace("Relation [id#68L] parquet", "LocalRelation [id#68L]"))
    require(_QUERY.replace("Relation [id#6L] parquet", "LocalRelation [id#6L]"), _WRITTEN)


@pytest.mark.parametrize(
    ("query", "frames", "checksums", "reason"),
    [
        (_SHUFFLED, [_WRITTEN], _OFF, "orderIndependentChecksum.enabled=true"),
        (_SHUFFLED, [_LIMITED], _ON, "at most one shuffle"),
        (_SHUFFLED, [_SHUFFLED], _ON, "at most one shuffle"),
        (_SHUFFLED, [_WRITTEN, _WRITTEN], _ON, "one DataFrame for all sinks"),
        (_SHUFFLED, [_CACHED], _ON, "not persisted"),
        (_QUERY, [_WRITTEN.replace("#3L", "#4L")], _ON, "reads only the batch"),
        (_QUERY, [parsed(_WRITTEN)], _ON, "reads only the batch.*no localCheckpoint"),
        (
            _QUERY.replace("Relation [id#6L] parquet", "LogicalRDD [id#6L], false"),
            [_WRITTEN],
            _ON,
            "no localCheckpoint",
        ),
        (_JOINED_WITH_CACHE, [_WRITTEN], _ON, "reads no persisted table"),
        (_SHUFFLED, [_SELF_BROADCAST], _ON, "no broadcast or subquery of the batch"),
        (_SHUFFLED, [_IN_CTE], _ON, "no broadcast or subquery of the batch"),
        (_QUERY, [_COLLECTED], _ON, "no rows that the function has collected"),
    ],
)
def test_a_plan_that_may_shuffle_is_refused_and_the_message_gives_the_way_out(
    query: str, frames: list[str | Plan], checksums: Checksums, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"batch 7.*Nothing was written.*{reason}.*deterministic_plan=True"):
        require(query, *frames, checksums=checksums)


def test_the_message_says_that_a_checkpoint_may_hide_a_shuffle() -> None:
    with pytest.raises(
        ConfigurationError, match=r"in the DataFrames: 0, hidden by a checkpoint, a view or collected rows: unknown\)"
    ):
        require(_QUERY, parsed(_WRITTEN))


def test_settings_not_in_effect_when_the_query_started_do_not_count() -> None:
    with pytest.raises(ConfigurationError, match="before the query starts"):
        require(_SHUFFLED, _WRITTEN, checksums=_ON, at_start=NOT_KNOWN)


def test_a_node_with_an_unknown_name_may_shuffle() -> None:
    assert parsed(_ROWS.replace("*(1) Scan", "Teleport")).shuffles is None
    assert isinstance(parsed(_ROWS), Plan)
