"""Warn if a batch's DataFrames may disagree.

Spark evaluates each DataFrame separately, and a DataFrame may be non-deterministic.

If ``rand()`` or an ``asNondeterministic()`` function splits a batch in two, a row may be in both parts or in neither part.
The check only warns, because Spark also marks harmless expressions as non-deterministic: stable functions
(``monotonically_increasing_id()``) and random ids within one part.

Spark considers a plan deterministic even if it reads a table again or depends on the order of rows, such as
``row_number()`` among equal rows. The check also warns about such plans. It cannot tell whether the table changes, or
whether rows are equal.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from twopc.integration.spark.overwritten import running_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from twopc.integration.spark.several import SinkFrame

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS: Final = 200
#: The number of columns that Spark shows for a part of a plan.
_SHOWN_COLUMNS: Final = 8
_ALL_COLUMNS: Final = 10_000
#: The leaves of a plan that produce the same rows each time, or that :func:`_causes` examines separately: the batch,
#: checkpointed and cached rows, and rows that the plan itself contains.
_FIXED: Final = re.compile(r"RDD$|^(InMemoryRelation|LocalRelation|Range|OneRowRelation|CommandResult)$")
#: The leaves whose rows the plan itself contains. A plan with a reference to a common table expression also contains the
#: expression's definition.
_ROWS: Final = frozenset({"LocalRelation", "Range", "OneRowRelation", "CommandResult", "CTERelationRef"})
#: The nodes whose rows depend on the order of their input.
_ORDERED: Final = frozenset({"Window", "GlobalLimit", "Offset", "Tail", "Sample"})
#: The nodes that keep the first of several rows with equal keys.
_DEDUPLICATING: Final = frozenset({"Deduplicate", "DeduplicateWithinWatermark"})
#: The numbers that differ from batch to batch (ids of columns, and seeds, which may be negative). A limit of 0 differs from any
#: other limit.
_NUMBER: Final = re.compile(r"#\d+|-?\d*[1-9]\d*")
#: The maximum number of examinations for the same sinks in one run. Each batch may have a new form, for example because a plan
#: contains a random text. The documentation names this number.
_MOST_FORMS: Final = 32
#: Spark calls these aggregates deterministic, but the order of rows decides between equal candidates.
_TIES: Final = re.compile(r"\b(max_by|min_by|mode)\(")


class Repeated:
    """Checks the DataFrames of one run of a query.

    An examination takes many calls to the JVM, so batches whose DataFrames have the same form are examined only once. A function
    may write to the same sinks in another way later, for example because its first batches were empty.
    """

    def __init__(self) -> None:
        self._forms: dict[tuple[str, ...], set[int]] = {}
        self._told: set[tuple[str, tuple[str, ...]]] = set()
        self._spark_shows_forms = True

    def look(self, frames: Sequence[SinkFrame], query_id: str, batch_id: int) -> None:
        """Warn about DataFrames that may disagree. Evaluates nothing."""
        if len(frames) < 2 or not self._spark_shows_forms:  # noqa: PLR2004 - a single DataFrame cannot disagree with itself
            return
        try:
            if not self._is_new(frames):
                return
            random, unstable = _causes(frames, query_id)
        except Py4JError as error:
            logger.debug("this version of Spark does not report whether DataFrames are deterministic. Cause: %s", error)
            return
        if len(random) > 1 and self._is_first("random", frames):
            logger.warning(
                "batch %d: Spark reports that the DataFrames for %s are not deterministic (%s), and Spark evaluates "
                "each DataFrame separately. If each DataFrame is a part of the batch, a row may be in several "
                "DataFrames or in none. Such a row is duplicated or lost, and no later check will report it. Call "
                "localCheckpoint() on the DataFrames' common parent and split the result, or split on columns whose "
                "values are the same in every evaluation. persist() is not enough, because Spark recomputes cached "
                "rows that it has lost. If no random value decides which DataFrame a row belongs to, no row is at risk",
                batch_id,
                *_shown_causes(random),
            )
        elif len(unstable) > 1 and self._is_first("unstable", frames):
            logger.warning(
                "batch %d: the DataFrames for %s may see different rows (%s). Spark evaluates each DataFrame "
                "separately: it reads a table again for each of them, and rows with equal sort keys may come in a "
                "different order each time. If a row's DataFrame depends on the table or on that order, a row may be in "
                "several DataFrames or in none. Such a row is duplicated or lost, and no later check will report it. Call "
                "localCheckpoint() on the DataFrames' common parent and split the result, or sort by columns whose values "
                "are unique. If the table does not change and no two rows have equal sort keys, no row is at risk",
                batch_id,
                *_shown_causes(unstable),
            )

    def _is_new(self, frames: Sequence[SinkFrame]) -> bool:
        """Whether no earlier batch had DataFrames of this form for these sinks."""
        forms = self._forms.setdefault(_names(frames), set())
        if len(forms) >= _MOST_FORMS:
            return False
        try:
            form, known = hash(tuple(_form(one.frame) for one in frames)), len(forms)
        except Py4JError as error:
            # If this version of Spark lacks a method, no later batch calls it. An exception in Java concerns only one plan.
            self._spark_shows_forms = isinstance(error, Py4JJavaError)
            raise
        forms.add(form)
        if known < len(forms) == _MOST_FORMS:
            names = " and ".join(map(repr, _names(frames)))
            logger.debug(
                "the DataFrames for %s have had %d different forms in this run. The run does not check whether the DataFrames of "
                "any later form may disagree",
                names,
                _MOST_FORMS,
            )
        return len(forms) > known

    def _is_first(self, kind: str, frames: Sequence[SinkFrame]) -> bool:
        """Whether this run has not yet logged this kind of warning about these sinks. Records the warning as logged."""
        warning = kind, _names(frames)
        is_first = warning not in self._told
        self._told.add(warning)
        return is_first


def _names(frames: Sequence[SinkFrame]) -> tuple[str, ...]:
    return tuple(one.name for one in frames)


def _form(frame: DataFrame) -> tuple[Any, ...]:
    """Return what decides an examination's result, apart from the query, which is the same for all batches of a run."""
    execution: Any = frame._jdf.queryExecution()  # noqa: SLF001 - no public API returns plans
    plan = execution.analyzed()
    # The text of a plan neither contains all columns, nor shows whether an RDD is a checkpoint.
    checkpoints = [_is_checkpoint(leaf) for leaf in _each(plan.collectLeaves())]
    return _NUMBER.sub("", str(execution.withCachedData().toString())), bool(plan.deterministic()), *checkpoints


