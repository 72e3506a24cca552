"""One batch's DataFrame as the coordinator's engine: evaluated once, its handles brought back to the driver."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from integration.spark.task import Job, TaskResult
from twopc import errors
from twopc.errors import ConfigurationError, FatalError, PrepareTimeoutError, RetriableError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    from integration.spark.frame import Rows
    from integration.spark.staging import Staging
    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sink import TwoPhaseCommitSink

logger = logging.getLogger(__name__)

_RESULT: Final = "result binary"
#: How long Spark's listener bus may lag behind the job before its stage's story is asked for.
_STATUS_TIMEOUT_S: Final = 30.0
_STATUS_POLL_S: Final = 0.002
_CANCEL_AGAIN_S: Final = 0.5
_OURS: Final = re.compile(r"twopc\.errors\.(?P<kind>\w+): (?P<message>.*)")


class SparkEngine:
    """See :class:`twopc.coordinator.Engine`."""

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
        """See :class:`Engine`. The plan's own rows go nowhere; its state versions are written."""
        self._frame.write.format("noop").mode("overwrite").save()

    def prepare(self, work: Work) -> list[TaskReport]:
        """See :class:`Engine`."""
        job = Job(
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
        results = self._run(job, timeout_ms=min(limits, default=None))
        failed = next((result.error for result in results if result.error is not None), None)
        if failed is not None:
            kind = getattr(errors, failed[0], FatalError)
            raise kind(failed[1])
        self._require_first_generation({result.stage for result in results}, len(results))
        return [result.report for result in results if result.report is not None]

    def _run(self, job: Job, *, timeout_ms: float | None) -> list[TaskResult]:
        context = self._frame.sparkSession.sparkContext
        # A tag, not a job group of our own: the query's run id is its job group, which query.stop() cancels by.
        tag = f"twopc-{uuid.uuid4().hex}"
        expired, done = threading.Event(), threading.Event()

        def expire() -> None:
            expired.set()
            # Again and again: before the plan's first job, or between two of them, there is nothing to cancel.
            context.cancelJobsWithTag(tag)
            while not done.wait(_CANCEL_AGAIN_S):
                context.cancelJobsWithTag(tag)

        timer = threading.Timer(timeout_ms / 1000, expire) if timeout_ms is not None else None
        context.addJobTag(tag)
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            rows = self._rows.frame.mapInArrow(lambda batches: job(iter(batches)), _RESULT).collect()
        except Exception as error:
            if expired.is_set():
                raise PrepareTimeoutError(
                    f"batch {job.batch_id} was not written within {timeout_ms:.0f} ms and was cancelled: its transactions would "
                    "expire. Raise kafka.transaction.timeout.ms (and the brokers' transaction.max.timeout.ms) or "
                    "prepare_timeout_ms, or make batches smaller (maxOffsetsPerTrigger)"
                ) from error
            raise _translated(error) from error
        finally:
            done.set()
            if timer is not None:
                timer.cancel()
            context.removeJobTag(tag)
        return [msgspec.json.decode(bytes(row.result), type=TaskResult) for row in rows]

    def _require_first_generation(self, stages: set[int], tasks: int) -> None:
        """Every accepted task must come from stage attempt 0: a re-run stage can mix two generations of a shuffle (rule 6).

        Spark tells of it through its listener bus, which may lag: the proof is that all tasks completed in attempt 0.

        Raises:
            RetriableError: the stage was run again; nothing of this attempt may be decided.
        """
        context: SparkContext = self._frame.sparkSession.sparkContext
        tracker = context.statusTracker()
        deadline = time.monotonic() + _STATUS_TIMEOUT_S
        for stage in stages:
            while True:
                info = tracker.getStageInfo(stage)
                if info is not None and info.currentAttemptId > 0:
                    raise RetriableError(f"stage {stage} was run again (attempt {info.currentAttemptId})")
                if info is not None and info.numCompletedTasks >= tasks:
                    break
                if time.monotonic() > deadline:
                    raise RetriableError(
                        f"Spark did not tell within {_STATUS_TIMEOUT_S:.0f} s whether stage {stage} was re-run"
                    )
                time.sleep(_STATUS_POLL_S)  # between two questions to Spark's own status store


def _translated(error: Exception) -> Exception:
    """A failure of the job itself, in words that help."""
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        kind = getattr(errors, ours["kind"], FatalError)
        return kind(ours["message"]) if issubclass(kind, (RetriableError, FatalError)) else error
    if "ModuleNotFoundError" in text or "PYTHON_VERSION_MISMATCH" in text:
        return ConfigurationError(
            f"the Python workers cannot import this toolkit: point PYSPARK_PYTHON (spark.pyspark.python) to an environment that "
            f"has it, here {sys.executable}, and ship the same one to the executors. Spark said: {_last_line(text)}"
        )
    return error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "Error" in line]
    return lines[-1] if lines else text[:500]
