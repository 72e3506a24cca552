"""Rule 6: a batch is decided only if all of its rows come from the same shuffles.

Spark runs a stage again for the output that it has lost, with an executor for example. If the plan is not deterministic, the
rows that later stages have read before and those that they read afterwards belong to two different shuffles.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
from py4j.protocol import Py4JError

from twopc.errors import FatalError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pyspark import SparkContext

#: How long Spark's listener bus, which reports jobs and stages, may lag behind the job.
_STATUS_TIMEOUT_S: Final = 30.0
_STATUS_POLL_S: Final = 0.002
#: What the tag of an attempt's marks ends with.
_MARK: Final = "-end"
_IDLE: Final = frozenset({"PENDING", "SKIPPED"})


class Job(msgspec.Struct, frozen=True):
    """A Spark job, as the status store has it.

    Attributes:
        is_over: whether the report of its end has arrived, and with it all that was reported before.
        skipped: how many tasks belong to stages that it skipped: an earlier job wrote their shuffles.
        missing: how many others did not run: an earlier job ran them, or it failed.
    """

    job_id: int
    stages: tuple[int, ...]
    is_over: bool
    skipped: int = 0
    missing: int = 0


class StageAttempt(msgspec.Struct, frozen=True, rename="camel"):
    """An attempt at a stage: the fields of Spark's ``StageData`` (``status/api/v1/api.scala``) that count here."""

    status: str
    stage_id: int
    rdd_ids: tuple[int, ...]
    shuffle_read_records: int
    shuffle_write_records: int


