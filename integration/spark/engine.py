"""A batch's DataFrames as the coordinator's engine: Spark runs the tasks, the driver collects their reports."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from integration.spark.frame import Rows
from integration.spark.jobs import cancelled_after, named_error, translated
from integration.spark.task import PrepareTask, TaskResult
from twopc.errors import PrepareTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from integration.spark.shuffles import Shuffles
    from integration.spark.staging import Staging
    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sink import TwoPhaseCommitSink

_RESULT: Final = "result binary"
_EXPIRY: Final = "kafka.transaction.timeout.ms and the brokers' transaction.max.timeout.ms"


class SparkEngine:
    """See :class:`twopc.engine.Engine`.

    Args:
        batch: its DataFrames.
        sinks: all of the query's, also those that get nothing of this batch.
        shuffles: of this run of the query.
        staging: where the tasks keep their rows, if they do.
        timeout_ms: how long an attempt may take, if the user has set a limit.
    """

    def __init__(
        self,
        batch: Sequence[Rows],
        sinks: tuple[TwoPhaseCommitSink[Any], ...],
        shuffles: Shuffles,
        staging: Staging | None,
        *,
        timeout_ms: float | None,
    ) -> None:
        self._batch = batch
        self._sinks = sinks
        self._shuffles = shuffles
        self._context = batch[0].source.sparkSession.sparkContext
        self._staging = staging
        self._timeout_ms = timeout_ms

    def evaluate(self) -> None:
        """See :class:`Engine`. The rows go nowhere; a stateful plan writes its state."""
        for rows in self._batch:
            rows.source.write.format("noop").mode("overwrite").save()

    def prepare(self, work: Work) -> list[TaskReport]:
        """See :class:`Engine`. One job for each DataFrame, in turn: the first one fills the cache of a common parent.

        One job, with a task for each, publishes staged slices.
        """
        limits = [limit for limit in (work.timeout_ms, self._timeout_ms) if limit is not None]
        timeout_ms = min(limits, default=None)
        reports: list[TaskReport] = []
        stages: set[int] = set()
        tag = f"twopc-{uuid.uuid4().hex}"
        self._shuffles.require_unmixed()
        with cancelled_after(self._context, tag, timeout_ms) as is_cancelled:
            for rows in self._jobs(work):
                task = self._task(rows, work, first_task=len(reports))
                try:
                    results = _run(rows, task)
                except Exception as error:
                    if is_cancelled():
                        raise PrepareTimeoutError(
                            f"batch {task.batch_id} was cancelled: its tasks did not finish within {timeout_ms:.0f} ms. Nothing "
                            "of this attempt is visible or decided. Raise the limit: "
                            + ("prepare_timeout_ms" if timeout_ms == self._timeout_ms else _EXPIRY)
                        ) from error
                    raise translated(error) from error
                reports += _accepted(results)
                stages |= {result.stage for result in results}
        self._shuffles.check(tag, stages)
        if self._staging is not None:
            self._staging.require_visible(report.staged for report in reports if report.staged is not None)
        return reports

    def _jobs(self, work: Work) -> Sequence[Rows]:
        if not work.slices:
            return self._batch
        count = len(work.slices)
        one_each = self._batch[0].source.sparkSession.range(0, count, 1, numPartitions=count)
        return [Rows("", one_each, self._sinks, one_each, {})]

    def _task(self, rows: Rows, work: Work, *, first_task: int) -> PrepareTask:
        return PrepareTask(
            sinks=rows.sinks,
            query_id=work.batch.query_id,
            batch_id=work.batch.batch_id,
            attempt=work.attempt,
            driver_epochs=work.driver_epochs,
            committed_through=work.committed_through,
            only_tasks=work.only_tasks,
            frame=rows.name,
            first_task=first_task,
            staging=self._staging,
            views=rows.views,
            slices=work.slices,
        )


def _accepted(results: Sequence[TaskResult]) -> list[TaskReport]:
    """The reports of one job's tasks.

    Raises:
        RetriableError, FatalError: a task failed.
    """
    for result in results:
        if result.error is not None:
            raise named_error(*result.error)
    return [result.report for result in results if result.report is not None]


def _run(rows: Rows, task: PrepareTask) -> list[TaskResult]:
    collected = rows.frame.mapInArrow(task.run, _RESULT).collect()
    return [msgspec.json.decode(bytes(row.result), type=TaskResult) for row in collected]
