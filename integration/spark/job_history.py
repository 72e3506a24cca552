"""Find the stages that an application's jobs have run, whoever started them, because any job may fill a cache at any time.

A job group, a thread or a tag would miss some, because users set them and a cache may be older than the query. The numbers
that Spark assigns to jobs and RDDs cannot be set. A job has a higher number than all that were submitted before it, and so has
an RDD.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar

from twopc.integration.spark.status_store import BEGINNING, Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from twopc.integration.spark.status_store import Job, StageAttempt, StatusStore

FoundT = TypeVar("FoundT")

#: How long the report of a job's beginning may lag behind that of a job with a higher number, and a stage's behind its job's.
_LATE_S: Final = 1.0
_POLL_S: Final = 0.01
#: The number of RDDs whose stages are remembered, and of moments.
_MAX_RDDS: Final = 100_000
_MAX_MOMENTS: Final = 64


class UnreportedError(Exception):
    """Spark's status store lacks a job or stage; the argument names it."""


class JobHistory:
    """The stages that the examined jobs have run, by RDD. Examines a job once.

    Args:
        store: Spark's reports.
        since: a moment before the run. Any job of the application may have computed older RDDs.
    """

    def __init__(self, store: StatusStore, since: Moment) -> None:
        self._store = store
        self._moments = [BEGINNING, since]
        self._stages: OrderedDict[int, dict[tuple[int, int], StageAttempt]] = OrderedDict()  # by RDD
        self._last: int | None = None  # the last job that is known to be over
        self._first = self._next = 0  # all jobs between these are examined
        self._beyond: set[int] = set()  # examined jobs with higher numbers

    def begin(self) -> Moment:
        """Record a moment: no earlier job has computed RDDs that are created later."""
        # No finished job has computed RDDs that are created later, so that needs no call.
        now = self._store.now() if self._last is None else Moment(self._store.next_rdd(), self._last + 1)
        if len(self._moments) > _MAX_MOMENTS:
            del self._moments[2]  # the oldest except for the two that are always needed
        self._moments.append(now)
        return now

    def first_job(self, rdd: int) -> int:
        """The first job that may have computed the RDD."""
        return next(moment.job for moment in reversed(self._moments) if moment.rdd <= rdd)

    def is_known(self, first: int, own: Collection[int]) -> bool:
        """Whether every job from ``first`` to the run's last one is the run's own or has been examined."""
        numbers = range(first, max(own, default=first))
        return all(number in own or self._is_examined(number) for number in numbers)

    def examine(self, first: int, own: Collection[int]) -> frozenset[int]:
        """Examine the jobs from ``first`` on that have not been examined yet.

        Args:
            first: the number of the first job that matters.
            own: the jobs that are known already. Jobs with higher numbers count if they have begun.

        Returns:
            their stages. Jobs that run at the same time share the stage that writes a common shuffle.

        Raises:
            UnreportedError: the store lacks one of them, or one of its stages.
        """
        last, stages = max(own, default=first), set[int]()
        for number in range(first, self._store.end_of_jobs()):
            if number in own or self._is_examined(number):
                continue
            job = self._reported(number) if number < last else self._store.job(number)
            if job is None:
                continue  # it began after the run's own jobs were over
            stages.update(job.stages)
            for stage in job.stages:
                self.record(self.attempts(stage))
            if job.is_over:
                self._beyond.add(number)
        if not self._first <= first <= self._next:
            self._first = self._next = first
        self._first = min(self._first, first)
        self._join()
        return frozenset(stages)

    def attempts(self, stage: int) -> list[StageAttempt]:
        """All attempts at a stage.

        Raises:
            UnreportedError: the store does not have the stage.
        """

        def reported() -> list[StageAttempt]:
            last = self._store.last_attempt(stage)
            return [last] if last is not None and last.attempt_id == 0 else self._store.attempts(stage)

        return _awaited(reported, f"stage {stage}")

    def record(self, attempts: Iterable[StageAttempt]) -> None:
        """Remember the stages that have run."""
        for attempt in attempts:
            if attempt.has_run:
                for rdd in attempt.rdd_ids:
                    self._stages.setdefault(rdd, {})[attempt.stage_id, attempt.attempt_id] = attempt
        while len(self._stages) > _MAX_RDDS:
            self._stages.popitem(last=False)

    def examined(self, jobs: Iterable[int]) -> None:
        """Record that these jobs are over and that their stages are known."""
        self._beyond.update(jobs)
        self._last = max(self._beyond, default=self._last)
        self._join()
        while len(self._beyond) > _MAX_RDDS:
            self._beyond.remove(min(self._beyond))

    def of(self, rdds: Iterable[int]) -> list[StageAttempt]:
        """The attempts of examined jobs that computed any of the RDDs, in the order of their stages."""
        found: dict[tuple[int, int], StageAttempt] = {}
        for rdd in rdds:
            if rdd in self._stages:
                self._stages.move_to_end(rdd)
                found |= self._stages[rdd]
        return [found[key] for key in sorted(found)]

    def _is_examined(self, number: int) -> bool:
        return self._first <= number < self._next or number in self._beyond

    def _join(self) -> None:
        while self._next in self._beyond:
            self._beyond.remove(self._next)
            self._next += 1

    def _reported(self, number: int) -> Job:
        return _awaited(lambda: self._store.job(number), f"job {number}")


def _awaited(look: Callable[[], FoundT | None], what: str) -> FoundT:
    """Look until the store has it. Spark enters a job that begins before its stages (``AppStatusListener.onJobStart``)."""
    deadline = time.monotonic() + _LATE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise UnreportedError(what)
        time.sleep(_POLL_S)
    return found
