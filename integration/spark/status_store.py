"""What Spark has reported of its jobs and stages."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext


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
