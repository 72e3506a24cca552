"""Check the jobs that may have computed a batch's broadcast tables or subquery results before an attempt began.

Spark runs these jobs when it plans the batch, or for the user's own code. It does not report which plan a job is for.
So every other job since Spark planned the batch counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.integration.spark.mixed_rows import OwnStages, in_several, judge
from twopc.integration.spark.number_ranges import NumberRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from twopc.integration.spark.job_history import JobHistory
    from twopc.integration.spark.reports import Job, StageAttempt


class OutsideJobs:
    """The jobs of an application that do not belong to one run's attempts.

    Args:
        history: the history of the application's jobs.
        first: the first job that may belong to the run's first batch.
        is_merged: see :class:`~twopc.integration.spark.mixed_rows.OwnStages`.
    """

    def __init__(self, history: JobHistory, first: int = 0, *, is_merged: bool = False) -> None:
        self._history = history
        self._is_merged = is_merged
        self._first = first
        self._ours = NumberRanges()

    def leave_out(self, number: int) -> None:
        """Record that a job belongs to one of the run's attempts."""
        self._ours.add(number)

    def require_unmixed(self, end: int, kept_since_ms: Callable[[], float | None]) -> None:
        """Check the jobs before an attempt's last job.

        Args:
            end: the attempt's last job.
            kept_since_ms: see :meth:`~twopc.integration.spark.mode.ShuffleCheck.check`.

        Raises:
            FatalError: one of the jobs may have mixed rows from two writes of a shuffle.
            UnreportedError: one of the jobs, or one of a job's stages, is missing from the store.
        """
        if next(self._others(end), None) is None or (since_ms := kept_since_ms()) is None:
            return
        history = self._history
        # If the clock was set back after Spark had planned the batch, a later job may have an earlier time.
        jobs = list(self._since(since_ms - history.set_back_ms(), end))
        succeeded = [job for job in jobs if not job.has_failed]
        attempts = self._attempts_of(succeeded)
        if attempts:
            attempts = self._written_for(attempts, [job for job in jobs if job.has_failed]) | attempts
        last = {stage: found[-1] for stage, found in attempts.items()}
        ran = [one for _, found in sorted(attempts.items()) for one in found if one.has_run]
        stages = OwnStages(last, (), in_several(succeeded), self._is_merged)
        judge(stages, ran, (), history.store.cached_rdds, history.was_set_back_since)

    def _attempts_of(self, jobs: Iterable[Job]) -> dict[int, list[StageAttempt]]:
        return {stage: found for job in jobs for stage, found in self._history.stages_of(job).items() if found}

    def _written_for(
        self, attempts: Mapping[int, Sequence[StageAttempt]], failed: Iterable[Job]
    ) -> dict[int, list[StageAttempt]]:
        """Return the writes of failed jobs to the shuffles of these stages. Spark keeps nothing else of a failed job."""
        rdds = {found[-1].rdd_ids[0] for found in attempts.values()}
        return {
            stage: found
            for stage, found in self._attempts_of(failed).items()
            if found[-1].rdd_ids[0] in rdds and any(one.has_run and one.is_written for one in found)
        }

    def pass_over(self, end: int) -> None:
        """Record that no batch after the checked attempt's batch needs the jobs before the job ``end``."""
        self._first = max(end, self._first)
        self._ours.drop_before(self._first)
        self._history.store.forget_markers(self._first)

    def _others(self, end: int) -> Iterator[int]:
        """Yield the numbers of the other jobs, from the last to the first."""
        markers = self._history.store.markers
        numbers = range(end - 1, self._first - 1, -1)
        return (number for number in numbers if number not in self._ours and number not in markers)

    def _since(self, since_ms: float, end: int) -> Iterator[Job]:
        for number in self._others(end):
            job = self._history.reported(number, end)
            if job is None:
                continue  # a job that has not begun has computed nothing
            if job.began_ms is not None and job.began_ms < since_ms:
                return  # Spark begins its jobs in the order of their numbers
            yield job
