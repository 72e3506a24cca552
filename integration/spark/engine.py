"""A batch's DataFrame as the coordinator's engine: Spark runs the tasks, the driver collects their reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from integration.spark.failures import named_error, translated
from integration.spark.stage_attempts import require_first_attempts
from integration.spark.task import PrepareTask, TaskResult
from integration.spark.time_limit import cancelled_after
from twopc.errors import PrepareTimeoutError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from integration.spark.frame import Rows
    from integration.spark.staging import Staging
    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sink import TwoPhaseCommitSink

_RESULT: Final = "result binary"


class SparkEngine:
    """See :class:`twopc.engine.Engine`."""

    def __init__(
        self,
        frame: DataFrame,
        rows: Rows,
        sinks: tuple[TwoPhaseCommitSink[Any], ...],
        staging: Staging | None,
        *,
        timeout_ms: float | None,
    ) -> None:
        self._frame = frame
        self._rows = rows
        self._sinks = sinks
        self._staging = staging
        self._timeout_ms = timeout_ms

    def evaluate(self) -> None:
        """See :class:`Engine`. The rows go nowhere; a stateful plan writes its state."""
        self._frame.write.format("noop").mode("overwrite").save()

    def prepare(self, work: Work) -> list[TaskReport]:
        """See :class:`Engine`."""
        task = PrepareTask(
            sinks=self._sinks,
            query_id=work.batch.query_id,
            batch_id=work.batch.batch_id,
            attempt=work.attempt,
            driver_epochs=work.driver_epochs,
            committed_through=work.committed_through,
            only_tasks=work.only_tasks,
            staging=None if self._staging is None else self._staging.location,
            views=self._rows.views,
        )
        limits = [limit for limit in (work.timeout_ms, self._timeout_ms) if limit is not None]
        results = self._run(task, timeout_ms=min(limits, default=None))
        for result in results:
            if result.error is not None:
                raise named_error(*result.error)
        tracker = self._frame.sparkSession.sparkContext.statusTracker()
        require_first_attempts(tracker, {result.stage for result in results}, tasks=len(results))
        return [result.report for result in results if result.report is not None]

    def _run(self, task: PrepareTask, *, timeout_ms: float | None) -> list[TaskResult]:
        with cancelled_after(self._frame.sparkSession.sparkContext, timeout_ms) as is_cancelled:
            try:
                rows = self._rows.frame.mapInArrow(task.run, _RESULT).collect()
            except Exception as error:
                if is_cancelled():
                    raise PrepareTimeoutError(
                        f"batch {task.batch_id} was cancelled: its tasks did not finish within {timeout_ms:.0f} ms. Nothing of "
                        "it is visible. Make batches smaller (maxOffsetsPerTrigger), or raise the limit: "
                        "prepare_timeout_ms, or kafka.transaction.timeout.ms and the brokers' transaction.max.timeout.ms"
                    ) from error
                raise translated(error) from error
        return [msgspec.json.decode(bytes(row.result), type=TaskResult) for row in rows]
