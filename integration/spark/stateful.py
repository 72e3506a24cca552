"""Check that Spark has written all of a batch's state. The next batch cannot load the state if a partition is missing.

A stateful operator commits a state partition when the partition's last row has been read (``StateStoreWriter``
and its ``CompletionIterator`` in Spark's ``statefulOperators.scala``). So a plan skips partitions if it has a
``limit``, a filter that is always false or a join with an empty side, or if its DataFrame is not made from the batch
(SPARK-52008). Up to version 4.0, Spark accepts a batch with skipped partitions, and fails at every later start. Newer
versions fail once ``foreachBatch`` has returned.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import operator
import re
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from twopc.errors import ConfigurationError
from twopc.integration.spark.operators import operator_at
from twopc.integration.spark.plan_text import OMITTED, is_cut_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from twopc.integration.spark.operators import Operator
    from twopc.integration.spark.running import RunningQuery

    #: Reports a message at most once per run.
    Tell = Callable[[str], None]

logger = logging.getLogger(__name__)

#: The errors that a different version of Spark may cause: py4j treats a missing class as a package, and a missing plan is
#: None.
_UNLIKE: Final = (Py4JError, TypeError, ValueError, AttributeError)
#: The kind of plan node in which ``ForeachBatchSink`` passes the batch.
_BATCH: Final = "LogicalRDD"
#: The nodes that may compute a partition more than once. Range partitioning samples its input; a common table expression may be
#: copied.
_REPEATING: Final = re.compile(
    rf"Sort|Rebalance|WithCTE|CTERelation|RepartitionByExpression .*(\b(ASC|DESC)\b|{OMITTED})"
)
#: The nodes that may end before they have read all rows of a partition.
_CUTTING: Final = re.compile("Join|Limit")
#: The nodes of a physical plan whose partitions are the batch's partitions.
_ONE_TO_ONE: Final = frozenset({"Project", "Filter", "Scan"})
#: A node's name in the text of a plan.
_NODE: Final = re.compile(r"^[\s:+-]*(?:\*\s?\(\d+\)\s*)?'?((\w+).*)", re.MULTILINE)


#: Since Spark 4.0, this setting chooses how Spark names the state's files.
STATE_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
#: The last format in which a batch that is evaluated several times has the state of its last evaluation.
_LAST_FORMAT: Final = 1


class StatefulOperators:
    """Finds the stateful operators in a query's plan, during one run. A query without state is checked only once.

    Args:
        state_format: the value of :data:`STATE_FORMAT`.
    """

    def __init__(self, state_format: int = _LAST_FORMAT) -> None:
        self._state_format = state_format
        self._places: tuple[int, ...] | None = None
        self._tell: Tell = tell_once()

    def of_batch(self, query: RunningQuery, batch_id: int, *, has_state: Callable[[], bool]) -> BatchState | None:
        """Return the state that a batch writes, or None if the query is stateless.

        Args:
            query: the query that makes the call.
            batch_id: the batch.
            has_state: returns whether the checkpoint contains state; called only if Spark does not expose the plan.

        Raises:
            ConfigurationError: the query keeps state, and this version of Spark does not expose the plan, or the state's
                format does not fit a batch that is evaluated twice.
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
                "of the state is missing, the next batch cannot start. No part of this batch was written. Use a Spark "
                "version listed in the documentation"
            ) from error
        if operators and self._state_format > _LAST_FORMAT:
            raise _unfit_format(batch_id, self._state_format)
        return BatchState(batch_id, execution, operators, self._tell) if operators else None

    def _operators(self, plan: Any) -> list[Operator]:
        """Find the operators in a batch's plan. Search the whole plan only if the operators have moved."""
        found = {place: operator_at(plan.apply(place)) for place in self._places or ()}
        if self._places is None or None in found.values():
            nodes = iter(map(plan.apply, itertools.count()).__next__, None)
            found = {place: operator for place, node in enumerate(nodes) if (operator := operator_at(node)) is not None}
            self._places = tuple(found)
        return [operator for operator in found.values() if operator is not None]


def _unfit_format(batch_id: int, state_format: int) -> ConfigurationError:
    return ConfigurationError(
        f"batch {batch_id} belongs to a query that keeps state, and {STATE_FORMAT} is {state_format}. If a batch is evaluated "
        "twice in this format, Spark keeps the state of the first evaluation, but the rows come from the last one. Then the "
        f"state may not match the rows. This run has not written any part of the batch. Set {STATE_FORMAT} to 1, and restart the "
        "query. If Spark cannot read the checkpoint's state with this setting, use a new checkpoint that begins at the "
        "offsets after the last visible batch (see docs/migration.md). Otherwise, rows may be written twice"
    )


