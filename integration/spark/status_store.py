"""Read Spark's reports about its jobs and stages from the status store in the driver's JVM."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import structs
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from twopc.errors import UnavailableError
from twopc.integration.spark.java_errors import JAVA_ERRORS, is_java_error
from twopc.integration.spark.reports import RETAINED_BY_DEFAULT, RETAINED_JOBS, Job, JobData, Moment, StageAttempt
from twopc.integration.spark.stage_graph import GraphData

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark import SparkContext

#: Spark's counter of the events dropped from the queue whose listener fills the status store (``AsyncEventQueue``).
_DROPPED: Final = "queue.appStatus.numDroppedEvents"
#: Spark's error if the store does not contain an entry. Some releases raise a subclass, whose name also ends with this
#: string.
_ABSENT: Final = "NoSuchElementException"

FoundT = TypeVar("FoundT")


class StatusStore:
    """Reads Spark's status store, which the listener bus fills in order. Every method makes several calls to the JVM."""

    def __init__(self, context: SparkContext) -> None:
        # PySpark's public StatusTracker supports neither tags nor the number of rows that a stage read.
        java: Any = context._jsc  # noqa: SLF001 - see above
        gateway: Any = context._gateway  # noqa: SLF001 - see above
        self._gateway = gateway
        self._spark = java.sc()
        self._tags, self._store = self._spark.statusTracker(), self._spark.statusStore()
        self._scheduler = self._spark.dagScheduler()
        self._arrays = gateway.jvm.java.util.Arrays  # looking up a class takes several calls
        self._context, self._nothing = context, java.emptyRDD()
        self.markers = ()

    def forget_markers(self, before: int) -> None:
        """Do nothing, because there are no markers."""

    def mark(self, tag: str) -> None:
        """Run a job that has this tag and no tasks. Spark reports this job after all jobs that ended earlier."""
        self._context.addJobTag(tag)
        try:
            self._nothing.count()
        finally:
            self._context.removeJobTag(tag)

    def end_of_jobs(self) -> int:
        """Return the number that the next job will receive."""
        return int(self._scheduler.numTotalJobs())

    def retained_jobs(self) -> int:
        """Return how many jobs the store can hold before it forgets any."""
        return int(self._context.getConf().get(RETAINED_JOBS) or RETAINED_BY_DEFAULT)

    def jobs_with_tag(self, tag: str) -> list[Job]:
        """Return the jobs that have the tag."""
        # Read all numbers in a single call, because py4j would read an array with one call per element.
        numbers: list[int] = json.loads(self._arrays.toString(self._tags.getJobIdsForTag(tag)))
        return [self.job(number) or Job(number, (), is_over=False) for number in sorted(numbers)]

    def now(self) -> Moment:
        """Return the current :class:`Moment`. Each call uses up an RDD number."""
        # Keep this order: a job or a drop between the calls then counts as later than the moment, which is safe.
        dropped, job = self.dropped(), self.end_of_jobs()
        return Moment(self.next_rdd(), job, dropped)

    def next_rdd(self) -> int:
        """Return the number that the next RDD would receive. Each call uses up that number."""
        return int(self._spark.newRddId())

    def job(self, number: int) -> Job | None:
        """Return the application's job with this number, or None if the store does not contain the job.

        Raises:
            UnavailableError: the store could not be read.
        """
        data = _if_reported(lambda: self._store.job(number))
        if data is None:
            return None
        # Read the report as JSON, which takes a single call instead of one call per field.
        return msgspec.json.decode(self._json.writeValueAsString(data), type=JobData).job

    def is_over(self, number: int) -> bool:
        """Whether the store shows that the job has ended."""
        job = self.job(number)
        return job is not None and job.is_over

    def last_attempt(self, stage: int) -> StageAttempt | None:
        """Return a stage's last attempt, or None if the store does not contain the stage.

        Raises:
            UnavailableError: the store could not be read.
        """
        data = _if_reported(lambda: self._store.lastStageAttempt(stage))
        if data is None:
            return None
        return msgspec.json.decode(self._json.writeValueAsString(data), type=StageAttempt)

    def attempts(self, stage: int) -> list[StageAttempt]:
        """Return all attempts at a stage. Return [] if the store contains no attempts."""
        jvm = self._gateway.jvm
        no_tasks, no_quantiles = jvm.java.util.Collections.emptyList(), self._gateway.new_array(jvm.double, 0)
        try:
            found = self._store.stageData(stage, False, no_tasks, False, no_quantiles)  # noqa: FBT003 - parameters of a Scala method
            return msgspec.json.decode(self._json.writeValueAsString(found), type=list[StageAttempt])
        except (Py4JError, PySparkException, msgspec.ValidationError):
            # The report is from another release of Spark: assume the worst.
            last = self.last_attempt(stage)
            worst = [] if last is None else [structs.replace(last, shuffle_read_records=1, shuffle_write_records=1)]
            return [structs.replace(one, attempt_id=number) for one in worst for number in range(one.attempt_id + 1)]

    def may_read(self, stage: int) -> bool:
        """See :class:`~twopc.integration.spark.reports.Reports`.

        Raises:
            UnavailableError: the store could not be read.
        """
        try:
            found = _if_reported(lambda: self._store.operationGraphForStage(stage))
            if found is None:
                return True
            data = msgspec.json.decode(self._json.writeValueAsString(found), type=GraphData)
        except (Py4JError, PySparkException, msgspec.ValidationError):
            return True  # the report is from another release of Spark: assume the worst
        return data.graph.may_read(self._level_of)

    def _level_of(self, rdd: int) -> str | None:
        found = _if_reported(lambda: self._store.rdd(rdd))
        return None if found is None else str(found.storageLevel())

    def cached_rdds(self, among: Collection[int]) -> set[int]:
        """Return the RDDs in ``among`` that are cached or will be cached."""
        found = self._store.rddList(False)  # noqa: FBT003 - include RDDs that are not cached
        return {found.apply(index).id() for index in range(found.size())}.intersection(among)

    def dropped(self) -> int:
        """Return how many reports Spark has dropped from full queues since the application began."""
        return int(self._dropped.getCount())

    @cached_property
    def _dropped(self) -> Any:
        return self._spark.listenerBus().metrics().metricRegistry().counter(_DROPPED)

    @cached_property
    def _json(self) -> Any:
        jackson = self._gateway.jvm.com.fasterxml.jackson
        mapper = jackson.databind.ObjectMapper()
        mapper.registerModule(jackson.module.scala.DefaultScalaModule())
        return mapper


def _if_reported(look_up: Callable[[], FoundT]) -> FoundT | None:
    """Return an entry, or None if Spark says that the store does not contain the entry. Any other error proves nothing."""
    try:
        return look_up()
    except JAVA_ERRORS as error:
        if is_java_error(error, _ABSENT):
            return None
        cause = getattr(error, "java_exception", error)  # py4j's own message includes the full stack trace
        raise UnavailableError(
            f"Spark's status store could not be read ({cause}). So the toolkit cannot check whether a "
            "stage ran twice and mixed the rows of two shuffles. No part of this attempt is decided or visible. If this "
            "happens again, look for the cause in the log of Spark's driver"
        ) from error
