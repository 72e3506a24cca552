"""Read Spark's reports about its jobs and stages."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs
from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext


class Job(msgspec.Struct, frozen=True):
    """A Spark job, as the status store reports it.

    Attributes:
        is_over: whether Spark has reported the job's end. Spark has then sent all earlier reports, too.
        skipped: how many of the job's stages Spark skipped; 0 while the job runs.
        ended_ms: when the job ended, in milliseconds since 1970; None while the job runs.
    """

    job_id: int
    stages: tuple[int, ...]
    is_over: bool
    skipped: int = 0
    ended_ms: int | None = None


class StageAttempt(msgspec.Struct, frozen=True, rename="camel"):
    """A stage attempt, with the fields of Spark's ``StageData`` that the check needs (``status/api/v1/api.scala``).

    Attributes:
        rdd_ids: the RDDs that the stage's tasks compute or read from a cache. In every job, a shuffle's stage has the same
            RDDs.
        submission_time: when the attempt began, in milliseconds since 1970; None if the attempt did not begin.
        completion_time: when the attempt succeeded or failed, in milliseconds since 1970; None if the attempt has not ended.
    """

    status: str
    stage_id: int
    attempt_id: int
    rdd_ids: tuple[int, ...]
    shuffle_read_records: int
    shuffle_write_records: int
    submission_time: int | None = None
    num_tasks: int = 1
    completion_time: int | None = None

    @property
    def has_run(self) -> bool:
        """Whether any of the stage's tasks have run. A job skips a stage if an earlier job has left the stage's output.

        Spark sets ``submission_time`` only for a stage that has tasks to run (``DAGScheduler.submitMissingTasks``).
        """
        return self.status not in _IDLE or self.submission_time is not None

    @property
    def is_skipped(self) -> bool:
        """Whether Spark skipped the stage in a job that is over."""
        return self.status == "SKIPPED" and not self.has_run

    @property
    def is_overwritten(self) -> bool:
        """Whether the stage has run, but Spark has overwritten the stage's report.

        If a new job shares the stage with a running job, Spark reports the stage as new (``AppStatusListener.onJobStart``).
        """
        return self.status in _IDLE and self.has_run

    @property
    def is_written(self) -> bool:
        """Whether the stage writes a shuffle. Spark skips only stages that write shuffles."""
        return not self.has_run or self.shuffle_write_records > 0


class Moment(msgspec.Struct, frozen=True):
    """A moment in an application's life, described by the numbers that Spark will assign next.

    A job whose number is lower than ``job`` was submitted before this moment, so it has not computed ``rdd`` or any later
    RDD.
    """

    rdd: int
    job: int


#: Spark's status for a stage that has not run any tasks.
_IDLE: Final = frozenset({"PENDING", "SKIPPED"})
#: The moment before the application began.
BEGINNING: Final = Moment(0, 0)


class _JobData(msgspec.Struct, frozen=True, rename="camel"):
    stage_ids: tuple[int, ...]
    status: str
    num_tasks: int
    num_completed_indices: int
    num_skipped_tasks: int
    num_skipped_stages: int
    completion_time: int | None = None


class StatusStore:
    """Reads Spark's status store, which the listener bus fills in order. Every method makes several calls to the JVM."""

    def __init__(self, context: SparkContext) -> None:
        # PySpark's public StatusTracker supports neither tags nor the number of rows that a stage read.
        java: Any = context._jsc  # noqa: SLF001 - see above
        gateway: Any = context._gateway  # noqa: SLF001 - the same
        self._gateway = gateway
        self._spark = java.sc()
        self._tags, self._store = self._spark.statusTracker(), self._spark.statusStore()
        self._scheduler = self._spark.dagScheduler()
        self._arrays = gateway.jvm.java.util.Arrays  # looking up a class takes several calls
        self._context, self._nothing = context, java.emptyRDD()

    def mark(self, tag: str) -> None:
        """Run a job with this tag and without tasks. Spark reports this job after all jobs that ended earlier."""
        self._context.addJobTag(tag)
        try:
            self._nothing.count()
        finally:
            self._context.removeJobTag(tag)

    def end_of_jobs(self) -> int:
        """Return the number that the next job will get."""
        return int(self._scheduler.numTotalJobs())

    def jobs_with_tag(self, tag: str) -> list[Job]:
        """Return the jobs that have the tag."""
        # Make one call for all numbers, because py4j reads an array with one call per element.
        numbers: list[int] = json.loads(self._arrays.toString(self._tags.getJobIdsForTag(tag)))
        return [self.job(number) or Job(number, (), is_over=False) for number in sorted(numbers)]

    def now(self) -> Moment:
        """Return the current moment, and use up an RDD number."""
        # In this order, a job that is submitted between the two calls is treated as later than the moment, which is safe.
        job = self.end_of_jobs()
        return Moment(self.next_rdd(), job)

    def next_rdd(self) -> int:
        """Return the number that the next RDD would get, and use it up."""
        return int(self._spark.newRddId())

    def job(self, number: int) -> Job | None:
        """Return the application's job with this number, or None if the store does not have the job."""
        try:
            data = self._store.job(number)
        except Py4JError:
            return None
        # As JSON, because that takes a single call instead of one per field.
        job = msgspec.json.decode(self._json.writeValueAsString(data), type=_JobData)
        missing = job.num_tasks - job.num_completed_indices - job.num_skipped_tasks
        is_over = missing <= 0 or job.status != "RUNNING"
        return Job(number, job.stage_ids, is_over, job.num_skipped_stages, job.completion_time)

    def last_attempt(self, stage: int) -> StageAttempt | None:
        """Return a stage's last attempt, or None if the store does not have the stage."""
        try:
            data = self._store.lastStageAttempt(stage)
        except Py4JError:
            return None
        return msgspec.json.decode(self._json.writeValueAsString(data), type=StageAttempt)

    def attempts(self, stage: int) -> list[StageAttempt]:
        """Return all attempts at a stage. Return [] if the store has no attempts."""
        jvm = self._gateway.jvm
        no_tasks, no_quantiles = jvm.java.util.Collections.emptyList(), self._gateway.new_array(jvm.double, 0)
        try:
            found = self._store.stageData(stage, False, no_tasks, False, no_quantiles)  # noqa: FBT003 - Scala's
            return msgspec.json.decode(self._json.writeValueAsString(found), type=list[StageAttempt])
        except (Py4JError, msgspec.ValidationError):  # from another release of Spark: assume the worst
            last = self.last_attempt(stage)
            worst = [] if last is None else [structs.replace(last, shuffle_read_records=1, shuffle_write_records=1)]
            return [structs.replace(one, attempt_id=number) for one in worst for number in range(one.attempt_id + 1)]

    def cached_rdds(self) -> set[int]:
        """Return the ids of the RDDs that are or will be cached."""
        found = self._store.rddList(False)  # noqa: FBT003 - not only cached ones
        return {found.apply(index).id() for index in range(found.size())}

    @cached_property
    def _json(self) -> Any:
        jackson = self._gateway.jvm.com.fasterxml.jackson
        mapper = jackson.databind.ObjectMapper()
        mapper.registerModule(jackson.module.scala.DefaultScalaModule())
        return mapper