class _JobData(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of Spark's ``JobData`` that count here."""

    stage_ids: tuple[int, ...]
    status: str
    num_tasks: int
    num_completed_indices: int
    num_skipped_tasks: int


class StatusStore:
    """Spark's status store, which the listener bus feeds in order. Every method is some calls of the JVM."""

    def __init__(self, context: SparkContext) -> None:
        # PySpark's public StatusTracker knows neither tags nor what a stage read.
        java: Any = context._jsc  # noqa: SLF001 - see above
        gateway: Any = context._gateway  # noqa: SLF001 - the same
        self._gateway = gateway
        self._tracker, self._tags, self._store = (
            java.statusTracker(),
            java.sc().statusTracker(),
            java.sc().statusStore(),
        )
        self._arrays = gateway.jvm.java.util.Arrays  # each look-up of a class is some calls
        self._context, self._nothing = context, java.emptyRDD()

    def mark(self, tag: str) -> None:
        """Run a job without tasks under the tag. Its report follows those of all jobs that have ended before."""
        self._context.addJobTag(tag)
        try:
            self._nothing.count()
        finally:
            self._context.removeJobTag(tag)

    def jobs_with_tag(self, tag: str) -> list[Job]:
        """The jobs that have the tag."""
        return self._jobs(self._tags.getJobIdsForTag(tag))

    def jobs_of_group(self, group: str | None, *, after: int) -> list[Job]:
        """The jobs of a group with a higher number than ``after``."""
        return self._jobs(self._tracker.getJobIdsForGroup(group), after=after)

    def last_attempt(self, stage: int) -> int | None:
        """The number of a stage's last attempt; None if the store does not have the stage."""
        info = self._tracker.getStageInfo(stage)
        return None if info is None else int(info.currentAttemptId())

    def attempts(self, stage: int) -> list[StageAttempt]:
        """All attempts at a stage; none if the store does not have them."""
        jvm = self._gateway.jvm
        no_tasks, no_quantiles = jvm.java.util.Collections.emptyList(), self._gateway.new_array(jvm.double, 0)
        try:
            found = self._store.stageData(stage, False, no_tasks, False, no_quantiles)  # noqa: FBT003 - Scala's
            return msgspec.json.decode(self._json.writeValueAsString(found), type=list[StageAttempt])
        except (Py4JError, msgspec.ValidationError):  # another release of Spark: the worst is assumed
            return [StageAttempt("UNKNOWN", stage, (), 1, 1)] * (1 + (self.last_attempt(stage) or 0))

    def shuffle_of(self, stage: int) -> frozenset[int]:
        """The RDDs of a stage, the same in every job, if its last attempt wrote rows of a shuffle; else empty."""
        data = self._store.lastStageAttempt(stage)
        if data.shuffleWriteRecords() == 0:
            return frozenset()
        return frozenset(json.loads(data.rddIds().mkString("[", ",", "]")))

    def cached_rdds(self) -> set[int]:
        """The ids of the RDDs that are cached, or will be."""
        found = self._store.rddList(False)  # noqa: FBT003 - not only those that are
        return {found.apply(index).id() for index in range(found.size())}

    @cached_property
    def _json(self) -> Any:
        jackson = self._gateway.jvm.com.fasterxml.jackson
        mapper = jackson.databind.ObjectMapper()
        mapper.registerModule(jackson.module.scala.DefaultScalaModule())
        return mapper

    def _jobs(self, ids: Any, *, after: int = -1) -> list[Job]:
        # One call for all numbers: py4j reads an array with a call for each of its elements.
        numbers: list[int] = json.loads(self._arrays.toString(ids))
        return [self._job(number) for number in sorted(numbers) if number > after]

    def _job(self, number: int) -> Job:
        try:
            data = self._store.job(number)
        except Py4JError:
            return Job(number, (), is_over=False, missing=1)
        # As JSON: one call instead of one for each field.
        job = msgspec.json.decode(self._json.writeValueAsString(data), type=_JobData)
        missing = job.num_tasks - job.num_completed_indices - job.num_skipped_tasks
        return Job(number, job.stage_ids, missing <= 0 or job.status != "RUNNING", job.num_skipped_tasks, missing)


class Shuffles:
    """Checks the jobs of one run of a query, in order. It outlives a failed batch: a retry uses the same shuffle files.

    Args:
        store: what Spark has reported.
        run_id: the job group of the query's jobs.
    """

    def __init__(self, store: StatusStore, run_id: str | None) -> None:
        self.run_id = run_id
        self._store = store
        self._checked = -1
        self._marks: Counter[str] = Counter()  # by tag, until they are checked
        # One thread for all batches: PySpark keeps a connection to the JVM for each thread that calls it.
        self._beside = ThreadPoolExecutor(1, "twopc-marks")
        self._mixed: str | None = None

    def require_unmixed(self) -> None:
        """Require that no earlier attempt has left rows of two shuffles, which this run would take again.

        Raises:
            FatalError: one has.
        """
        if self._mixed is not None:
            raise FatalError(self._mixed)

    @contextlib.contextmanager
    def marking(self, tag: str) -> Iterator[None]:
        """Have it reported that everything up to now is reported: collected rows do not say which stage they are from.

        The body need not wait for that: it runs beside.

        Args:
            tag: that of the attempt's jobs.
        """
        self._marks[tag] += 1
        marked = self._beside.submit(self._store.mark, f"{tag}{_MARK}")
        try:
            yield
        finally:
            marked.result()

    def check(self, tag: str, results: Collection[int]) -> None:
        """Check an attempt at a batch, after its jobs have succeeded.

        Args:
            tag: that of its jobs.
            results: the stages whose tasks have reported to the driver.

        Raises:
            RetriableError: a stage that keeps nothing ran again; a retry reads its input anew.
            FatalError: rows of two shuffles may be mixed, and kept; or Spark has not reported enough to exclude it.
        """
        marks = self._reported_marks(tag)
        jobs = self._reported(tag, results)
        if not self._ran_once(jobs) or self._may_read_what_is_kept(jobs):
            since = self._store.jobs_of_group(self.run_id, after=self._checked)
            if self._ran_once(since):
                self._require_written_once(since)
            else:
                self._look_closer(since, {stage for job in jobs for stage in job.stages})
        self._checked = max((job.job_id for job in (*jobs, *marks)), default=self._checked)

    def _reported_marks(self, tag: str) -> list[Job]:
        """The marks of an attempt, once all are reported, and so all that came before."""
        count = self._marks.pop(tag, 0)
        if count == 0:
            return []
        what = "the end of the job that collected the batch"
        return self._await(f"{tag}{_MARK}", lambda marks: len(marks) == count, what)

    def _reported(self, tag: str, results: Collection[int]) -> list[Job]:
        """The jobs with the tag, once the end of those with the ``results`` is reported, and so all that came before."""
        what = f"the end of the job of stage {', '.join(map(str, sorted(results)))}"
        return self._await(
            tag, lambda jobs: set(results) <= {stage for job in jobs if job.is_over for stage in job.stages}, what
        )

    def _await(self, tag: str, is_enough: Callable[[list[Job]], bool], what: str) -> list[Job]:
        deadline = time.monotonic() + _STATUS_TIMEOUT_S
        while not is_enough(jobs := self._store.jobs_with_tag(tag)):
            if time.monotonic() > deadline:
                raise _unreported(what)
            time.sleep(_STATUS_POLL_S)
        return jobs

    def _ran_once(self, jobs: Iterable[Job]) -> bool:
        return all(job.missing <= 0 and all(self._store.last_attempt(one) == 0 for one in job.stages) for job in jobs)

    def _may_read_what_is_kept(self, jobs: Sequence[Job]) -> bool:
        """Whether a job may read what another job of the batch has kept, as shuffle files or in a cache."""
        if {job.job_id for job in jobs} == {self._checked + 1}:
            return False  # there is no other
        return len(jobs) > 1 or any(job.skipped for job in jobs) or bool(self._store.cached_rdds())

    def _require_written_once(self, jobs: Sequence[Job]) -> None:
        """Check jobs that ran each of their stages once: a later one may have written again what an earlier one has lost.

        Then it skips nothing, and what is left of a cache is of the first writing.
        """
        written: dict[frozenset[int], int] = {}
        for stage in sorted({stage for job in jobs for stage in job.stages}):
            shuffle = self._store.shuffle_of(stage)
            if shuffle and written.setdefault(shuffle, stage) != stage:
                self._mixed = _MIXED.format(stage=stage)
                raise FatalError(self._mixed)

    def _look_closer(self, jobs: Iterable[Job], own: Collection[int]) -> None:
        """Find the stages that ran more than once: in a job of this attempt, of an earlier one, or of the user's function."""
        ran: dict[tuple[int, ...], list[StageAttempt]] = {}
        for stage in sorted({stage for job in jobs for stage in job.stages}):
            attempts = self._store.attempts(stage)
            if not attempts:
                raise _unreported(f"stage {stage}")
            for attempt in attempts:
                if attempt.status not in _IDLE:
                    ran.setdefault(attempt.rdd_ids, []).append(attempt)  # the same in every job
        again = {rdds: attempts for rdds, attempts in ran.items() if len(attempts) > 1}
        cached = self._store.cached_rdds() if again else set()
        for rdds, attempts in again.items():
            stages = {attempt.stage_id for attempt in attempts}
            reads = any(attempt.shuffle_read_records for attempt in attempts)
            keeps = any(attempt.shuffle_write_records for attempt in attempts) or not cached.isdisjoint(rdds)
            if keeps and (reads or len(stages) > 1):
                self._mixed = _MIXED.format(stage=max(stages))
                raise FatalError(self._mixed)
        for attempts in again.values():
            if attempts[0].stage_id in own and not any(attempt.shuffle_write_records for attempt in attempts):
                raise RetriableError(f"stage {attempts[0].stage_id} was run again (attempt {len(attempts) - 1})")


_MIXED: Final = (
    "Spark ran stage {stage} again, because it lost some of that stage's output (an executor died, for example). The new "
    "output may not fit what is left of the old one, so rows could be missing or doubled. Nothing of the batch is decided or "
    "visible. Restart the query: it computes the whole batch anew. A retry without a restart would use the same shuffle files"
)


def _unreported(what: str) -> FatalError:
    return FatalError(
        f"Spark's status store does not have {what}. So it cannot be checked whether a stage ran twice and mixed the rows of two "
        "shuffles. Nothing of the batch is decided or visible. Spark kept too few jobs and stages, or its listener bus dropped "
        "events (Spark's log says so). Raise spark.ui.retainedJobs, spark.ui.retainedStages (default: 1000 each) and "
        "spark.scheduler.listenerbus.eventqueue.capacity (default: 10000), and restart the query"
    )