class BatchState:
    """The state that one batch writes, during one call by the user's function.

    A function that catches an error may call again with other rows. Then nothing has checked the shuffles of the first call.

    Args:
        batch_id: the batch.
        execution: Spark's plan for the batch (``IncrementalExecution``).
        operators: one or more stateful operators.
        tell: reports that the batch is evaluated a second time, only to write state.
    """

    def __init__(self, batch_id: int, execution: Any, operators: Sequence[Operator], tell: Tell) -> None:
        self._batch_id = batch_id
        self._execution = execution
        self._operators = operators
        self._tell = tell
        self._is_whole = False
        self._shown_at: list[int] | None = None  # what the operators had committed when a job showed the whole state
        self._is_cut_short = False  # whether a job over the sinks' rows has failed

    def begin(self) -> None:
        """See :class:`~twopc.integration.spark.mode.StateCheck`."""
        self._is_whole = False

    @contextlib.contextmanager
    def watching(self, frame: DataFrame) -> Iterator[None]:
        """Check whether the body, which runs one job over a DataFrame, writes the state.

        The body writes the state if its job commits every store and computes no partition twice.
        """
        if self._is_whole:
            yield
            return
        before = self._committed()
        try:
            yield
        except BaseException:
            self._is_cut_short = True
            raise
        after = self._committed()
        self._is_whole = (self._is_all(before, after) and self._is_taken_once(frame)) or self._is_in_cache(after, frame)
        if self._is_whole:
            self._shown_at = after

    def complete(self, *, is_visible: bool = False) -> bool:
        """See :class:`~twopc.integration.spark.mode.StateCheck`. Evaluates the batch as Spark has planned it."""
        # If no operator has run since, the rows come from a cache or a shuffle that the same evaluation has filled. Rule 6 checks
        # such rows in every attempt, and no attempt follows if they are mixed. A new evaluation could give a different state.
        self._is_whole = self._is_whole or self._shown_at == self._committed()
        if self._is_whole:
            return False
        self._tell(
            f"the sinks' rows do not show that Spark has evaluated all of batch {self._batch_id}. Either the rows are "
            "only a part of the batch, or the batch had already been evaluated. Therefore, Spark evaluates the batch a "
            "second time, without output, to write the query's state. No row is lost or duplicated. But if the state "
            "depends on values that change, such as uuid(), the clock or the order of rows, the state may not match "
            "the written rows. To avoid this, either pass the batch itself to exactly_once(), or persist and count the "
            "batch before you take a part of it. This run logs this warning only once"
        )
        before, after = self._evaluated()
        missing = self._missing(before, after)
        if missing and missing.isdisjoint(self._missing(before, before)):
            # Earlier jobs had committed enough stores. If an executor was lost, Spark may have run only the tasks whose shuffle
            # files were lost. Then all of the shuffle exists now, and a new evaluation does not run its stage. Rule 6 judges
            # whether rows were mixed.
            missing = self._missing(*self._evaluated())
        if missing:
            raise incomplete(
                self._batch_id,
                f"{', '.join(self._operators[one].name for one in sorted(missing))} has not written all of its state",
                "The query's plan does not read all of this operator's rows",
                is_visible=is_visible,
                is_cut_short=self._is_cut_short,
            )
        self._is_whole = True
        return True

    def _evaluated(self) -> tuple[list[int], list[int]]:
        """Evaluate the batch. Return what the operators had committed before and after."""
        before = self._committed()
        self._execution.toRdd().count()
        return before, self._committed()

    def _committed(self) -> list[int]:
        return [one.committed() for one in self._operators]

    def _missing(self, before: Sequence[int], after: Sequence[int]) -> set[int]:
        """Return the positions of the operators for which one evaluation did not commit every store.

        Several jobs that skip the same partitions may together commit as many stores as one complete job. So earlier jobs count
        only for an operator whose stage the evaluation skipped.
        """
        counts = enumerate(zip(self._operators, before, after, strict=True))
        return {number for number, (one, old, new) in counts if one.stores > (old if old == new else new - old)}

    def _is_all(self, before: Sequence[int], after: Sequence[int]) -> bool:
        """Whether every store was committed, by the job itself or in a skipped stage whose shuffle was complete."""
        counts = list(zip(self._operators, before, after, strict=True))
        ran = [new - old == one.stores for one, old, new in counts]
        skipped = [one.stores <= old == new for one, old, new in counts]
        return any(ran) and all(map(operator.or_, ran, skipped))

    def _is_taken_once(self, frame: DataFrame) -> bool:
        """Whether a DataFrame contains the batch exactly once, and computes no partition of the batch twice."""
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public API returns the plan
        text = str(plan.toString())
        nodes = _NODE.findall(text)
        is_repeated = [name for _, name in nodes].count(_BATCH) != 1 or any(_REPEATING.match(line) for line, _ in nodes)
        if is_repeated or is_cut_short(text):
            return False
        leaves, batch = plan.collectLeaves(), self._execution.toRdd().id()
        found = map(leaves.apply, range(leaves.size()))
        return any(leaf.nodeName() == _BATCH and leaf.rdd().id() == batch for leaf in found)

    def _is_in_cache(self, committed: Sequence[int], frame: DataFrame) -> bool:
        """Whether a DataFrame's only input is the cached batch, and Spark has evaluated the batch only to fill this cache.

        Spark has evaluated each partition at least once, because all of them are cached. It has evaluated none of them twice,
        because the tasks have committed no more stores than the operators have.
        """
        if committed != [one.stores for one in self._operators]:
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


def incomplete(
    batch_id: int, missing: str, cause: str, *, is_visible: bool, is_cut_short: bool = False
) -> ConfigurationError:
    """Return the error for a batch that Spark has evaluated without writing all of its state.

    ``is_cut_short`` says whether a job has failed. The tasks of this job then hide whether the plan skips partitions.
    """
    risk = (
        "The rows of this batch are visible, and no restart writes them again"
        if is_visible
        else "No part of this batch is decided or visible"
    )
    return ConfigurationError(
        f"Spark has evaluated all rows of batch {batch_id}, but {missing}, so the next batch cannot start. {risk}. "
        + (
            "A job over the sinks' rows failed partway, and some of its tasks may have written state. So the toolkit "
            "cannot tell whether the state is "
            "complete. The log shows the cause of that failure. Remove this cause, and restart"
            if is_cut_short
            else f"{cause}, for example because of a join with an empty table. Move that part of the plan into the foreachBatch "
            "function, and restart"
        )
    )


def tell_once() -> Tell:
    """Return a function that logs only the first text that it receives."""
    told: list[str] = []

    def tell(text: str) -> None:
        if not told:
            logger.warning(text)
            told.append(text)

    return tell
