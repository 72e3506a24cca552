"""Rule 6: a batch is decided only if all of its rows come from the same shuffles.

Spark runs a stage again for the output that it has lost, with an executor for example. If the plan is not deterministic, the
rows that later stages have read before and those that they read afterwards belong to two different shuffles.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.errors import FatalError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from integration.spark.status_store import Job, StageAttempt, StatusStore

#: How long Spark's listener bus, which reports jobs and stages, may lag behind the job.
_STATUS_TIMEOUT_S: Final = 30.0
_STATUS_POLL_S: Final = 0.002
#: What the tag of an attempt's marks ends with.
_MARK: Final = "-end"
_IDLE: Final = frozenset({"PENDING", "SKIPPED"})


@dataclass(frozen=True)
class _Seen:
    """What is reported of an attempt.

    Attributes:
        jobs: with its tag.
        marks: the job behind them; none if nobody has looked beside.
        ran_once: whether no stage of the jobs ran more than once.
    """

    jobs: Sequence[Job]
    marks: Sequence[Job]
    ran_once: bool


def _has_ended(jobs: Iterable[Job], results: Collection[int]) -> bool:
    return set(results) <= {stage for job in jobs if job.is_over for stage in job.stages}


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
        self._numbers = itertools.count()
        self._looked: tuple[str, Future[_Seen] | None] = ("", None)  # of the last attempt with collected rows
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
    def looking(self, tag: str) -> Iterator[None]:
        """Look at the jobs up to now while the body runs: collected rows do not say which stage they are from.

        Args:
            tag: that of the attempt's jobs.
        """
        looked = self._beside.submit(self._look, tag, f"{tag}{_MARK}{next(self._numbers)}")
        yield
        self._looked = (tag, looked)

    def check(self, tag: str, results: Collection[int]) -> None:
        """Check an attempt at a batch, after its jobs have succeeded.

        Args:
            tag: that of its jobs.
            results: the stages whose tasks have reported to the driver.

        Raises:
            RetriableError: a stage that keeps nothing ran again; a retry reads its input anew.
            FatalError: rows of two shuffles may be mixed, and kept; or Spark has not reported enough to exclude it.
        """
        of_tag, looked = self._looked
        seen = looked.result() if looked is not None and of_tag == tag else None
        if seen is None or not _has_ended(seen.jobs, results):
            jobs = self._reported(tag, results)
            seen = _Seen(jobs, () if seen is None else seen.marks, ran_once=self._ran_once(jobs))
        if not seen.ran_once or self._may_read_what_is_kept(seen.jobs):
            since = self._store.jobs_of_group(self.run_id, after=self._checked)
            if self._ran_once(since):
                self._require_written_once(since)
            else:
                self._look_closer(since, {stage for job in seen.jobs for stage in job.stages})
        self._checked = max((job.job_id for job in (*seen.jobs, *seen.marks)), default=self._checked)

    def _look(self, tag: str, mark: str) -> _Seen:
        """The jobs with the tag, once a mark behind them is reported, and so all that came before it."""
        self._store.mark(mark)
        marks = self._await(mark, bool, "the end of the job that collected the batch")
        jobs = self._store.jobs_with_tag(tag)
        return _Seen(jobs, marks, ran_once=self._ran_once(jobs))

    def _reported(self, tag: str, results: Collection[int]) -> list[Job]:
        """The jobs with the tag, once the end of those with the ``results`` is reported, and so all that came before."""
        what = f"the end of the job of stage {', '.join(map(str, sorted(results)))}"
        return self._await(tag, lambda jobs: _has_ended(jobs, results), what)

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
