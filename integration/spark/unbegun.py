"""Recognize jobs that have received a number, but that Spark has not begun.

Spark reports a job when the job begins. A barrier job may wait for free slots before that, and Spark rejects some jobs before
they begin, so Spark may never report a number (``DAGScheduler.handleJobSubmitted``). But the status store may also have
forgotten the job, and then the job may have computed anything.

The store forgets a job only if it contains more than ``spark.ui.retainedJobs`` jobs. It forgets the jobs that ended first
(``AppStatusListener.cleanupJobs``). So if the store still contains a job that ended earlier (the *witness*), it has not
forgotten a job that ended later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twopc.integration.spark.reports import Job, Reports


class Unbegun:
    """Proves that Spark has not begun a job.

    Args:
        store: Spark's reports about jobs.
    """

    def __init__(self, store: Reports) -> None:
        self._store = store
        self._witnesses: dict[int, int] = {}  # by job number: a job that was over before that job began

    def look(self, number: int, witness: int | None, last: int, *, is_in_order: bool = True) -> Job | None:
        """Return a job, or None if Spark has not begun the job. The job may still begin later.

        Args:
            number: the job.
            witness: a job that was over before Spark assigned the number; None if unknown.
            last: a job that is probably over. If the job is over, it becomes the witness for the next call with this number.
            is_in_order: whether the times at which the jobs ended show their order. If not, a witness proves nothing.

        Raises:
            LookupError: Spark may have forgotten the job.
        """
        # Keep this order, because a witness must be over before the job is found to be missing, and must still be
        # stored afterward.
        is_over = self._store.is_over(last)
        if (job := self._store.job(number)) is not None:
            return job
        is_proven = is_in_order and self._contains(self._witnesses.get(number, witness))
        if not is_proven and not self._is_complete():
            raise LookupError(f"job {number}")
        if is_over:
            self._witnesses[number] = last
        return None

    def _is_complete(self) -> bool:
        return self._store.end_of_jobs() <= self._store.retained_jobs()

    def _contains(self, witness: int | None) -> bool:
        return witness is not None and self._store.job(witness) is not None
