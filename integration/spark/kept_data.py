"""Find out whether a batch uses data that Spark computes in separate jobs and keeps outside the RDDs of the plan.

Such data are broadcast tables and the results of subqueries. A cached plan may contain them, and a DataFrame that was made from
an RDD may hide them. Spark's reports do not show which jobs computed them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from twopc.integration.spark.frame import Rows

#: Such data in a physical plan's text, or the end of a text that Spark has shortened.
_KEPT: Final = re.compile("Broadcast|Subquery|more characters")


def keeps_data(plans: Iterable[str]) -> bool:
    """Whether one of these physical plans, as text, may use such data."""
    return any(map(_KEPT.search, plans))


def uses_kept_data(execution: Any, batch: Sequence[Rows]) -> bool:
    """Whether a batch may use such data from before an attempt. Spark recomputes all other data in each attempt.

    Args:
        execution: Spark's plan for the batch (``IncrementalExecution``).
        batch: the DataFrames.
    """
    number = execution.toRdd().id()
    return _keeps_data(execution.executedPlan()) or any(_reads_kept_data(rows, number) for rows in batch)


def planned_ms(execution: Any) -> float:
    """Return when Spark began to plan the batch in this run, in milliseconds since 1970."""
    phases = execution.tracker().phases().values().iterator()
    return min(_each(phases), default=0.0)


def _keeps_data(plan: Any) -> bool:
    return keeps_data([str(plan.toString())])


def _each(phases: Any) -> Iterator[float]:
    while phases.hasNext():
        yield float(phases.next().startTimeMs())


def _reads_kept_data(rows: Rows, batch: int) -> bool:
    execution = rows.source._jdf.queryExecution()  # noqa: SLF001 - no public API returns the plan
    if rows.is_run_unchanged and _keeps_data(execution.executedPlan()):
        return True  # the user's program may have run this very DataFrame
    leaves = execution.withCachedData().collectLeaves()
    return any(_is_kept(leaves.apply(index), batch) for index in range(leaves.size()))


def _is_kept(leaf: Any, batch: int) -> bool:
    name = str(leaf.nodeName())
    if name == "InMemoryRelation":
        return _keeps_data(leaf.cacheBuilder().cachedPlan())
    return name == "LogicalRDD" and leaf.rdd().id() != batch
