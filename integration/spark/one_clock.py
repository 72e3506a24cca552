"""Let all DataFrames of a batch see the same clock.

Spark replaces ``current_timestamp()`` and similar expressions with a literal when it optimizes a DataFrame's plan.
Spark optimizes each plan just before running it, so the DataFrames would see different times. If the clock splits
a batch in two parts, a row between these times would be in both parts or in neither. Spark calls such expressions
deterministic.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from twopc.integration.spark.frame import Rows
    from twopc.integration.spark.state_reports import Tell

_CATALYST: Final = "org.apache.spark.sql.catalyst"
_RULE: Final = f"{_CATALYST}.optimizer.ComputeCurrentTime"
_UNION: Final = f"{_CATALYST}.plans.logical.Union"
#: The errors that a different version of Spark may cause; see ``twopc.integration.spark.stateful``.
_UNLIKE: Final = (Py4JError, TypeError, AttributeError)


def at_one_instant(batch: Sequence[Rows], tell: Tell) -> list[Rows]:
    """Replace the clock in the plans of a batch's DataFrames with the current time, which is the same for all of them.

    Evaluates nothing.

    Args:
        batch: the DataFrames.
        tell: reports that this version of Spark does not permit the replacement.
    """
    if len(batch) < 2:  # noqa: PLR2004 - a single DataFrame cannot disagree with itself
        return list(batch)
    try:
        return _at_one_instant(batch)
    except _UNLIKE as error:
        tell(
            "this version of Spark does not allow the toolkit to use the same clock for all DataFrames of a batch. If "
            "the DataFrames split a batch by current_timestamp(), now() or a similar function, a row may be in several "
            "DataFrames or in none. Such a row is duplicated or lost, and no later check reports it. Split the batch "
            "by a time that your function has computed once, such as sf.lit(datetime.now()), or use a Spark version "
            f"listed in the documentation. If no DataFrame uses the clock, no row is at risk. Cause: {error}"
        )
        return list(batch)


def _at_one_instant(batch: Sequence[Rows]) -> list[Rows]:
    session = batch[0].base.sparkSession
    jvm: Any = session._jvm  # noqa: SLF001 - no public API for plans
    # Spark finds cached rows by the plan that fills them, so the cached rows are inserted before the plan changes.
    plans = [rows.base._jdf.queryExecution().withCachedData() for rows in batch]  # noqa: SLF001 - no public API for plans
    # Within one application of the rule, Spark uses a single time for all plans.
    together = _named(jvm, _UNION)(jvm.PythonUtils.toSeq(plans), False, False)  # noqa: FBT003 - parameters of a Java constructor
    fixed = _named(jvm, _RULE).apply(together).children()
    pairs = zip(batch, plans, map(fixed.apply, range(len(plans))), strict=True)
    return [
        rows if after.fastEquals(before) else replace(rows, base=_frame(session, after, like=rows.base))
        for rows, before, after in pairs
    ]


def _frame(session: SparkSession, plan: Any, like: DataFrame) -> DataFrame:
    # Spark 4 moved the class to another package.
    dataset = _named(session._jvm, like._jdf.getClass().getName())  # noqa: SLF001 - see above
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)  # noqa: SLF001 - see above


def _named(jvm: Any, name: str) -> Any:
    return reduce(getattr, name.split("."), jvm)
