"""Check rule 6: a batch is decided only if all of its rows come from the same shuffles.

Spark reruns a stage if the stage's output was lost, for example because an executor died. If the plan is not deterministic,
later stages may mix the rows of two shuffles: some rows were read before the rerun, and others after it.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from twopc.errors import FatalError, RetriableError
from twopc.integration.spark.job_history import UnreportedError
from twopc.integration.spark.mixed_rows import OwnStages, in_several, judge
from twopc.integration.spark.outside import OutsideJobs
from twopc.integration.spark.reports import BEGINNING
from twopc.threads import Beside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from twopc.integration.spark.job_history import JobHistory
    from twopc.integration.spark.reports import Job, StageAttempt
    from twopc.threads import Later

#: How long Spark's listener bus, which reports jobs and stages, may lag behind the job.
_STATUS_TIMEOUT_S: Final = 30.0
_STATUS_POLL_S: Final = 0.002
#: The suffix that an attempt's marker jobs add to the attempt's tag.
_MARK: Final = "-end"
_DROPPED: Final = (
    "Spark's listener bus queue was full. Since Spark planned the oldest data that this batch uses, Spark has dropped {lost} of "
    "its reports about jobs and stages. So the toolkit cannot check whether a stage ran twice and mixed the rows of two "
    "shuffles. No part of this attempt is decided or visible. Restart the query. If the query stops with this error again, "
    "raise spark.scheduler.listenerbus.eventqueue.capacity (default: 10000), and restart the application (under Spark "
    "Connect, the server). If your program has cached a DataFrame outside the function, call its unpersist() first"
)


@dataclass(frozen=True)
class _Seen:
    """Spark's reports about an attempt.

    Attributes:
        jobs: the jobs with the attempt's tag.
        marks: the marker jobs, which follow the tagged jobs; empty if no thread was watching.
        attempts: all attempts at each stage of these jobs.
        collected: the stages of the job that has collected rows for the driver, if any.
    """

    jobs: Sequence[Job]
    marks: Sequence[Job]
    attempts: Mapping[int, Sequence[StageAttempt]]
    collected: Collection[int] = ()

    @property
    def stages(self) -> dict[int, StageAttempt]:
        """The last attempt at each stage."""
        return {stage: attempts[-1] for stage, attempts in self.attempts.items()}

    @property
    def lineage(self) -> frozenset[int]:
        """The RDDs from which the attempt's rows were computed."""
        return frozenset(rdd for last in self.stages.values() for rdd in last.rdd_ids)


def _has_ended(jobs: Iterable[Job], results: Collection[int]) -> bool:
    return set(results) <= {stage for job in jobs if job.is_over for stage in job.stages}