def _shown_causes(causes: Mapping[str, str]) -> tuple[str, str]:
    return " and ".join(map(repr, causes)), next(iter(causes.values()))[:_SHOWN_CHARACTERS]


def _causes(frames: Sequence[SinkFrame], query_id: str) -> tuple[dict[str, str], dict[str, str]]:
    """Find what is not deterministic, and what may change, in each DataFrame's plan or in the query that leads to it."""
    executions = {one.name: one.frame._jdf.queryExecution() for one in frames}  # noqa: SLF001 - no public API returns plans
    query = running_query(frames[0].frame.sparkSession, query_id)
    before = None if query is None else query.lastExecution().analyzed()
    # Use the plan before Spark inserts cached data, because Spark may lose the cached rows and compute different rows.
    random = _by_frame({name: one.analyzed() for name, one in executions.items()}, before, _random)
    # Tables and the order of rows change less often than random values, so here a cache is enough.
    return random, _by_frame({name: one.withCachedData() for name, one in executions.items()}, before, _unstable)


def _by_frame(plans: Mapping[str, Any], before: Any, cause_in: Callable[[Any], str | None]) -> dict[str, str]:
    causes = {name: cause for name, plan in plans.items() if (cause := cause_in(plan)) is not None}
    if before is not None and len(causes) < len(plans) and (cause := cause_in(before)) is not None:
        causes |= {name: cause for name, plan in plans.items() if name not in causes and _evaluates_query(plan)}
    return causes


def _random(plan: Any) -> str | None:
    return None if plan.deterministic() else _shown(_source(plan))


def _source(plan: Any) -> Any:
    """Return the part of a plan that is itself non-deterministic."""
    return next((_source(child) for child in _each(plan.children()) if not child.deterministic()), plan)


def _unstable(plan: Any) -> str | None:
    """Return the first part of a plan that may produce different rows if Spark evaluates it again."""
    nodes = (node for one in (plan, *_each(plan.subqueriesAll())) for node in _nodes(one))
    return next((_shown(node) for node in nodes if _may_change(node)), None)


def other_data(frame: DataFrame, batch: int) -> str | None:
    """See :class:`~twopc.integration.spark.mode.Mode`.

    Args:
        frame: the DataFrame.
        batch: the number of the batch's RDD.

    Raises:
        Py4JError: this version of Spark does not show the plan.
    """
    # Use the plan before Spark inserts cached data, because Spark may have to compute cached rows again.
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public API returns plans
    leaves = (leaf for one in (plan, *_each(plan.subqueriesAll())) for leaf in _each(one.collectLeaves()))
    return next((_shown(leaf) for leaf in leaves if not _is_fixed(leaf, batch)), None)


def _is_fixed(leaf: Any, batch: int) -> bool:
    name = str(leaf.nodeName())
    if name == "LogicalRDD":  # an RDD may read a file again, too
        return bool(leaf.rdd().id() == batch or leaf.rdd().isCheckpointed())
    return name in _ROWS


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _may_change(node: Any) -> bool:
    name = str(node.nodeName())
    if node.children().isEmpty():
        return not node.isStreaming() and not _FIXED.search(name)
    if name in _DEDUPLICATING:  # a comparison of all columns drops only identical rows
        return bool(node.keys().size() < node.output().size())
    if name == "Aggregate":
        return _TIES.search(str(node.simpleString(_ALL_COLUMNS))) is not None
    return name in _ORDERED and str(node.maxRows()) != "Some(0)"


def _evaluates_query(plan: Any) -> bool:
    """Whether a plan reads the batch from the query, and not from a checkpoint."""
    return any(_is_checkpoint(leaf) is False for leaf in _each(plan.collectLeaves()))


def _is_checkpoint(leaf: Any) -> bool | None:
    """Whether a leaf of a plan is a checkpoint; None if the leaf is not an RDD."""
    return bool(leaf.rdd().isCheckpointed()) if leaf.nodeName().endswith("RDD") else None


def _shown(plan: Any) -> str:
    return str(plan.simpleString(_SHOWN_COLUMNS))


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
