"""Find out whether a batch uses data that Spark computes in separate jobs and keeps outside the RDDs of the plan.

Such data are broadcast tables, the results of subqueries, and rows that the user's function has collected and given back to
Spark. A cached plan may contain them, and a DataFrame that was made from an RDD may hide them. Spark's reports do not show
which jobs computed them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from twopc.integration.spark.plan_text import is_cut_short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark import SparkContext

    from twopc.integration.spark.frame import Rows

#: Signs of kept data in a physical plan's text.
_KEPT: Final = re.compile("Broadcast|Subquery")


@dataclass(frozen=True)
class Unused:
    """Numbers that Spark had not used at a certain moment. Data with lower numbers are older than that moment.

    Attributes:
        rdd: the number of an RDD.
        column: the number of a column. The JVM numbers the columns of all plans in order.
    """

    rdd: int = 0
    column: int = 0

    def before(self, rdd: int) -> Unused:
        """Return numbers from before an RDD was created. If this object's numbers may be later, return the lowest numbers.

        The numbers of an earlier Spark context may seem to be from a later moment, because each context numbers its RDDs
        from 0.
        """
        return self if self.rdd < rdd else Unused()


def unused(context: SparkContext) -> Unused:
    """Return numbers that Spark has not used yet. Each call uses them up."""
    java: Any = context._jsc  # noqa: SLF001 - no public API returns these numbers
    jvm: Any = context._jvm  # noqa: SLF001 - see above
    columns = getattr(jvm.org.apache.spark.sql.catalyst.expressions, "NamedExpression$")
    return Unused(int(java.sc().newRddId()), int(getattr(columns, "MODULE$").newExprId().id()))


def keeps_data(plans: Iterable[str]) -> bool:
    """Whether one of these physical plans, as text, may use such data."""
    return any(is_cut_short(plan) or _KEPT.search(plan) for plan in plans)


def uses_kept_data(execution: Any, batch: Sequence[Rows], since: Unused) -> bool:
    """Whether a batch may use such data from before an attempt. Spark recomputes all other data in each attempt.

    Args:
        execution: Spark's plan for the batch (``IncrementalExecution``).
        batch: the DataFrames.
        since: numbers from any moment. Older data count only if Spark planned the batch before this moment.
    """
    number = execution.toRdd().id()
    earlier = since.before(number)
    return _keeps_data(execution.executedPlan()) or any(_reads_kept_data(rows, number, earlier) for rows in batch)


def planned_ms(execution: Any) -> float:
    """Return when Spark began to plan the batch in this run, in milliseconds since 1970."""
    phases = _each(execution.tracker().phases().values().iterator())
    return min((float(phase.startTimeMs()) for phase in phases), default=0.0)


def _keeps_data(plan: Any) -> bool:
    return keeps_data([str(plan.toString())])


def _each(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


def _reads_kept_data(rows: Rows, batch: int, since: Unused) -> bool:
    execution = rows.source._jdf.queryExecution()  # noqa: SLF001 - no public API returns the plan
    if rows.is_run_unchanged and _keeps_data(execution.executedPlan()):
        return True  # the user's program may have run this very DataFrame
    return _has_kept_leaf(execution.withCachedData(), batch, since)


def _has_kept_leaf(plan: Any, batch: int, since: Unused) -> bool:
    plans = (plan, *_each(plan.subqueriesAll().iterator()))
    leaves = (leaf for one in plans for leaf in _each(one.collectLeaves().iterator()))
    return any(_is_kept(leaf, batch, since) for leaf in leaves)


def _has_kept_leaf_below(cache: Any, batch: int, since: Unused) -> bool:
    try:
        plan = cache.logicalPlan()
    except Py4JJavaError:  # the method exists, so this error says nothing about the plan; the caller assumes the worst
        raise
    except Py4JError:
        return False  # Spark 3.5 does not keep the plan of a cache
    return _has_kept_leaf(plan, batch, since)


def _is_kept(leaf: Any, batch: int, since: Unused) -> bool:
    name = str(leaf.nodeName())
    if name == "InMemoryRelation":
        cache = leaf.cacheBuilder()
        return _keeps_data(cache.cachedPlan()) or _has_kept_leaf_below(cache, batch, since)
    if name == "LocalRelation":  # the plan itself contains the rows, as after createDataFrame() with Arrow
        return bool(leaf.output().head().exprId().id() >= since.column)
    return name == "LogicalRDD" and leaf.rdd().id() != batch and leaf.rdd().id() >= since.rdd
