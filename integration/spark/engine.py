"""Implement the coordinator's engine for a batch's DataFrames.

Spark runs the tasks, and the driver collects their reports.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.types import BinaryType, StructField, StructType

from twopc.engine import Publish, Repair
from twopc.errors import CheckpointExpiredError, TwoPhaseCommitError
from twopc.integration.spark.collect import collect
from twopc.integration.spark.installed import HERE
from twopc.integration.spark.jobs import cancelled_after, named_error, translated
from twopc.integration.spark.task import PrepareTask, TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from twopc.engine import Work
    from twopc.integration.spark.budget import Budget
    from twopc.integration.spark.direct import Way
    from twopc.integration.spark.frame import Rows
    from twopc.integration.spark.kept import Runs
    from twopc.integration.spark.mode import ShuffleCheck, StateCheck, WriterLimit
    from twopc.integration.spark.staging import Staging
    from twopc.integration.spark.state_reports import Tell
    from twopc.pending import Pending
    from twopc.records import TaskReport
    from twopc.sink import TwoPhaseCommitSink

logger = logging.getLogger(__name__)

#: A schema object, because Spark's JVM would parse the text ``result binary`` again for every batch.
_RESULT: Final = StructType([StructField("result", BinaryType())])
_SETTING: Final = "CheckpointConfig.timeout_ms"
_EXPIRY: Final = "kafka.transaction.timeout.ms and the brokers' transaction.max.timeout.ms"

_SORTED: Final = (
    "The DataFrame is sorted, or it reads a checkpoint or an RDD, which may be sorted. {ordered} must receive the rows in the "
    "order of the sort, so each partition of the DataFrame has its own task. No data is at risk. To use fewer tasks, sort the "
    "DataFrame into fewer partitions: repartitionByRange({most}, …).sortWithinPartitions(…). If only the order within a key "
    "matters, use repartition({most}, key).sortWithinPartitions(…)"
)
_TASK_CODE: Final = (
    "A Python function in the plan of the DataFrame or of the query may use TaskContext, or runs in barrier mode. If a task "
    "received several partitions of the plan, partitionId() would be the same for all of them. So each partition has its own "
    "task. No data is at risk. To use fewer tasks, pass the column spark_partition_id() to the function instead. The toolkit "
    "looks for the words TaskContext and partitionId in the function and in the modules that the function uses"
)


@dataclass(frozen=True)
class _Limit:
    """Limits the time that an attempt may take to prepare.

    Attributes:
        timeout_ms: the limit; None for no limit.
        setting: the setting that changes the limit.
        ends_at: when the time is up, in seconds on the monotonic clock.
    """

    timeout_ms: float | None = None
    setting: str = ""
    ends_at: float = math.inf


@dataclass(frozen=True, kw_only=True)
class SparkEngine:
    """See :class:`twopc.engine.Engine`.

    Attributes:
        batch: the batch's DataFrames.
        sinks: all sinks of the query, including those that receive nothing from this batch.
        runs: this run of the query, and the driver's other runs.
        shuffles: the shuffles of this run.
        slots: the cluster's task slots.
        staging: where the tasks stage their rows; None if they stage no rows.
        way: chooses whether the driver or the tasks write a DataFrame.
        budget: limits the tasks to the amount that the driver may collect.
        timeout_ms: the limit for an attempt, if the user has set a limit.
        max_writers: the maximum number of tasks that write a DataFrame, if the user has set a maximum.
        may_be_sorted: returns whether the order of a DataFrame's partitions may matter.
        depends_on_task: returns whether code in a DataFrame's plan may depend on the task in which it runs.
        tell: reports that more tasks than the limit allows have written a DataFrame.
        kept_since_ms: see :meth:`~twopc.integration.spark.mode.ShuffleCheck.check`.
        state: the part of the query's state that the batch writes, if the query keeps state.
    """

    batch: Sequence[Rows]
    sinks: tuple[TwoPhaseCommitSink[Any], ...]
    runs: Runs
    shuffles: ShuffleCheck
    slots: WriterLimit
    staging: Staging | None
    way: Way
    budget: Budget
    timeout_ms: float | None
    max_writers: int | None = None
    may_be_sorted: Callable[[Rows], bool]
    depends_on_task: Callable[[Rows], bool]
    tell: Tell
    kept_since_ms: Callable[[], float | None]
    state: StateCheck | None = None

    @property
    def _session(self) -> SparkSession:
        return self.batch[0].source.sparkSession

    def _setting(self, name: str) -> str | None:
        return self._session.conf.get(name, None)

    def evaluate(self) -> None:
        """See :class:`Engine`.

        Evaluate the same columns of the same DataFrames as :meth:`prepare`, and discard the rows. Then this run needs nothing
        that the first run did not need, and the user's function can read the DataFrames' observations. The rows are already
        visible, so an error stops the query only if it leaves the state incomplete.
        """
        for rows in self.batch:
            try:
                with self._watching(rows):
                    rows.frame().write.format("noop").mode("overwrite").save()
            except Exception:
                logger.warning(
                    "Spark replayed a batch whose rows are already visible%s, but could not recompute these rows. No "
                    "row is lost or duplicated, and the query continues. But the batch's metrics and observations, and "
                    "the side effects of your own functions, may be incomplete. Spark's error follows",
                    f" in sink {rows.name!r}" if rows.name else "",
                    exc_info=True,
                )
        if self.state is not None:
            self.state.complete(is_visible=True)

    def prepare(self, work: Work) -> list[TaskReport]:
        """See :class:`Engine`.

        Run the DataFrames' jobs one after another, so that the first job fills the cache of any parent that the DataFrames
        share. The driver collects and writes a DataFrame that is small enough. Staged files are published together.
        """
        limit = self._limit(work)
        work.pending.limited(limit.timeout_ms, limit.setting, planned=self.way.input.size)
        reports: list[TaskReport] = []
        stages: set[int] = set()
        tag = f"twopc-{uuid.uuid4().hex}"
        self.shuffles.begin()
        if self.state is not None:
            self.state.begin()
        with self._cancelled_after(tag, limit.timeout_ms) as is_cancelled:
            for rows in self._jobs(work):
                task = self._task(rows, work, limit, first_task=len(reports))
                with _recording(work.pending):
                    try:
                        results = self._results(rows, task, work, tag)
                    except Exception as error:
                        if is_cancelled():
                            raise _expired(work, limit, reports) from error
                        raise translated(error, self._setting)  # noqa: B904 - translated() sets the cause
                    work.pending.acknowledged([result.acknowledgement for result in results])
                    reports += _accepted(results, work, limit)
                if is_cancelled():  # a canceled job may still have finished
                    raise _expired(work, limit, reports)
                stages |= {result.stage for result in results if result.stage is not None}
            try:
                self._complete_state(work, tag)
            except Exception as error:
                if is_cancelled():
                    raise _expired(work, limit, reports) from error
                raise
        self.shuffles.check(tag, stages, self.kept_since_ms)
        if self.staging is not None:
            self.staging.require_visible([report.staged for report in reports if report.staged is not None])
        return reports

    def _complete_state(self, work: Work, tag: str) -> None:
        if self.state is None or isinstance(work.mode, Publish):
            return
        if self.state.complete():  # the state must be computed from the same shuffles as the rows
            self.shuffles.look(tag)

    def _limit(self, work: Work) -> _Limit:
        known = ((self.timeout_ms, _SETTING), (work.timeout_ms, _EXPIRY))
        limits = {limit: setting for limit, setting in known if limit is not None}
        if not limits:
            return _Limit()
        timeout_ms = min(limits)
        return _Limit(timeout_ms, limits[timeout_ms], time.monotonic() + timeout_ms / 1000)

    def _results(self, rows: Rows, task: PrepareTask, work: Work, tag: str) -> list[TaskResult]:
        if isinstance(work.mode, Publish):
            return self._publish(task, work.mode)
        must = rows.name in work.mode.direct if isinstance(work.mode, Repair) else None
        if self._is_direct(rows.name) if must is None else must:
            max_bytes = None if must else self.way.max_bytes
            # A single transaction cannot be partly lost, so no replay has to be compared with the decision (rule 9).
            is_divided = len(self.batch) > 1 or len(rows.sinks) > 1
            wanted = replace(rows, is_hashed=is_divided)
            with self._watching(rows):
                batches = self._collect(wanted, max_bytes, tag)
            if batches is not None:
                self.shuffles.look(tag)  # observes the jobs while the driver writes
                result = replace(task, is_direct=True).execute(0, batches)
                self.way.learn(rows.name, result.size_bytes)
                return [result]
            self.way.learn_over(rows.name)
        with self._watching(rows):
            most = self._most_writers()
            why = None if most is None else self._why_unmerged(rows, most)
            results = _run(rows.for_tasks(most if why is None else None), task)
        if most is not None and why is not None and len(results) > most:
            self.tell(_many_writers(rows, work, len(results), most, why))
        if not results:  # a DataFrame without partitions: no result shows for which job the check must wait
            self.shuffles.look(tag, is_collected=False)
        self.way.learn(rows.name, sum(result.size_bytes for result in results))
        return results

    def _most_writers(self) -> int | None:
        return self.slots.most_writers() if self.max_writers is None else self.max_writers

    def _why_unmerged(self, rows: Rows, most: int) -> str | None:
        """Return why each partition of the plan must have its own task, or None if a task may receive several partitions."""
        if self.depends_on_task(rows):
            return _TASK_CODE
        ordered = [repr(sink.name) for sink in rows.sinks if sink.keeps_task_order]
        if ordered and self.may_be_sorted(rows):  # merging partitions would change their order
            return _SORTED.format(ordered=" and ".join(ordered), most=most)
        return None

    def _cancelled_after(self, tag: str, timeout_ms: float | None) -> AbstractContextManager[Callable[[], bool]]:
        context = self._session.sparkContext
        return cancelled_after(
            timeout_ms, tag, add=context.addJobTag, remove=context.removeJobTag, cancel=context.cancelJobsWithTag
        )

    def _is_direct(self, frame_name: str) -> bool:
        return self.way.is_direct(frame_name)

    def _collect(self, rows: Rows, max_bytes: int | None, tag: str) -> list[pa.RecordBatch] | None:
        budget = self.budget if self.way.needs_bound(rows.name) else None
        cancel = partial(self._session.sparkContext.cancelJobsWithTag, tag)
        return collect(rows, max_bytes=max_bytes, budget=budget, cancel=cancel)

    def _watching(self, rows: Rows) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self.state is None else self.state.watching(rows.source)

    def _jobs(self, work: Work) -> Sequence[Rows]:
        if isinstance(work.mode, Publish):
            return [replace(self.batch[0], name="", sinks=self.sinks, views={})]
        return self.batch

    def _publish(self, task: PrepareTask, mode: Publish) -> list[TaskResult]:
        """In the driver, publish each file that the driver staged. Publish every other staged file in a separate task."""
        here = replace(mode, tasks=tuple(one for one in mode.tasks if one.is_direct))
        there = replace(mode, tasks=tuple(one for one in mode.tasks if not one.is_direct))
        in_driver = replace(task, is_direct=True, mode=here)
        results = [in_driver.execute(number, ()) for number in range(len(here.tasks))]
        if count := len(there.tasks):
            one_each = self._session.range(0, count, 1, numPartitions=count)
            results += _run(one_each, replace(task, mode=there))
        return results

    def _task(self, rows: Rows, work: Work, limit: _Limit, *, first_task: int) -> PrepareTask:
        return PrepareTask(
            runs=self.runs,
            sinks=rows.sinks,
            query_id=work.batch.query_id,
            batch_id=work.batch.batch_id,
            attempt=work.attempt,
            driver_epochs=work.driver_epochs,
            committed_through=work.committed_through,
            mode=work.mode,
            first_number=work.number_of(0),
            frame_name=rows.name,
            first_task=first_task,
            staging=self.staging,
            views=rows.views,
            ends_at=limit.ends_at,
            driver=HERE,
        )


def _many_writers(rows: Rows, work: Work, count: int, most: int, why: str) -> str:
    return (
        f"{count} tasks have written batch {work.batch.batch_id}{f' for {rows.name!r}' if rows.name else ''}, although "
        f"max_writers is {most} (by default, twice the number of task slots). {why}. The run logs this warning only once"
    )


def _expired(work: Work, limit: _Limit, late: Sequence[TaskReport], why: str = "") -> CheckpointExpiredError:
    return CheckpointExpiredError(
        f"batch {work.batch.batch_id} was canceled: its tasks did not finish within {limit.timeout_ms:.0f} ms. No part of this "
        f"attempt is visible or decided. Raise the limit: {limit.setting}{why}",
        late=late,
    )


def _accepted(results: Sequence[TaskResult], work: Work, limit: _Limit) -> list[TaskReport]:
    """Return the reports of one job's tasks.

    Raises:
        RetriableError, FatalError: a task failed.
    """
    for result in results:
        if result.error is not None:
            raise _failure(work, limit, named_error(*result.error))
    return [result.report for result in results if result.report is not None]


def _failure(work: Work, limit: _Limit, error: Exception) -> Exception:
    """Return the error to raise for a task's error, instead of raising it: see ``twopc.errors.release``."""
    # The driver's writer gives up when its time runs out, because Spark cannot cancel it.
    if isinstance(error, CheckpointExpiredError) and time.monotonic() >= limit.ends_at:
        return _expired(work, limit, (), f". {error}")
    return error


@contextlib.contextmanager
def _recording(pending: Pending) -> Iterator[None]:
    """If a task fails in the body, record that it declined the checkpoint. An expired checkpoint stays expired."""
    try:
        yield
    except TwoPhaseCommitError:
        pending.declined()
        raise


def _run(frame: DataFrame, task: PrepareTask) -> list[TaskResult]:
    collected = frame.mapInArrow(task.run, _RESULT).collect()
    return [msgspec.json.decode(bytes(row.result), type=TaskResult) for row in collected]
