"""From the executed stages, determine whether rows from two writes of one shuffle may be mixed (rule 6)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.errors import FatalError, RetriableError
from twopc.integration.spark.unfinished_writes import failed_first, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from twopc.integration.spark.reports import Job, StageAttempt


@dataclass(frozen=True)
class OwnStages:
    """The stages of a batch's jobs.

    Attributes:
        last: the last attempt at each stage.
        results: the stages whose rows go to the sinks. A retry runs them again. Any other stage may have computed data that
            a retry would use again: a broadcast table, or the result of a subquery.
        shared: the stages that may write a shuffle again while another stage or job reads it.
        is_merged: whether a reader may receive rows from an earlier write of a shuffle. After a rerun of a stage, push-based
            shuffle still reads merged blocks from the first write.
    """

    last: Mapping[int, StageAttempt]
    results: Collection[int]
    shared: Collection[int]
    is_merged: bool = False


def judge(
    own: OwnStages,
    ran: Sequence[StageAttempt],
    behind: Collection[tuple[int, ...]],
    cached_rdds: Callable[[Collection[int]], set[int]],
    was_set_back_since: Callable[[Iterable[int]], bool],
) -> None:
    """Check that an attempt at a batch did not mix rows from two writes of a shuffle.

    Args:
        own: the stages of the batch's jobs.
        ran: the stage attempts, from any job, that computed a part of the batch's input.
        behind: the shuffles that were read to compute rows that Spark keeps. Unlike the shuffles of the batch's own stages,
            they matter only for the time in which Spark computed these rows.
        cached_rdds: returns those of the given RDDs that are cached.
        was_set_back_since: see :meth:`~twopc.integration.spark.job_history.JobHistory.was_set_back_since`.

    Raises:
        RetriableError: a stage that keeps no rows was rerun. A retry reads the stage's input again.
        FatalError: rows from two writes of a shuffle may be mixed in data that Spark keeps.
    """
    shuffles = [one.rdd_ids for one in own.last.values() if one.is_written]
    written = _Written(ran, [*shuffles, *behind], is_merged=own.is_merged)
    ran = written.ran
    again = [runs for runs in map(written.of, {one.rdd_ids for one in own.last.values()}) if len(runs) > 1]
    for runs in again:
        stages = {run.stage_id for run in runs}
        reads = any(run.shuffle_read_records for run in runs)
        if reads or len(stages) > 1 or own.is_merged or not stages.isdisjoint(own.shared):
            raise _unfinished(runs) if failed_first(runs) else _mixed(max(stages))
    again += [runs for runs in map(written.of, behind) if len(runs) > 1]
    if not again and all(attempt.attempt_id == 0 for attempt in ran):
        return
    cached = cached_rdds({rdd for one in ran for rdd in one.rdd_ids})
    rewrites = [run for runs in again for run in runs[1:]]
    readers = [one for one in ran if one.shuffle_read_records]
    keeping = [one for one in readers if one in written or not cached.isdisjoint(one.rdd_ids)]
    for rdd in cached:
        _require_one_filling([one for one in keeping if rdd in one.rdd_ids])
    if keeping and rewrites and was_set_back_since(rdd for one in ran for rdd in one.rdd_ids):
        raise _without_order(rewrites[-1].stage_id)  # the next checks compare times
    for one in keeping:
        _require_read_once(one, rewrites)
    _require_same_write(keeping, [one for one in readers if one.stage_id in own.last], rewrites)
    writing = {one.stage_id for one in ran if one.shuffle_write_records}
    reading = {one.stage_id for one in readers}
    rerun = [one for one in ran if one.attempt_id and one.stage_id in own.last and one.stage_id not in writing]
    for one in rerun:
        if one.stage_id not in own.results and one.stage_id in reading:
            raise _mixed(one.stage_id)
    if rerun:
        raise RetriableError(f"stage {rerun[0].stage_id} was rerun (attempt {rerun[0].attempt_id})")


def in_several(jobs: Iterable[Job]) -> set[int]:
    """Return the stages that several of the jobs share.

    Jobs that share a stage ran at the same time, because a later job's stages have new numbers.
    """
    stages = Counter(stage for job in jobs for stage in job.stages)
    return {stage for stage, count in stages.items() if count > 1}


class _Written:
    """Groups each shuffle's writes by the stage's own RDD, in chronological order.

    Spark lists this RDD first (``StageInfo.fromStage``). The RDD is the same in every job. A lazy checkpoint may replace the
    other RDDs between two jobs.

    Args:
        ran: the stage attempts that count.
        shuffles: shuffles that other stages may have written, each as the RDDs of its stage.
        is_merged: see :class:`OwnStages`.

    Attributes:
        ran: the given attempts, in stage order. Runs that wrote one shuffle together are joined (:func:`joined`), unless
            the shuffle is merged: then readers may get a killed task's blocks.
    """

    def __init__(self, ran: Sequence[StageAttempt], shuffles: Iterable[tuple[int, ...]], *, is_merged: bool) -> None:
        rdds = {one.rdd_ids[0] for one in ran if one.is_written}.union(rdds[0] for rdds in shuffles)
        found: dict[int, list[StageAttempt]] = {rdd: [] for rdd in rdds}
        for one in sorted(ran, key=start_of):
            if one.rdd_ids[0] in found and one.writes is not False and (is_merged or not one.left_nothing):
                found[one.rdd_ids[0]].append(one)
        writes = {rdd: _writes(runs) for rdd, runs in found.items() if runs}
        self._runs = writes if is_merged else {rdd: joined(runs) for rdd, runs in writes.items()}
        others = (one for one in ran if one not in writes.get(one.rdd_ids[0], ()))
        self.ran = sorted(
            [*others, *itertools.chain(*self._runs.values())], key=lambda one: (one.stage_id, one.attempt_id)
        )

    def __contains__(self, one: StageAttempt) -> bool:
        return one in self._runs.get(one.rdd_ids[0], ())

    def of(self, rdds: tuple[int, ...]) -> Sequence[StageAttempt]:
        """Return the writes of a shuffle, or nothing if no write has any rows: then they are all alike."""
        runs = self._runs.get(rdds[0], ())
        return runs if any(run.shuffle_write_records for run in runs) else ()


def _writes(runs: Sequence[StageAttempt]) -> list[StageAttempt]:
    """Return those of the runs of a shuffle's RDD that wrote the shuffle, even if a run wrote no rows.

    A run as the last stage of its job writes no rows in two cases: the user's own action computes the RDD, or adaptive
    execution writes a shuffle that is empty. Adaptive execution does so once, before any other stage writes the shuffle.
    """
    stages = {run.stage_id for run in runs if run.is_written} | {min(run.stage_id for run in runs)}
    return [run for run in runs if run.stage_id in stages]


def start_of(attempt: StageAttempt) -> tuple[int, int, int]:
    """Return a key that sorts attempts by the time at which they began."""
    return attempt.submission_time or 0, attempt.stage_id, attempt.attempt_id


def _require_one_filling(fills: Sequence[StageAttempt]) -> None:
    """Check that none of these stages was rerun. They read a shuffle and computed cached rows, or found the rows in the cache."""
    stages = [fill.stage_id for fill in fills]
    if len(set(stages)) < len(stages):
        raise _mixed(max(stage for stage in stages if stages.count(stage) > 1))


def _require_same_write(
    keeping: Sequence[StageAttempt], own: Sequence[StageAttempt], rewrites: Sequence[StageAttempt]
) -> None:
    """Check that no shuffle was rewritten between two stages that may read it, if one of these stages keeps what it read.

    Stages that read the same shuffle compute the same RDD of the shuffle's rows. Stages that read the same cached rows also have
    a common RDD.

    Args:
        keeping: the attempts that read a shuffle and keep rows.
        own: the attempts at the batch's own stages that read a shuffle.
        rewrites: the attempts that wrote a shuffle again.
    """
    for rdd in {rdd for one in keeping for rdd in one.rdd_ids}:
        group = [one for one in (*keeping, *own) if rdd in one.rdd_ids]
        if len({one.stage_id for one in group}) == 1:
            continue  # other checks find a stage that was rerun
        for run in rewrites:
            before = sum(start_of(one) < start_of(run) for one in group)
            if 0 < before < len(group):
                raise _mixed(run.stage_id)


def _require_read_once(reader: StageAttempt, rewrites: Sequence[StageAttempt]) -> None:
    """Check that none of the shuffles was rewritten while the stage was running.

    Jobs of two threads may share a shuffle. If one job writes the shuffle again, Spark does not rerun the other job's
    reading stage. Spark does not report which shuffles a stage reads, so every shuffle counts.
    """
    began = reader.submission_time or 0
    ended = math.inf if reader.completion_time is None else reader.completion_time
    for run in rewrites:
        if began <= (run.submission_time or 0) <= ended:
            raise _mixed(run.stage_id)


_LOST: Final = (
    "Spark ran stage {stage} again, because some of that stage's output was lost (an executor died, for example). The "
    "new output may not match the rest of the old output"
)
_RESTART: Final = (
    "so rows could be missing or duplicated. No part of this attempt is decided or visible. Restart the query, which will "
    "then recompute the whole batch. If your program has cached a DataFrame outside the function, call unpersist() on it "
    "before the restart. A retry without a restart would use the same shuffle files"
)
_UNFINISHED: Final = (
    "The job of stage {first} failed before the stage had written its whole output, and a retry wrote the rest (stage "
    "{stage}). Spark's reports do not show whether some of the first output was lost in between"
)
_SET_BACK: Final = (
    "The clock of the driver's host was set back. The times in Spark's reports therefore do not show which stages read which "
    "output"
)
_GRADUALLY: Final = "If this happens again, let the host's time service correct the clock gradually, not in steps"


def _mixed(stage: int) -> FatalError:
    return FatalError(f"{_LOST}, {_RESTART}".format(stage=stage))


def _unfinished(runs: Sequence[StageAttempt]) -> FatalError:
    first, later, *_ = runs
    return FatalError(f"{_UNFINISHED}, {_RESTART}".format(first=first.stage_id, stage=later.stage_id))


def _without_order(stage: int) -> FatalError:
    return FatalError(f"{_LOST}. {_SET_BACK}, and {_RESTART}. {_GRADUALLY}".format(stage=stage))
