"""Which plans, as Spark 4.0.5 prints them, may have partitions in a global order."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from tests.unit.cut_plans import CUT_SHORT
from twopc.integration.spark.sorted_plans import may_be_sorted, reads_other_rdd

_SORT = """Sort [ts#4L ASC NULLS FIRST], true, 0
{0}+- Exchange rangepartitioning(ts#4L ASC NULLS FIRST, 8), ENSURE_REQUIREMENTS, [plan_id=87]
{0}   +- *(1) Scan ExistingRDD[key#3,ts#4L]
"""
_ROWS = """*(1) Filter (isnotnull(key#3) AND NOT (key#3 = k3))
+- *(1) Scan ExistingRDD[key#3,ts#4L]
"""
#: The column with the order is no longer needed, so Spark itself no longer calls the rows ordered.
_PROJECTED = "*(2) Project [key#3]\n+- *(2) " + _SORT.format("   ")
_ADAPTIVE = "AdaptiveSparkPlan isFinalPlan=false\n+- Project [key#3]\n   +- " + _SORT.format("      ")
_CACHED = """InMemoryTableScan [key#3, ts#4L]
   +- InMemoryRelation [key#3, ts#4L], StorageLevel(disk, memory, deserialized, 1 replicas)
         +- *(2) """ + _SORT.format("            ")
_ADAPTIVE_CACHED = """InMemoryTableScan [key#3]
   +- InMemoryRelation [key#3], StorageLevel(disk, memory, deserialized, 1 replicas)
         +- AdaptiveSparkPlan isFinalPlan=true
            +- == Final Plan ==
               *(2) Sort [ts#4L ASC NULLS FIRST], true, 0
               +- AQEShuffleRead coalesced
                  +- ShuffleQueryStage 0
                     +- Exchange rangepartitioning(ts#4L ASC NULLS FIRST, 8), ENSURE_REQUIREMENTS, [plan_id=249]
                        +- *(1) Scan ExistingRDD[key#3,ts#4L]
            +- == Initial Plan ==
               Sort [ts#4L ASC NULLS FIRST], true, 0
               +- Exchange rangepartitioning(ts#4L ASC NULLS FIRST, 8), ENSURE_REQUIREMENTS, [plan_id=201]
                  +- Scan ExistingRDD[key#3,ts#4L]
"""
_REUSED = """Union
:- *(2) Project [key#3]
:  +- *(2) Filter (ts#4L > 3)
:     +- ReusedExchange [key#3, ts#4L], Exchange rangepartitioning(ts#4L ASC NULLS FIRST, 8), ENSURE_REQUIREMENTS
+- *(3) Scan ExistingRDD[key#3]
"""
#: Only the shuffle below another shuffle is sorted.
_GROUPED = """*(3) HashAggregate(keys=[key#3], functions=[last(ts#4L, false)], output=[key#3, last#9L])
+- Exchange hashpartitioning(key#3, 8), ENSURE_REQUIREMENTS, [plan_id=60]
   +- *(2) HashAggregate(keys=[key#3], functions=[partial_last(ts#4L, false)], output=[key#3, last#12L])
      +- *(2) """ + _SORT.format("         ")
_PER_KEY = """*(2) Sort [ts#4L ASC NULLS FIRST], false, 0
+- Exchange hashpartitioning(key#3, 8), REPARTITION_BY_NUM, [plan_id=71]
   +- *(1) Scan ExistingRDD[key#3,ts#4L]
"""
#: The sorted side of a join is sent to every task as a table.
_BROADCAST = """*(3) BroadcastHashJoin [key#3], [key#9], Inner, BuildRight, false
:- FileScan json [key#3,ts#4L] Batched: false, DataFilters: [], Format: JSON
+- BroadcastExchange HashedRelationBroadcastMode(List(input[0, string, true]),false), [plan_id=60]
   +- *(2) """ + _SORT.format("      ")
#: The first column's name contains a line break.
_TWO_LINES = "*(2) Project [k\ney#3]\n+- *(2) " + _SORT.format("   ")


def is_sorted(frame: str, *, query: str = _ROWS, other: bool = False) -> bool:
    return may_be_sorted(frame, lambda: query, lambda: other)


@pytest.mark.parametrize(
    "plan", [_PROJECTED, _ADAPTIVE, _CACHED, _ADAPTIVE_CACHED, _REUSED, _TWO_LINES, *CUT_SHORT, _ROWS + CUT_SHORT[1]]
)
def test_a_dataframe_may_be_sorted(plan: str) -> None:
    assert is_sorted(plan)


@pytest.mark.parametrize("plan", [_ROWS, _GROUPED, _PER_KEY, _BROADCAST, "LocalTableScan <empty>, [key#3]\n"])
def test_a_dataframe_is_not_sorted(plan: str) -> None:
    assert not is_sorted(plan)


@pytest.mark.parametrize(
    ("plan", "expected"), [(_ROWS, True), (_GROUPED, False), (_PER_KEY, False), (_BROADCAST, False)]
)
def test_a_batch_or_a_checkpoint_may_be_sorted_unless_a_shuffle_follows(plan: str, expected: bool) -> None:  # noqa: FBT001
    assert is_sorted(plan, query=_PROJECTED) == expected
    assert is_sorted(plan, query=CUT_SHORT[1]) == expected
    assert is_sorted(plan, other=True) == expected


def test_the_batch_is_not_another_rdd() -> None:
    batch, checkpoint, table = MagicMock(), MagicMock(), MagicMock()
    for leaf, name, number in ((batch, "LogicalRDD", 6), (checkpoint, "LogicalRDD", 9), (table, "Relation", 9)):
        leaf.nodeName.return_value, leaf.rdd().id.return_value = name, number

    def frame(*leaves: MagicMock) -> MagicMock:
        found = MagicMock()
        collected = found._jdf.queryExecution().analyzed().collectLeaves()
        collected.size.return_value, collected.apply.side_effect = len(leaves), leaves.__getitem__
        return found

    assert not reads_other_rdd(frame(batch, table), 6)
    assert reads_other_rdd(frame(batch, checkpoint), 6)
