"""Check that Spark has written all of a batch's state. The next batch cannot load the state if a partition is missing.

A stateful operator commits a state partition when the partition's last row has been read (``StateStoreWriter``
and its ``CompletionIterator`` in Spark's ``statefulOperators.scala``). So a plan skips partitions if it has a ``limit``, a filter
that is always false or a join with an empty side. A plan also skips partitions if its DataFrame is not made from the batch. See
SPARK-52008. Up to version 4.0, Spark accepts a batch with skipped partitions, and fails at every later start. Newer versions fail
once ``foreachBatch`` has returned.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from twopc.errors import ConfigurationError
from twopc.integration.spark.operators import Commits, operator_at
from twopc.integration.spark.plan_text import OMITTED, is_cut_short
from twopc.integration.spark.state_reports import LAST_FORMAT, StateWarnings, incomplete, unclear, unfit_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from twopc.integration.spark.operators import Operator
    from twopc.integration.spark.running import RunningQuery

#: The errors that a different version of Spark may cause: py4j treats a missing class as a package, and a missing plan is
#: None.
_UNLIKE: Final = (Py4JError, TypeError, ValueError, AttributeError)
#: The kind of plan node in which ``ForeachBatchSink`` passes the batch.
_BATCH: Final = "LogicalRDD"
#: If a plan contains one of these nodes, the number of commits proves nothing. Range partitioning samples its input, and a common
#: table expression may be copied, so Spark may compute a partition more than once. A limit skips partitions. If an executor is
#: lost, or the plan has a Cartesian product (which no name in the plan shows), Spark may compute another partition twice. The
#: additional commits then hide the skipped partition.
_UNCOUNTED: Final = re.compile(
    rf"Sort|Rebalance|WithCTE|CTERelation|GlobalLimit|LocalLimit|Offset|Tail|"
    rf"RepartitionByExpression .*(\b(ASC|DESC)\b|{OMITTED})"
)
#: The nodes that may end before they have read all rows of a partition.
_CUTTING: Final = re.compile("Join|Limit")
#: The nodes of a physical plan whose partitions are the batch's partitions.
_ONE_TO_ONE: Final = frozenset({"Project", "Filter", "Scan"})
#: A node's name in the text of a plan.
_NODE: Final = re.compile(r"^[\s:+-]*(?:\*\s?\(\d+\)\s*)?'?((\w+).*)", re.MULTILINE)


class StatefulOperators:
    """Finds the stateful operators in a query's plan, during one run. A query without state is checked only once.

    Args:
        state_format: the value of :data:`STATE_FORMAT`.
    """

    def __init__(self, state_format: int = LAST_FORMAT) -> None:
        self._state_format = state_format
        self._places: tuple[int, ...] | None = None
        self._warnings = StateWarnings()
        self._last: Commits | None = None

    def of_batch(self, query: RunningQuery, batch_id: int, *, has_state: Callable[[], bool]) -> BatchState | None:
        """Return the state that a batch writes, or None if the query is stateless.

        Args:
            query: the query that makes the call.
            batch_id: the batch.
            has_state: returns whether the checkpoint contains state; called only if Spark does not expose the plan.

        Raises:
            ConfigurationError: the query keeps state, and this version of Spark does not expose the plan.
            ConfigurationError: the query keeps state in a format that does not fit a batch that is evaluated twice.
        """
        if self._places == ():
            return None
        try:
            execution = query.execution
            operators = self._operators(execution.executedPlan())
        except _UNLIKE as error:
            if not has_state():
                return None
            raise ConfigurationError(
                f"batch {batch_id} belongs to a query that keeps state, and this version of Spark does not show the "
                f"query's plan ({error}). So the toolkit cannot check whether Spark writes all of the state. If part "
                "of the state is missing, the next batch cannot start. This run has not written any part of the batch. Use a "
                "Spark version listed in the documentation"
            ) from error
        if operators and self._state_format > LAST_FORMAT:
            raise unfit_format(batch_id, self._state_format)
        self._look_back(batch_id)
        if not operators:
            return None
        self._last = commits = Commits(batch_id, operators)
        return BatchState(execution, commits, self._warnings)

    def _look_back(self, batch_id: int) -> None:
        """Warn if Spark has evaluated the previous batch again after that batch's call. Only the next call can see this."""
        last, self._last = self._last, None
        if last is not None and last.batch_id != batch_id and last.have_grown:
            self._warnings.evaluated_later(last.batch_id)

    def _operators(self, plan: Any) -> list[Operator]:
        """Find the operators in a batch's plan. Search the whole plan only if the operators have moved."""
        found = {place: operator_at(plan.apply(place)) for place in self._places or ()}
        if self._places is None or None in found.values():
            nodes = iter(map(plan.apply, itertools.count()).__next__, None)
            found = {place: operator for place, node in enumerate(nodes) if (operator := operator_at(node)) is not None}
            self._places = tuple(found)
        return [operator for operator in found.values() if operator is not None]


