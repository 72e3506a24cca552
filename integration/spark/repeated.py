"""Warn if a batch's DataFrames may disagree. Spark evaluates each DataFrame separately, and a DataFrame may be non-deterministic.

If ``rand()`` or an ``asNondeterministic()`` function splits a batch in two, a row may be in both parts or in neither part.
The check only warns, because Spark also marks harmless expressions as non-deterministic: stable functions
(``monotonically_increasing_id()``) and random ids within one part.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from twopc.integration.spark.overwritten import running_query

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.integration.spark.several import SinkFrame

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS: Final = 200
#: The number of columns that Spark shows for a part of a plan.
_SHOWN_COLUMNS: Final = 8


class Repeated:
    """Checks the DataFrames of one run of a query.

    Each set of DataFrames is examined once, because an examination takes several calls to the JVM.
    """

    def __init__(self) -> None:
        self._looked_at: set[tuple[str, ...]] = set()

    def look(self, frames: Sequence[SinkFrame], query_id: str, batch_id: int) -> None:
        """Warn about DataFrames that may disagree. Evaluates nothing."""
        names = tuple(one.name for one in frames)
        if len(names) < 2 or names in self._looked_at:  # noqa: PLR2004 - a single DataFrame cannot disagree
            return
        self._looked_at.add(names)
        try:
            causes = _causes(frames, query_id)
        except Py4JError as error:
            logger.debug("this version of Spark does not report whether DataFrames are deterministic. Cause: %s", error)
            return
        if len(causes) > 1:
            logger.warning(
                "batch %d: Spark reports that the DataFrames for %s are not deterministic (%s), and Spark evaluates each "
                "DataFrame separately. If the DataFrames split the batch, a row may be in several DataFrames or in none. "
                "That row is duplicated or lost, and no later check will report it. Split parent.localCheckpoint() instead of "
                "their common parent, or split on columns that have the same values each time. persist() is not enough, "
                "because Spark computes cached rows again if it has lost them. If the DataFrames share no random value, no "
                "row is at risk",
                batch_id,
                " and ".join(map(repr, causes)),
                next(iter(causes.values()))[:_SHOWN_CHARACTERS],
            )


def _causes(frames: Sequence[SinkFrame], query_id: str) -> dict[str, str]:
    """Return the names of the non-deterministic expressions in the DataFrames' plans, or in the query that leads to them."""
    # The plan before Spark puts in cached data, because Spark may lose the cached rows and compute other rows.
    plans: dict[str, Any] = {
        one.name: one.frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way to the plan
        for one in frames
    }
    causes = {name: _shown(_source(plan)) for name, plan in plans.items() if not plan.deterministic()}
    if len(causes) < len(plans):
        query = running_query(frames[0].frame.sparkSession, query_id)
        before = None if query is None else query.lastExecution().analyzed()
        if before is not None and not before.deterministic():
            cause = _shown(_source(before))
            causes |= {name: cause for name, plan in plans.items() if name not in causes and _evaluates_query(plan)}
    return causes


def _source(plan: Any) -> Any:
    """Return the part of a plan that is itself non-deterministic."""
    return next((_source(child) for child in _each(plan.children()) if not child.deterministic()), plan)


def _evaluates_query(plan: Any) -> bool:
    """Whether a plan reads the batch from the query, and not from a checkpoint."""
    return any(
        leaf.nodeName().endswith("RDD") and not leaf.rdd().isCheckpointed() for leaf in _each(plan.collectLeaves())
    )


def _shown(plan: Any) -> str:
    return str(plan.simpleString(_SHOWN_COLUMNS))


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
