"""Find the stages that an application's jobs have run. Every job counts, because any job may fill a cache at any time.

A search by job group, thread or tag would miss some jobs, because users set groups and tags, and a cache may be older than
the query. Only Spark assigns numbers to jobs and RDDs. A later job has a higher number than an earlier job, and a later RDD has a
higher number than an earlier RDD.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import structs

from twopc.integration.spark.computed_rdds import ComputedRdds
from twopc.integration.spark.number_ranges import NumberRanges
from twopc.integration.spark.reports import BEGINNING, Moment
from twopc.integration.spark.unbegun import Unbegun
from twopc.integration.spark.watched_clock import WatchedClock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from twopc.integration.spark.reports import Job, Reports, StageAttempt

FoundT = TypeVar("FoundT")

#: How long Spark's report of a job's start may lag behind the report of a later job. A stage's report may lag behind its job's
#: report by the same time.
_LATE_S: Final = 1.0
_POLL_S: Final = 0.01
_MAX_MOMENTS: Final = 4096
#: The maximum number of ranges of examined jobs. The jobs between older ranges were never examined, and Spark has long
#: forgotten them. So nothing that needs the older jobs could be checked anyway.
_MAX_RANGES: Final = 10_000


#: The advice if a batch reads an RDD that is older than a history's first moment.
_OLDER: Final = (
    "The batch reads RDD {rdd} from a cache or from shuffle files, and this RDD was created before the toolkit began "
    "to record Spark's jobs. If the RDD is a cached table, a restart alone does not help. First unpersist the table "
    "(UNCACHE TABLE), and cache it again, or cache it in the foreachBatch function. "
)

#: The advice if the history contains a later moment. Rows that are cached again are newer than the missing job or
#: stage.
_CACHED: Final = (
    "If the batch reads cached tables, first unpersist them (UNCACHE TABLE), and cache them again. A restart alone does "
    "not help if the tables are older than the missing entry. "
)


class UnreportedError(Exception):
    """A job or a stage is missing from Spark's status store.

    Args:
        what: the job or the stage.
        advice: what to do before a restart, as a sentence that is followed by a space.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what)
        self.advice = advice