class BatchState:
    """The state that one batch writes, during one call by the user's function.

    A function that catches an error may call again with other rows. Then nothing has checked the shuffles of the first call.

    Args:
        execution: Spark's plan for the batch (``IncrementalExecution``).
        commits: counts what the batch's operators commit.
        warnings: reports evaluations after which the state may not match the rows.
    """

    def __init__(self, execution: Any, commits: Commits, warnings: StateWarnings) -> None:
        self._batch_id = commits.batch_id
        self._execution = execution
        self._commits = commits
        self._warnings = warnings
        self._is_whole = False
        self._shown_at: list[int] | None = None  # what the operators had committed when a job showed the whole state
        # What the job that computed a DataFrame's rows has committed, by the DataFrame's identity.
        self._by_frame: dict[int, list[int]] = {}

    def begin(self) -> None:
        """See :class:`~twopc.integration.spark.mode.StateCheck`."""
        self._is_whole = False
        self._by_frame.clear()

    @contextlib.contextmanager
    def watching(self, frame: DataFrame) -> Iterator[None]:
        """Check whether the body, which runs one job over a DataFrame, writes the state.

        The body writes the state if its job commits every store and computes no partition twice.
        """
        before = self._commits.now()
        try:
            yield
        finally:  # a replay continues after a job that failed, and the job may have written a part of the state
            after = self._commits.now()
            # If the driver cannot collect a DataFrame, a second job replaces the rows of the first job.
            self._by_frame[id(frame)] = list(map(operator.sub, after, before))
        if self._is_whole:
            return
        self._is_whole = (self._is_all(before, after) and self._is_taken_once(frame)) or self._is_in_cache(after, frame)
        if self._is_whole:
            self._shown_at = after

    def complete(self, *, is_visible: bool = False) -> bool:
        """See :class:`~twopc.integration.spark.mode.StateCheck`. Evaluates the batch as Spark has planned it."""
        if self._is_whole:
            self._tell_if_repeated()
            self._commits.check()
            return False
        # If no operator has run since, the rows come from a cache or a shuffle that the same evaluation has filled. Rule 6 checks
        # such rows in every attempt, and no attempt follows if they are mixed. A new evaluation could give a different state.
        self._is_whole = self._shown_at == self._commits.now()
        if self._is_whole:
            self._commits.check()
            return False
        self._warnings.evaluated_for_state(self._batch_id)
        before, after = self._evaluated()
        if missing := self._missing(before, after):
            self._evaluate_missing(missing, self._missing(before, before), is_visible=is_visible)
        self._is_whole = True
        self._commits.check()
        return True

    def _tell_if_repeated(self) -> None:
        """Warn if the jobs over this attempt's DataFrames have committed more stores than one evaluation of the batch."""
        totals = [sum(counts) for counts in zip(*self._by_frame.values(), strict=True)]
        if any(total > one.stores for total, one in zip(totals, self._commits.operators, strict=False)):
            self._warnings.evaluated_by_several(self._batch_id)

    def _evaluate_missing(self, missing: set[int], missing_before: set[int], *, is_visible: bool) -> None:
        """Evaluate the batch once more before the plan is blamed.

        If Spark now skips a stage, because its shuffle exists, the previous evaluation completed a stage that earlier jobs had
        run in part.

        Args:
            missing: the operators for which the previous evaluation did not commit every store.
            missing_before: the operators for which the earlier jobs had not committed enough stores.
            is_visible: see :meth:`complete`.

        Raises:
            ConfigurationError: a part of the state is missing, or may be missing.
        """
        before, after = self._evaluated()
        if skipped := missing & self._missing(before, after):
            raise incomplete(
                self._batch_id,
                f"{self._names(skipped)} has not written all of its state",
                "The query's plan does not read all of this operator's rows",
                is_visible=is_visible,
            )
        # If the earlier jobs had committed enough stores, an executor was lost, and the stage ran again in part. Rule 6 judges
        # whether rows were mixed. In all other cases, tasks that skip the same rows may have added up to the number of stores.
        if missing & missing_before:
            raise unclear(self._batch_id, self._names(missing & missing_before), is_visible=is_visible)

    def _names(self, positions: set[int]) -> str:
        return ", ".join(self._commits.operators[one].name for one in sorted(positions))

    def _evaluated(self) -> tuple[list[int], list[int]]:
        """Evaluate the batch. Return what the operators had committed before and after."""
        before = self._commits.now()
        self._execution.toRdd().count()
        return before, self._commits.now()

    def _missing(self, before: Sequence[int], after: Sequence[int]) -> set[int]:
        """Return the positions of the operators for which one evaluation did not commit every store.

        Several jobs that skip the same partitions may together commit as many stores as one complete job. So earlier jobs count
        only for an operator whose stage the evaluation skipped.
        """
        counts = enumerate(zip(self._commits.operators, before, after, strict=True))
        return {number for number, (one, old, new) in counts if one.stores > (old if old == new else new - old)}

    def _is_all(self, before: Sequence[int], after: Sequence[int]) -> bool:
        """Whether every store was committed, by the job itself or in a skipped stage whose shuffle was complete."""
        counts = list(zip(self._commits.operators, before, after, strict=True))
        ran = [new - old == one.stores for one, old, new in counts]
        skipped = [one.stores <= old == new for one, old, new in counts]
        return any(ran) and all(map(operator.or_, ran, skipped))

    def _is_taken_once(self, frame: DataFrame) -> bool:
        """Whether a DataFrame contains the batch exactly once, and computes no partition of the batch twice."""
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public API returns the plan
        text = str(plan.toString())
        nodes = _NODE.findall(text)
        is_uncounted = [name for _, name in nodes].count(_BATCH) != 1 or any(
            _UNCOUNTED.match(line) for line, _ in nodes
        )
        if is_uncounted or is_cut_short(text):
            return False
        leaves, batch = plan.collectLeaves(), self._execution.toRdd().id()
        found = map(leaves.apply, range(leaves.size()))
        return any(leaf.nodeName() == _BATCH and leaf.rdd().id() == batch for leaf in found)

    def _is_in_cache(self, committed: Sequence[int], frame: DataFrame) -> bool:
        """Whether a DataFrame's only input is the cached batch, and Spark has evaluated the batch only to fill this cache.

        Spark has evaluated each partition at least once, because all of them are cached. It has evaluated none of them twice,
        because the tasks have committed no more stores than the operators have.
        """
        if committed != [one.stores for one in self._commits.operators]:
            return False
        leaves = frame._jdf.queryExecution().withCachedData().collectLeaves()  # noqa: SLF001 - see `_is_taken_once`
        if leaves.size() != 1 or leaves.apply(0).nodeName() != "InMemoryRelation":
            return False
        cache = leaves.apply(0).cacheBuilder()
        nodes = [name for _, name in _NODE.findall(str(cache.cachedPlan().toString()))]
        if not _ONE_TO_ONE.issuperset(nodes) or nodes.count("Scan") != 1:
            return False
        source = cache.cachedPlan().collectLeaves().apply(0)
        if source.nodeName() != "Scan ExistingRDD" or source.rdd().id() != self._execution.toRdd().id():
            return False
        text = str(self._execution.executedPlan())
        may_end_early = is_cut_short(text) or bool(_CUTTING.search(text))
        return bool(cache.isCachedColumnBuffersLoaded()) and not may_end_early
