"""Define what Spark reports about its jobs and stages, and the interface for reading these reports.

In a classic session, the driver reads the reports in the JVM. Under Spark Connect, the driver reads the reports from Spark's
UI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection


class Job(msgspec.Struct, frozen=True):
    """A Spark job, as the status store reports it.

    Attributes:
        is_over: whether Spark has reported the job's end. If so, Spark has also sent all earlier reports.
        skipped: how many of the job's stages Spark skipped; 0 while the job runs.
        ended_ms: when the job ended, in milliseconds since 1970; None while the job runs.
        began_ms: when the job began, in milliseconds since 1970; None if Spark has not recorded the time.
        has_failed: whether the job failed or was canceled.
    """

    job_id: int
    stages: tuple[int, ...]
    is_over: bool
    skipped: int = 0
    ended_ms: int | None = None
    began_ms: int | None = None
    has_failed: bool = False


class StageAttempt(msgspec.Struct, frozen=True, rename="camel"):
    """A stage attempt, with the fields of Spark's ``StageData`` that the check needs (``status/api/v1/api.scala``).

    Attributes:
        rdd_ids: the RDDs that the stage's tasks compute or read from a cache. A shuffle's stage has the same RDDs in every
            job.
        submission_time: when the attempt began, in milliseconds since 1970; None if the attempt did not begin.
        num_tasks: how many tasks the attempt has. Output that exists already needs no task.
        completion_time: when the attempt succeeded or failed, in milliseconds since 1970; None if the attempt has not ended.
        num_complete_tasks: how many tasks have succeeded. A task that succeeded twice counts twice.
        writes: whether the stage writes a shuffle of its own RDD's rows; None if only the number of records may show it. Spark
            does not report this, but the stage's job shows it.
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
    num_complete_tasks: int = 0
    writes: bool | None = None

    @property
    def has_run(self) -> bool:
        """Whether any of the stage's tasks have run. A job skips a stage whose output already exists.

        Spark sets ``submission_time`` only for a stage that has tasks to run (``DAGScheduler.submitMissingTasks``).
        """
        return self.status not in _IDLE or self.submission_time is not None

    @property
    def left_nothing(self) -> bool:
        """Whether the attempt failed before any of its tasks succeeded. Spark then keeps none of its output."""
        return self.status == "FAILED" and not self.num_complete_tasks and not self.shuffle_write_records

    @property
    def is_skipped(self) -> bool:
        """Whether Spark skipped the stage in a job that has ended."""
        return self.status == "SKIPPED" and not self.has_run

    @property
    def is_overwritten(self) -> bool:
        """Whether the stage has run, but Spark has overwritten the stage's report.

        If a new job shares the stage with a running job, Spark reports the stage as new (``AppStatusListener.onJobStart``).
        """
        return self.status in _IDLE and self.has_run

    @property
    def reads_nothing(self) -> bool:
        """Whether the stage has run and, according to its report, has read no records of a shuffle."""
        return self.has_run and not self.shuffle_read_records

    @property
    def is_written(self) -> bool:
        """Whether the stage certainly writes a shuffle, even if without rows. Spark skips only stages that write shuffles."""
        return not self.has_run or self.shuffle_write_records > 0 or self.writes is True


class Moment(msgspec.Struct, frozen=True):
    """A moment in an application's life, described by the numbers that Spark will assign next.

    A job whose number is lower than ``job`` was submitted before this moment, so it has not computed ``rdd`` or any later
    RDD.

    Attributes:
        dropped: how many reports Spark had dropped before this moment.
        over: a job that Spark had reported as over before this moment; None if unknown.
        set_back_ms: by how much the driver's clock had been set back before this moment, as far as the history knows.
    """

    rdd: int
    job: int
    dropped: int = 0
    over: int | None = None
    set_back_ms: float = 0.0


#: Spark's status for a stage that has not run any tasks.
_IDLE: Final = frozenset({"PENDING", "SKIPPED"})
#: The setting for the number of jobs that Spark's status store keeps, and its default.
RETAINED_JOBS: Final = "spark.ui.retainedJobs"
RETAINED_BY_DEFAULT: Final = 1000
#: The moment before the application began.
BEGINNING: Final = Moment(0, 0)


class JobData(msgspec.Struct, frozen=True, rename="camel"):
    """A job, with the fields of Spark's ``JobData`` that the check needs (``status/api/v1/api.scala``).

    Attributes:
        completion_time: when the job ended, in milliseconds since 1970; None while the job runs.
        submission_time: when the job began, in milliseconds since 1970.
    """

    job_id: int
    stage_ids: tuple[int, ...]
    status: str
    num_skipped_stages: int
    completion_time: int | None = None
    submission_time: int | None = None
    job_tags: tuple[str, ...] = ()

    @property
    def job(self) -> Job:
        """The job, as the check of rule 6 needs it."""
        # After its last task has ended, a job is still RUNNING until Spark has also reported the stage's final counts.
        is_over = self.status != "RUNNING"
        return Job(
            self.job_id,
            self.stage_ids,
            is_over,
            self.num_skipped_stages,
            self.completion_time,
            self.submission_time,
            self.status == "FAILED",
        )


class Reports(Protocol):
    """Spark's reports. Spark's listener bus stores each report after all earlier reports.

    The exception is a report that Spark drops because the bus's queue is full (``AsyncEventQueue.post``).
    """

    @property
    def markers(self) -> Collection[int]:
        """The marker jobs, which the reports themselves needed, except the forgotten ones."""

    def forget_markers(self, before: int) -> None:
        """Forget the markers with numbers below ``before``."""

    def mark(self, tag: str) -> None:
        """Run a job with this tag. Spark reports this job after all jobs that ended earlier."""

    def end_of_jobs(self) -> int:
        """Return a number that is higher than the number of any reported job."""

    def retained_jobs(self) -> int:
        """Return how many jobs Spark's status store can hold before it forgets any."""

    def jobs_with_tag(self, tag: str) -> list[Job]:
        """Return the jobs that have the tag."""

    def now(self) -> Moment:
        """Return the current moment, and use up an RDD number."""

    def next_rdd(self) -> int:
        """Return a number that is higher than every earlier RDD's number and lower than every later RDD's number.

        Each call uses up an RDD number.
        """

    def job(self, number: int) -> Job | None:
        """Return the application's job with this number, or None if Spark does not report the job."""

    def is_over(self, number: int) -> bool:
        """Whether Spark reports that the job has ended. False if Spark does not report the job."""

    def last_attempt(self, stage: int) -> StageAttempt | None:
        """Return a stage's last attempt, or None if Spark does not report the stage."""

    def attempts(self, stage: int) -> list[StageAttempt]:
        """Return all attempts at a stage, in order. Return [] if Spark reports no attempts."""

    def may_read(self, stage: int) -> bool:
        """Whether a stage may have read a shuffle although its report shows no record; see :mod:`stage_graph`.

        True if unknown.
        """

    def cached_rdds(self, among: Collection[int]) -> set[int]:
        """Of these RDDs, return those that are cached or will be cached."""

    def dropped(self) -> int:
        """Return how many reports Spark has dropped since the application began, because a queue was full."""