class Shuffles:
    """Checks the jobs of one run of a query, in order.

    A retry after a failed batch uses the same object, because the retry uses the same shuffles.

    Args:
        history: the history of the application's jobs.
        first: the first job that may belong to the run's first batch.
        is_merged: see :class:`~twopc.integration.spark.mixed_rows.OwnStages`.
    """

    def __init__(self, history: JobHistory, *, first: int = 0, is_merged: bool = False) -> None:
        self._store = history.store
        self._history = history
        self._is_merged = is_merged
        self._outside = OutsideJobs(history, first, is_merged=is_merged)
        self._began = BEGINNING
        self._previous = BEGINNING  # a moment before Spark planned the batch
        self._numbers = itertools.count()
        self._looks: dict[str, list[Later[_Seen]]] = {}  # by tag, for the last attempt with collected rows
        # One thread serves all batches, because PySpark keeps a connection to the JVM for each thread that calls it.
        self._beside = Beside("twopc-marks")
        self._mixed: str | None = None

    def close(self) -> None:
        """Stop the watching thread."""
        self._beside.close()

    def begin(self) -> None:
        """Record the start of an attempt. No earlier job has computed the RDDs that the attempt's jobs create.

        Raises:
            FatalError: an earlier attempt mixed rows of two shuffles, and this run would read the mixed rows again.
        """
        if self._mixed is not None:
            raise FatalError(self._mixed)
        with self._history.lock:
            self._began = self._history.begin()

    def look(self, tag: str, *, is_collected: bool = True) -> None:
        """See :class:`~twopc.integration.spark.mode.ShuffleCheck`. Collected rows do not show which stage they come from."""
        mark = f"{tag}{_MARK}{next(self._numbers)}"
        looked = self._beside.submit(partial(self._look, tag, mark, is_collected=is_collected))
        self._looks = {tag: [*self._looks.get(tag, ()), looked]}

    def check(self, tag: str, results: Collection[int], kept_since_ms: Callable[[], float | None]) -> None:
        """See :class:`~twopc.integration.spark.mode.ShuffleCheck`."""
        try:
            looks = [look.result() for look in self._looks.get(tag, ())]
            marks = [mark for look in looks for mark in look.marks]
            if looks and _has_ended(looks[-1].jobs, results):
                seen = replace(looks[-1], marks=marks)
            else:
                jobs = self._reported(tag, results)
                seen = _Seen(jobs, marks, self._attempts_of(jobs))
            collected = {stage for look in looks for stage in look.collected}
            self._require_all(seen, collected.union(results), kept_since_ms)
        except UnreportedError as error:
            raise _unreported(str(error), error.advice) from None

    def _look(self, tag: str, mark: str, *, is_collected: bool) -> _Seen:
        """Run a marker job, and wait until Spark reports it.

        By then, Spark has reported everything that happened earlier. Return the jobs with the tag.
        """
        self._store.mark(mark)
        marks = self._await(mark, bool, "the end of the job that collected the batch")
        jobs = self._store.jobs_with_tag(tag)
        # The last job has collected the rows that the driver writes.
        collected = jobs[-1].stages if is_collected and jobs else ()
        return _Seen(jobs, marks, self._attempts_of(jobs), collected)

    def _reported(self, tag: str, results: Collection[int]) -> list[Job]:
        """Wait until Spark has reported the end of the jobs that have the stages ``results``.

        Then return the jobs with the tag.
        """
        what = f"the end of the job of stage {', '.join(map(str, sorted(results)))}"
        return self._await(tag, lambda jobs: _has_ended(jobs, results), what)

    def _await(self, tag: str, is_enough: Callable[[list[Job]], bool], what: str) -> list[Job]:
        deadline = time.monotonic() + _STATUS_TIMEOUT_S
        while not is_enough(jobs := self._store.jobs_with_tag(tag)):
            if time.monotonic() > deadline:
                raise _unreported(what)
            time.sleep(_STATUS_POLL_S)
        return jobs

    def _attempts_of(self, jobs: Iterable[Job]) -> dict[int, Sequence[StageAttempt]]:
        """Return all of Spark's attempts at each stage of these jobs.

        Raises:
            RetriableError: Spark no longer records which RDDs a skipped stage has.
        """
        found: dict[int, Sequence[StageAttempt]] = {}
        for job in jobs:
            found |= self._history.stages_of(job)
        for stage, attempts in found.items():
            if not attempts:
                raise RetriableError(
                    f"Spark's status store has just dropped stage {stage}, which this batch's job skipped, so the "
                    "toolkit cannot check that stage's shuffle. No part of this attempt is decided or visible. If this "
                    "happens often, raise spark.ui.retainedStages (default: 1000)"
                )
        return found

    def _require_all(self, seen: _Seen, results: Collection[int], kept_since_ms: Callable[[], float | None]) -> None:
        own = {job.job_id for job in (*seen.jobs, *seen.marks)}
        for number in own:
            self._outside.leave_out(number)
        end = max(own, default=0)
        try:
            with self._history.lock:
                behind = self._require_unmixed(seen, own, results)
            self._outside.require_unmixed(end, kept_since_ms)
        except FatalError as error:
            self._mixed = str(error)
            raise
        self._require_all_reports(seen, behind, kept_since_ms)
        self._outside.pass_over(end)
        self._previous = self._began

    def _require_unmixed(
        self, seen: _Seen, own: Collection[int], results: Collection[int]
    ) -> Collection[tuple[int, ...]]:
        """Check the attempt's jobs. Return the RDDs behind the rows that Spark keeps, in groups."""
        history = self._history
        shared = self._shared(seen, own)
        history.computed.record(seen.attempts)
        history.examine(shared | self._unwritten(seen), own)
        running = {job.job_id for job in seen.jobs if not job.is_over}
        history.examined({*own, *self._store.markers}, running)  # a marker job computes only its own RDDs
        cut_off = self._cut_off(seen, shared, own)
        behind = history.computed.behind(shared | cut_off)
        ran = history.computed.of(seen.lineage.union(cut_off, *behind), seen.attempts)
        stages = OwnStages(seen.stages, results, self._may_be_read_during_rewrite(seen, own), self._is_merged)
        judge(
            stages,
            ran,
            behind,
            lambda rdds: self._store.cached_rdds(rdds) | cut_off.intersection(rdds),
            history.was_set_back_since,
        )
        return [*behind, tuple(cut_off)]

    def _cut_off(self, seen: _Seen, shared: Collection[int], own: Collection[int]) -> set[int]:
        """Return the RDDs from which Spark computed the shared RDDs, although the rows' lineage does not show them.

        ``localCheckpoint()`` cuts the lineage. Each of these RDDs may have been cached at that time.
        """
        found: set[int] = set()
        new = self._history.computed.sources_of(shared) - seen.lineage
        while new:
            self._history.examine(new, own)
            found |= new
            new = self._history.computed.sources_of(new) - seen.lineage - found
        return found

    def _may_be_read_during_rewrite(self, seen: _Seen, own: Collection[int]) -> Collection[int]:
        """Return the stages that may write a shuffle again while another stage or job reads it."""
        again = [attempts[-1].rdd_ids[0] for attempts in seen.attempts.values() if len(attempts) > 1]
        return self._history.stages_elsewhere(min(again), own) | in_several(seen.jobs) if again else ()

    def _require_all_reports(
        self, seen: _Seen, behind: Iterable[tuple[int, ...]], kept_since_ms: Callable[[], float | None]
    ) -> None:
        """Check that Spark has dropped no report since it planned the oldest RDD that the batch uses.

        Nothing else shows that the report of a rerun is missing.
        """
        dropped = self._store.dropped()
        if not dropped:
            return
        kept = self._kept(seen, self._old(seen)).union(*behind)
        before = [self._began] if kept_since_ms() is None else [self._began, self._previous]
        before += [self._history.before(min(kept))] if kept else []
        if lost := dropped - min(moment.dropped for moment in before):
            raise FatalError(_DROPPED.format(lost=lost))

    def _unwritten(self, seen: _Seen) -> set[int]:
        """Return the RDDs of the unwritten stages. Another job may have written their shuffles.

        A stage is unwritten if the attempt's jobs skipped it and no known earlier stage has written its shuffle. A stage that was
        skipped has a higher number than the stage that wrote its shuffle. Leave out a job that is still running, because the job
        may still run its stages.

        If no job since the RDD was created has written the shuffle, then no task has read it. Spark does not write a shuffle
        that only an RDD without partitions reads, such as the product of a table with an empty batch.
        """
        ended = {stage: seen.stages[stage] for job in seen.jobs if job.is_over for stage in job.stages}
        return {
            last.rdd_ids[0]
            for stage, last in ended.items()
            if not last.has_run
            and last.num_tasks
            and not self._history.computed.have_written(last.rdd_ids[0], until=stage)
        }

    def _shared(self, seen: _Seen, own: Collection[int]) -> set[int]:
        """From the rows' lineage, return the RDDs that another job may have kept as shuffle files or in a cache."""
        history, old = self._history, self._old(seen)
        during = range(self._began.job, max(own, default=0))
        is_alone = all(number in own or number in self._store.markers for number in during)
        # A job that ran during the attempt may have filled a cache, or may have run the user's own DataFrame as the driver does.
        if not is_alone and (seen.marks or self._store.cached_rdds(seen.lineage - old)):
            old = seen.lineage
        if not old or (history.is_known(old, own) and not history.computed.have_run(old)):
            return set()
        return self._kept(seen, old)

    def _old(self, seen: _Seen) -> frozenset[int]:
        return frozenset(rdd for rdd in seen.lineage if rdd < self._began.rdd)

    def _kept(self, seen: _Seen, rdds: Collection[int]) -> set[int]:
        """Return the RDDs among these that Spark may keep as shuffle files or in a cache."""
        written = {last.rdd_ids[0] for last in seen.stages.values() if last.is_written}
        return written.intersection(rdds) | self._store.cached_rdds(rdds)


def _unreported(what: str, advice: str = "") -> FatalError:
    return FatalError(
        f"Spark's status store does not contain {what}. So the toolkit cannot check whether a stage ran twice and mixed the "
        f"rows of two shuffles. No part of this attempt is decided or visible. {advice}Restart the query. If the query stops "
        "with this error again, Spark keeps too few jobs and stages, or its listener bus drops events (see Spark's log). Raise "
        "spark.ui.retainedJobs, spark.ui.retainedStages (default: 1000 each) and "
        "spark.scheduler.listenerbus.eventqueue.capacity (default: 10000), and restart the application"
    )
