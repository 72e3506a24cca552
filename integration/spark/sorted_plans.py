"""Find out whether a DataFrame may be sorted as a whole, so that the order of its partitions matters.

Spark's ``coalesce`` merges neighboring partitions only if Spark does not know where the partitions' rows are
(``DefaultPartitionCoalescer``). If it knows, because the rows are cached or because an adaptive plan has already run their
shuffle, it prefers partitions on the same host, in an order that looks random. It does so even if nothing has to be merged.

Only a range partitioning gives the partitions an order: ``orderBy``, ``sort`` and ``repartitionByRange`` plan one. Plans are
read as text, because Spark Connect provides no other form, and because an adaptive plan does not show its partitioning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twopc.integration.spark.plan_text import NODE, is_cut_short

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_RANGES: Final = "rangepartitioning("
_RDD: Final = "ExistingRDD"


def may_be_sorted(frame: str, query: Callable[[], str], reads_other_rdd: Callable[[], bool]) -> bool:
    """Whether the order of a DataFrame's partitions may matter.

    Args:
        frame: the DataFrame's plan. It does not show how the rows of an RDD were computed. The batch is an RDD.
        query: returns the plan of the batch. A query may sort its own result.
        reads_other_rdd: returns whether the DataFrame reads an RDD other than the batch. For example, a checkpoint of a
            sorted DataFrame is an RDD.
    """
    is_sorted, reads_rdd = _order(frame)
    return is_sorted or (reads_rdd and (_order(query())[0] or reads_other_rdd()))


def reads_other_rdd(frame: DataFrame, batch: int) -> bool:
    """Whether a classic DataFrame reads an RDD other than the batch, whose RDD has the number ``batch``."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public API returns plans
    leaves = plan.collectLeaves()
    return any(_is_other_rdd(leaves.apply(index), batch) for index in range(leaves.size()))


def _is_other_rdd(leaf: Any, batch: int) -> bool:
    return str(leaf.nodeName()) == "LogicalRDD" and leaf.rdd().id() != batch


def _order(plan: str) -> tuple[bool, bool]:
    """Return whether a plan's last shuffle may sort its rows, and whether an RDD's rows reach the result without a shuffle.

    The plan is the text of a physical plan. Logical plans may come before it.
    """
    is_sorted, reads_rdd = is_cut_short(plan), False
    shuffled: int | None = None  # the depth of the last shuffle; deeper nodes are below it
    for line in plan.split("\n"):
        node = NODE.match(line)
        if node is None or (shuffled is not None and len(node["branch"]) > shuffled):
            continue
        # The second line of a column's name is no node, but it seems to be at the root. So it ends the search below a shuffle
        # too early at worst, and more plans seem to be sorted.
        shuffled = len(node["branch"]) if node["name"].endswith("Exchange") else None
        is_sorted = is_sorted or _RANGES in node["rest"]
        reads_rdd = reads_rdd or (node["name"] == "Scan" and _RDD in node["rest"])
    return is_sorted, reads_rdd