class JobHistory:
    """Remembers which stages an application's jobs have run for each RDD. Each job is examined once.

    Args:
        store: Spark's reports about jobs and stages.

    Attributes:
        computed: the stages that computed each RDD.
        lock: callers must hold this lock during a call or a series of related calls, because queries run in separate threads.
    """

    def __init__(self, store: Reports) -> None:
        self.lock = threading.RLock()
        self.store = store
        self.computed = ComputedRdds()
        self._moments = [BEGINNING]
        self._last: int | None = None  # the last job that is known to have begun
        self._examined = NumberRanges()
        self._unbegun = Unbegun(store)
        self._clock = WatchedClock()

    def begin(self, *, exactly: bool = False) -> Moment:
        """Record a moment. No earlier job has computed an RDD that is created after this moment.

        Args:
            exactly: whether to ask Spark for the next job's number, too, so that no job is examined needlessly later.
        """
        previous, known = self._moments[-1], None if exactly else self._last
        set_back_ms = self._clock.set_back_ms()  # first, so that a later change counts as later than the moment
        if known is None:
            over = self._over(previous)
            now = structs.replace(self.store.now(), over=over, set_back_ms=set_back_ms)
        else:  # no job computes RDDs that are created after its beginning, so do not ask Spark for the next job's number
            dropped = self.store.dropped()
            now = Moment(self.store.next_rdd(), max(known + 1, previous.job), dropped, previous.over, set_back_ms)
        if len(self._moments) > _MAX_MOMENTS:  # make the gaps between older moments wider
            older = self._moments[: _MAX_MOMENTS // 2]
            # In a new list, because another thread may be searching the old one.
            self._moments = [*older[:2], *older[3::2], *self._moments[_MAX_MOMENTS // 2 :]]
        self._moments.append(now)
        return now

    def _over(self, previous: Moment) -> int | None:
        newest = previous.job - 1
        if newest < 0 or newest == previous.over:
            return previous.over
        return newest if self.store.is_over(newest) else previous.over

    def before(self, rdd: int) -> Moment:
        """Return the last recorded moment before the RDD was created. No job before that moment has computed the RDD."""
        return self._moment_before(rdd, lambda moment: moment.rdd)

    def set_back_ms(self) -> float:
        """Return by how much the driver's clock was set back since this history began."""
        with self.lock:
            return self._clock.set_back_ms()

    def was_set_back_since(self, rdds: Iterable[int]) -> bool:
        """Whether the driver's clock was set back after the oldest of the RDDs was created.

        If so, the times of the stages that computed the RDDs do not show the order of these stages.
        """
        return self.set_back_ms() > self.before(min(rdds)).set_back_ms

    def is_known(self, rdds: Collection[int], own: Collection[int]) -> bool:
        """Whether all stages that may have computed any of the RDDs are known.

        Args:
            rdds: the numbers of one or more RDDs.
            own: the numbers of the run's jobs.
        """
        first = self.before(min(rdds)).job
        missing = self._examined.missing(first, max(own, default=first))
        return self.computed.are_known(rdds) and all(number in own for number in missing)

    def examine(self, rdds: Collection[int], own: Collection[int]) -> None:
        """Examine the jobs that may have computed any of the RDDs and have not been examined yet.

        Args:
            rdds: the numbers of RDDs that Spark may have kept.
            own: the jobs that are already known. A job with a higher number counts if it has begun.

        Raises:
            UnreportedError: one of these jobs, or one of a job's stages, is missing from the store.
            FatalError: this history has dropped one of the RDDs.
        """
        if not rdds:
            return
        self.computed.require_known(rdds)
        oldest = self.before(min(rdds))
        try:
            self._examine(oldest.job, own)
        except UnreportedError as error:
            # Even after a restart of the query, this history would need reports on the same jobs.
            advice = _OLDER.format(rdd=min(rdds)) if oldest is BEGINNING else _CACHED
            raise UnreportedError(str(error), advice) from None

    def _examine(self, first: int, own: Collection[int]) -> None:
        for job in self._others(self._examined.missing(first, self.store.end_of_jobs()), own):
            self.computed.record(self.stages_of(job))
            if job.is_over:
                self._examined.add(job.job_id)

    def stages_elsewhere(self, rdd: int, own: Collection[int]) -> frozenset[int]:
        """Return the stages of all other jobs that may have computed the RDD or a later RDD.

        Jobs that run at the same time share the stage that writes a common shuffle. A job counts even if it began after the
        run's jobs, or if another query's check has examined it.

        Raises:
            UnreportedError: one of these jobs is missing from the store.
        """
        numbers = range(self.before(rdd).job, self.store.end_of_jobs())
        return frozenset(stage for job in self._others(numbers, own) for stage in job.stages)

    def _others(self, numbers: Iterable[int], own: Collection[int]) -> Iterator[Job]:
        last = max(own, default=0)
        for number in numbers:
            if number not in own:
                job = self.reported(number, last) if number < last else self.store.job(number)
                if job is not None:  # None: the job begins after the run's jobs have ended, or never
                    yield job

    def stages_of(self, job: Job) -> dict[int, list[StageAttempt]]:
        """Return all attempts at each stage of a job. A skipped stage that the store has dropped has no attempts.

        If the store has too many stages, it first drops the stages that Spark skipped, even new ones
        (``AppStatusListener.cleanupStages``). The job's report still counts the dropped stages.

        Raises:
            UnreportedError: a stage is missing from the store, although Spark did not skip it.
        """
        missing: list[int] = []

        def reported() -> dict[int, list[StageAttempt]] | None:
            # Spark numbers a stage after the stages that it reads. So the first stage reads no shuffle, and every stage
            # except the last writes one. The last stage writes one only if adaptive execution runs the stage as a job.
            first, last = min(job.stages, default=0), max(job.stages, default=0)
            found = {
                stage: self._attempts(stage, may_read=stage != first, writes=True if stage != last else None)
                for stage in job.stages
            }
            missing[:] = [stage for stage, attempts in found.items() if not attempts]
            return found if not missing or self._has_skipped(job.job_id, found) else None

        return _awaited(reported, lambda: f"stage {missing[0]}")

    def _has_skipped(self, number: int, found: Mapping[int, Sequence[StageAttempt]]) -> bool:
        is_accounted_for = _has_skipped(self.store.job(number), found)
        with self.lock:  # only now, because the reports must be older than this look at the clock
            return is_accounted_for and self.set_back_ms() == self._before_job(number).set_back_ms

    def _attempts(self, stage: int, *, may_read: bool, writes: bool | None) -> list[StageAttempt]:
        last = self.store.last_attempt(stage)
        found = [last] if last is not None and last.attempt_id == 0 else self.store.attempts(stage)
        numbers = [one.attempt_id for one in found]
        if numbers != list(range(len(numbers))):
            raise UnreportedError(f"all attempts at stage {stage}")
        # Assume the worst of a stage whose report was lost.
        found = [
            structs.replace(one, shuffle_read_records=1, shuffle_write_records=1) if one.is_overwritten else one
            for one in found
        ]
        # If one attempt at the stage has read a shuffle, the others may have read empty parts of it. If none has, ask now,
        # because the store may soon forget the stage.
        is_unclear = may_read and any(one.reads_nothing for one in found)
        if is_unclear and (any(one.shuffle_read_records for one in found) or self.store.may_read(stage)):
            found = [structs.replace(one, shuffle_read_records=1) if one.reads_nothing else one for one in found]
        return [structs.replace(one, writes=writes) for one in found]

    def examined(self, jobs: Iterable[int], running: Collection[int] = ()) -> None:
        """Record that these jobs have begun. The stages are known of all jobs except those that are still running."""
        for number in jobs:
            if number not in running:
                self._examined.add(number)
            self._last = number if self._last is None else max(number, self._last)
        self._examined.keep_newest(_MAX_RANGES)

    def reported(self, number: int, last: int) -> Job | None:
        """Return a job. Return None if Spark had not begun the job when the run's jobs had ended.

        Args:
            number: the job.
            last: the last of the run's jobs.

        Raises:
            UnreportedError: the job is missing from the store, and Spark may have forgotten it.
        """
        if (job := self.store.job(number)) is not None:
            return job
        before = self._before_job(number)
        is_in_order = self.set_back_ms() <= before.set_back_ms
        with contextlib.suppress(LookupError):
            return self._unbegun.look(number, before.over, last, is_in_order=is_in_order)
        return _awaited(lambda: self.store.job(number), lambda: f"job {number}")

    def _before_job(self, number: int) -> Moment:
        """Return the last recorded moment before Spark assigned the job's number."""
        return self._moment_before(number, lambda moment: moment.job)

    def _moment_before(self, number: int, of: Callable[[Moment], int]) -> Moment:
        moments = self._moments  # another thread may replace the list
        return moments[bisect_right(moments, number, key=of) - 1]


def _has_skipped(job: Job | None, found: Mapping[int, Sequence[StageAttempt]]) -> bool:
    """Whether Spark skipped all of the job's stages that are missing from the store, provided that no clock was set back."""
    if job is None or job.ended_ms is None:
        return False
    kept = [attempts for attempts in found.values() if attempts]
    skipped = sum(all(one.is_skipped for one in attempts) for attempts in kept)
    # If a stage was both skipped and run, here or in another job, it is unclear whether the job's count includes the stage.
    ran = sum(all(_ran_before(job.ended_ms, one) for one in attempts) for attempts in kept)
    return skipped + ran == len(kept) and job.skipped == len(found) - len(kept) + skipped


def _ran_before(ended_ms: int, attempt: StageAttempt) -> bool:
    return attempt.has_run and not attempt.is_overwritten and (attempt.submission_time or 0) < ended_ms


def _awaited(look: Callable[[], FoundT | None], what: Callable[[], str]) -> FoundT:
    """Wait until the store has an entry. Spark records a new job before its stages (``AppStatusListener.onJobStart``)."""
    deadline = time.monotonic() + _LATE_S
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise UnreportedError(what())
        time.sleep(_POLL_S)
    return found
