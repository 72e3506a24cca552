"""From the executed stages, determine whether rows from two writes of one shuffle may be mixed (rule 6)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from twopc.errors import FatalError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from twopc.integration.spark.reports import StageAttempt


def judge(
    own: Mapping[int, StageAttempt],
    ran: Sequence[StageAttempt],
    elsewhere: frozenset[int],
    behind: Collection[tuple[int, ...]],
    cached_rdds: Callable[[Collection[int]], set[int]],
) -> None:
    """Check that an attempt at a batch did not mix rows from two writes of a shuffle.

    Args:
        own: the last attempt at each stage of the batch's jobs.
        ran: the stage attempts, from any job, that computed a part of the batch's input.
        elsewhere: the stages of other jobs; they count only if a stage of the batch's jobs was rerun. A concurrent job may
            write a shuffle again while this batch's job reads it.
        behind: the shuffles that were read to compute rows that Spark keeps. Unlike the shuffles of the batch's own stages,
            they matter only for the time in which Spark computed these rows.
        cached_rdds: returns those of the given RDDs that are cached.

    Raises:
        RetriableError: a stage that keeps no rows was rerun. A retry reads the stage's input again.
        FatalError: rows of two shuffles may be mixed in data that Spark keeps.
    """
    written = _Written(ran)
    again = [runs for runs in map(written.of, _shuffles(own)) if len(runs) > 1]
    for runs in again:
        stages = {run.stage_id for run in runs}
        reads = any(run.shuffle_read_records for run in runs)
        if reads or len(stages) > 1 or not stages.isdisjoint(own.keys() & elsewhere):
            raise _mixed(max(stages))
    again += [runs for runs in map(written.of, behind) if len(runs) > 1]
    if not again and all(attempt.attempt_id == 0 for attempt in ran):
        return
    cached = cached_rdds({rdd for one in ran for rdd in one.rdd_ids})
    for rdd in cached:
        _require_one_filling([one for one in ran if rdd in one.rdd_ids and one.shuffle_read_records], again)
    for one in ran:
        if one.shuffle_read_records and (one.shuffle_write_records or not cached.isdisjoint(one.rdd_ids)):
            _require_read_once(one, again)
    writing = {one.stage_id for one in ran if one.shuffle_write_records}
    for attempt in ran:
        if attempt.attempt_id and attempt.stage_id in own and attempt.stage_id not in writing:
            raise RetriableError(f"stage {attempt.stage_id} was rerun (attempt {attempt.attempt_id})")


class _Written:
    """Groups each shuffle's writes by the RDDs of the shuffle's stage. These RDDs are the same in every job."""

    def __init__(self, ran: Sequence[StageAttempt]) -> None:
        writing = {one.stage_id for one in ran if one.shuffle_write_records}
        self._runs: dict[tuple[int, ...], list[StageAttempt]] = {}
        for one in ran:
            if one.stage_id in writing:
                self._runs.setdefault(one.rdd_ids, []).append(one)

    def of(self, rdds: tuple[int, ...]) -> Sequence[StageAttempt]:
        return self._runs.get(rdds, ())


def _shuffles(own: Mapping[int, StageAttempt]) -> set[tuple[int, ...]]:
    return {last.rdd_ids for last in own.values() if last.is_written}


def _require_one_filling(fills: Sequence[StageAttempt], again: Sequence[Sequence[StageAttempt]]) -> None:
    """Check that a cache was filled from a single write of each shuffle.

    Args:
        fills: the attempts that read a shuffle and computed the cached rows, or found them in the cache.
        again: the shuffles that were written more than once.
    """
    stages = [fill.stage_id for fill in fills]
    if len(set(stages)) < len(stages):
        raise _mixed(max(stage for stage in stages if stages.count(stage) > 1))
    for runs in again:
        rewritten = max(run.submission_time or 0 for run in runs)
        before = [fill for fill in fills if (fill.submission_time or 0) < rewritten]
        if before and len(before) < len(fills):
            raise _mixed(max(run.stage_id for run in runs))


def _require_read_once(reader: StageAttempt, again: Sequence[Sequence[StageAttempt]]) -> None:
    """Check that none of the shuffles was written again while a stage was reading.

    Jobs of two threads may share a shuffle. If one job writes the shuffle again, Spark does not rerun the other job's
    reading stage. Spark does not report which shuffles a stage reads, so every shuffle counts.
    """
    began = reader.submission_time or 0
    ended = math.inf if reader.completion_time is None else reader.completion_time
    for run in (run for runs in again for run in runs[1:]):
        if began <= (run.submission_time or 0) <= ended:
            raise _mixed(run.stage_id)


_MIXED: Final = (
    "Spark ran stage {stage} again, because it lost some of that stage's output (an executor died, for example). The new "
    "output may not match the rest of the old output, so rows could be missing or duplicated. No part of the batch is "
    "decided or visible. Restart the query: it computes the whole batch again. A retry without a restart would use the "
    "same shuffle files. If your program has cached a DataFrame outside the function, call its unpersist() first"
)


def _mixed(stage: int) -> FatalError:
    return FatalError(_MIXED.format(stage=stage))
