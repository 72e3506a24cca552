"""Read Spark's reports about its jobs and stages from Spark's UI.

The UI shows the same status store that a classic driver reads.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twopc.errors import UnavailableError
from twopc.integration.spark.reports import RETAINED_BY_DEFAULT, RETAINED_JOBS, Job, JobData, Moment, StageAttempt
from twopc.integration.spark.stage_graph import StageGraph

if TYPE_CHECKING:
    from collections.abc import Collection

    from twopc.integration.connect.spark_ui import SparkUi

#: Spark Connect puts a prefix before a session's tag. The prefix ends with this string (``ExecuteSessionTag``).
_OF_SESSION: Final = "_Tag_"
#: How long the toolkit's own job may take, and how long Spark's report of this job may be delayed.
_JOB_TIMEOUT_S: Final = 600.0
#: The same limit before the query starts. Since Spark 4.2, the server waits only 300 s for the function's process to
#: start.
_FIRST_JOB_TIMEOUT_S: Final = 240.0
_MARK_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.01


#: A stage's graph in the page about the stage. No object of the UI contains the graph (``UIUtils.showDagViz``).
_GRAPH: Final = re.compile(r'<div class="dot-file">')
_EDGE: Final = re.compile(r"^\s*(\d+)-(?:&gt;|>)(\d+);$", re.MULTILINE)
_INCOMING: Final = re.compile(r'<div class="incoming-edge">\d+,(\d+)</div>')
_CACHED: Final = re.compile(r'<div class="cached-rdd">(\d+)</div>')


class _Cached(msgspec.Struct, frozen=True, rename="camel"):
    id: int
    storage_level: str = ""


class _Environment(msgspec.Struct, frozen=True, rename="camel"):
    spark_properties: list[tuple[str, str]]


class UiReports:
    """See :class:`~twopc.integration.spark.reports.Reports`.

    The UI does not show which numbers the next job and the next RDD will receive. So this class uses the highest
    reported job number, and runs an additional job, whose RDDs are new.

    Args:
        ui: Spark's UI.
        session: the query's session.
        is_at_start: whether the server is still waiting for the function's process, before it starts the query.
    """

    def __init__(self, ui: SparkUi, session: Any, *, is_at_start: bool = False) -> None:
        self._ui = ui
        self._session = session
        self.markers: set[int] = set()
        self._timeout_s = _FIRST_JOB_TIMEOUT_S if is_at_start else _JOB_TIMEOUT_S

    def forget_markers(self, before: int) -> None:
        """See :class:`Reports`."""
        self.markers = {job for job in self.markers if job >= before}

    def mark(self, tag: str) -> None:
        """See :class:`Reports`.

        Raises:
            UnavailableError: the job failed, or found no free slot within ten minutes (four before the query starts).
        """
        limit = threading.Timer(self._timeout_s, self._session.interruptTag, (tag,))
        self._timeout_s = _JOB_TIMEOUT_S
        limit.daemon = True
        limit.start()
        self._session.addTag(tag)  # applies to this thread's operations
        try:
            # Spark Connect runs no job for a plan without partitions.
            self._session.range(0, 1, 1, 1).collect()
        except Exception as error:
            raise UnavailableError(
                "Spark could not run the toolkit's own job, which is a single task without input "
                f"({type(error).__name__}: {error}). So the toolkit cannot check whether a stage runs twice and mixes "
                "the rows of two shuffles. No part of this attempt is decided or visible. If this happens again, look for "
                "the reason in Spark's log, and check that the cluster has a free slot"
            ) from error
        finally:
            limit.cancel()
            self._session.removeTag(tag)

    def end_of_jobs(self) -> int:
        """See :class:`Reports`."""
        return 1 + max((job.job_id for job in self._jobs()), default=-1)

    def retained_jobs(self) -> int:
        """See :class:`Reports`."""
        found = self._ui.one("environment", _Environment)  # a session's settings may differ from the application's
        most = 0 if found is None else int(dict(found.spark_properties).get(RETAINED_JOBS, RETAINED_BY_DEFAULT))
        # If Spark has forgotten the job with the highest number, end_of_jobs() returns too low a number. But Spark
        # forgets only a tenth of the jobs at a time, so that number still exceeds this result.
        return most - most // 10

    def jobs_with_tag(self, tag: str) -> list[Job]:
        """See :class:`Reports`."""
        mine = [data.job for data in self._jobs() if any(one.endswith(f"{_OF_SESSION}{tag}") for one in data.job_tags)]
        return sorted(mine, key=lambda job: job.job_id)

    def now(self) -> Moment:
        """See :class:`Reports`."""
        # Keep this order, so that every lower job number has been assigned, and every counted drop has happened, before
        # the RDD is created.
        dropped, job = self.dropped(), self.end_of_jobs()
        return Moment(self.next_rdd(), job, dropped)

    def next_rdd(self) -> int:
        """See :class:`Reports`."""
        tag = f"twopc-{uuid.uuid4().hex}"
        self.mark(tag)
        deadline = time.monotonic() + _MARK_TIMEOUT_S
        while not (attempts := self._attempts_with_tag(tag)):
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"Spark's UI at {self._ui.address} did not show the toolkit's last job within "
                    f"{_MARK_TIMEOUT_S:.0f} s. So the toolkit cannot check whether a stage runs twice and mixes the "
                    "rows of two shuffles. No part of this attempt is decided or visible. If this happens again, raise "
                    "spark.ui.retainedJobs, spark.ui.retainedStages (default: 1000 each) and "
                    "spark.scheduler.listenerbus.eventqueue.capacity (default: 10000), and restart the server"
                )
            time.sleep(_POLL_S)
        self.markers.update(job.job_id for job in self.jobs_with_tag(tag))
        return max(rdd for attempt in attempts for rdd in attempt.rdd_ids)

    def job(self, number: int) -> Job | None:
        """See :class:`Reports`."""
        found = self._ui.one(f"jobs/{number}", JobData)
        return None if found is None else found.job

    def is_over(self, number: int) -> bool:
        """See :class:`Reports`."""
        job = self.job(number)
        return job is not None and job.is_over

    def last_attempt(self, stage: int) -> StageAttempt | None:
        """See :class:`Reports`."""
        return next(reversed(self.attempts(stage)), None)

    def attempts(self, stage: int) -> list[StageAttempt]:
        """See :class:`Reports`."""
        found = self._ui.several(f"stages/{stage}?details=false", StageAttempt)
        return sorted(found, key=lambda attempt: attempt.attempt_id)

    def may_read(self, stage: int) -> bool:
        """See :class:`Reports`."""
        page = self._ui.page(f"stages/stage/?id={stage}&attempt=0") or ""
        if not _GRAPH.search(page):
            return True
        edges = [(int(rdd), int(computed)) for rdd, computed in _EDGE.findall(page)]
        graph = StageGraph(edges, set(map(int, _INCOMING.findall(page))), set(map(int, _CACHED.findall(page))))
        return graph.may_read(self._level_of)

    def _level_of(self, rdd: int) -> str | None:
        found = self._ui.one(f"storage/rdd/{rdd}", _Cached)
        return None if found is None else found.storage_level

    def cached_rdds(self, among: Collection[int]) -> set[int]:
        """See :class:`Reports`. The UI's list omits an RDD whose cached rows are lost, so this method asks for each RDD."""
        return {rdd for rdd in among if self._ui.one(f"storage/rdd/{rdd}", _Cached) is not None}

    def dropped(self) -> int:
        """See :class:`Reports`."""
        return self._ui.dropped_events()

    def _jobs(self) -> list[JobData]:
        return self._ui.several("jobs", JobData)

    def _attempts_with_tag(self, tag: str) -> list[StageAttempt]:
        return [attempt for job in self.jobs_with_tag(tag) for stage in job.stages for attempt in self.attempts(stage)]
