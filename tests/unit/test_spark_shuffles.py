"""Only rows of the same shuffles are decided (rule 6): M1 writes a shuffle, M2 reads it and writes another, R reads that."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from twopc.errors import FatalError, RetriableError
from twopc.integration.spark import computed_rdds, job_history, shuffles
from twopc.integration.spark.job_history import JobHistory
from twopc.integration.spark.reports import Job, Moment, StageAttempt
from twopc.integration.spark.shuffles import Shuffles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

M1, M2, RESULT = range(3)
RDDS = {M1: (1,), M2: (2,), RESULT: (3,)}
#: A batch's RDDs are older than the call. The RDDs of the call's own plan are not.
OLD, NEW = Moment(10, 0), Moment(0, 0)


def attempts_at(stage: int, count: int = 1, *, of: int | None = None, status: str = "COMPLETE") -> list[StageAttempt]:
    """Attempts at a stage that does what stage ``of`` does: by default itself. Later stages begin later."""
    kind = stage if of is None else of
    has_run = status == "COMPLETE"
    return [
        StageAttempt(
            status,
            stage,
            number,
            RDDS[kind],
            9 * (kind != M1 and has_run),
            9 * (kind != RESULT and has_run),
            10 * stage + number if has_run else None,
        )
        for number in range(count)
    ]


def plain() -> dict[int, list[StageAttempt]]:
    return {stage: attempts_at(stage) for stage in RDDS}


def result(stage: int, rdd: int, *, reads: int = 9, attempts: int = 1) -> list[StageAttempt]:
    return [StageAttempt("COMPLETE", stage, number, (rdd,), reads, 0, 10 * stage) for number in range(attempts)]


def attempt_of(stage: int, number: int, *rdds: int) -> StageAttempt:
    """A completed attempt that wrote a shuffle."""
    return StageAttempt("COMPLETE", stage, number, rdds, 0, 9, 80)


@dataclass
class Store:
    """Spark's status store, with the jobs of each tag, and those of others under the tag ``""``."""

    jobs: dict[str, list[Job]]
    stages: dict[int, list[StageAttempt]] = field(default_factory=plain)
    cached: set[int] = field(default_factory=set)
    unreported: Iterator[list[Job]] = field(default_factory=lambda: iter(()))
    asked: list[int] = field(default_factory=list)  #: the jobs that were looked up one by one
    marked: dict[str, list[Job]] = field(
        default_factory=dict
    )  #: the jobs that Spark has reported when it reports a mark
    moment: Moment = OLD
    lost: int = 0  #: how many reports Spark has dropped
    markers: set[int] = field(default_factory=set)
    retained: int = 1000  #: how many jobs the store keeps before it forgets any
    hiding: set[int] = field(
        default_factory=set
    )  #: the stages that read a shuffle, although their reports may show nothing

    def dropped(self) -> int:
        return self.lost

    def now(self) -> Moment:
        return structs.replace(self.moment, dropped=self.lost)

    def next_rdd(self) -> int:
        return self.moment.rdd

    def end_of_jobs(self) -> int:
        return 1 + max((job.job_id for jobs in self.jobs.values() for job in jobs), default=-1)

    def retained_jobs(self) -> int:
        return self.retained

    def forget_markers(self, before: int) -> None:
        self.markers = {number for number in self.markers if number >= before}

    def mark(self, tag: str) -> None:
        marks = self.jobs.get(tag, [])
        self.jobs |= {**self.marked, tag: [*marks, Job(self.end_of_jobs(), (), is_over=True)]}

    def jobs_with_tag(self, tag: str) -> list[Job]:
        return next(self.unreported, self.jobs.get(tag, []))

    def job(self, number: int) -> Job | None:
        self.asked.append(number)
        return next((job for jobs in self.jobs.values() for job in jobs if job.job_id == number), None)

    def is_over(self, number: int) -> bool:
        return any(job.is_over for jobs in self.jobs.values() for job in jobs if job.job_id == number)

    def last_attempt(self, stage: int) -> StageAttempt | None:
        return self.stages[stage][-1] if stage in self.stages else None

    def attempts(self, stage: int) -> list[StageAttempt]:
        return self.stages.get(stage, [])

    def may_read(self, stage: int) -> bool:
        return stage in self.hiding

    def cached_rdds(self, among: Collection[int]) -> set[int]:
        return self.cached.intersection(among)


class Watched(Shuffles):
    """By default, the batch uses nothing that Spark keeps outside RDDs."""

    def check(
        self, tag: str, results: Collection[int], kept_since_ms: Callable[[], float | None] = lambda: None
    ) -> None:
        super().check(tag, results, kept_since_ms)


ONE_JOB = {"a": [Job(0, (M1, M2, RESULT), is_over=True)]}


def marked(store: Store) -> Watched:
    watched = watching(store)
    watched.look("a")
    return watched


def watching(store: Store) -> Watched:
    watched = Watched(JobHistory(store))
    watched.begin()
    return watched


def test_a_batch_whose_stages_ran_once_is_decided_without_examining_other_jobs() -> None:
    store = Store(ONE_JOB)
    watching(store).check("a", {RESULT})
    assert not store.asked


def test_a_job_whose_rows_were_collected_is_checked_once_a_later_mark_has_been_reported() -> None:
    """Such rows do not show which stage they come from, so the mark shows that everything before it is reported."""
    store = Store({}, {**plain(), M2: attempts_at(M2, 2)}, marked=ONE_JOB)
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        marked(store).check("a", ())


def test_the_jobs_of_collected_rows_are_read_once_their_mark_is_reported() -> None:
    """Anything that is read before the mark may lack a stage that ran again."""
    store, asked = Store(dict(ONE_JOB)), list[str]()
    reports = iter([False, False, True])
    read = store.jobs_with_tag

    def jobs_with_tag(tag: str) -> list[Job]:
        asked.append(tag)
        return read(tag) if tag == "a" or next(reports) else []

    store.jobs_with_tag = jobs_with_tag  # type: ignore[method-assign]
    marked(store).check("a", ())
    assert asked == ["a-end0"] * 3 + ["a"]


def test_observations_of_collected_rows_do_not_count_for_a_later_job_of_tasks() -> None:
    """There are two DataFrames: the driver collects one, and tasks write the other, in a stage that ran again."""
    store = Store(dict(ONE_JOB), {**plain(), 3: attempts_at(3, 2, of=M2), 4: attempts_at(4, of=RESULT)})
    watched = marked(store)
    store.jobs["a"] = [*ONE_JOB["a"], Job(2, (3, 4), is_over=True)]
    with pytest.raises(FatalError, match="Spark ran stage"):
        watched.check("a", {4})


def test_a_dataframe_without_tasks_is_checked_once_a_later_mark_has_been_reported() -> None:
    """No result shows a stage. The last job with the tag collected a broadcast, which a retry would use again."""
    broadcast = [StageAttempt("COMPLETE", RESULT, number, (3,), 9, 0, 20 + number) for number in range(2)]
    jobs = {"a": [Job(0, (M1, RESULT), is_over=True)]}
    watched = watching(Store({}, {M1: attempts_at(M1, 2), RESULT: broadcast}, marked=jobs))
    watched.look("a", is_collected=False)
    with pytest.raises(FatalError, match="Spark ran stage 2 again"):
        watched.check("a", ())


def test_observations_of_an_attempt_do_not_count_for_the_next_one() -> None:
    store = Store(dict(ONE_JOB))
    watched = marked(store)
    store.jobs["b"] = [Job(2, (3,), is_over=True)]
    store.stages[3] = result(3, 9, reads=0, attempts=2)
    with pytest.raises(RetriableError, match="stage 3 was rerun"):
        watched.check("b", ())


def test_a_mark_that_is_never_reported_stops_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffles, "_STATUS_TIMEOUT_S", 0.05)
    monkeypatch.setattr(Store, "mark", lambda *_: None)
    with pytest.raises(FatalError, match="the end of the job that collected the batch"):
        marked(Store(dict(ONE_JOB))).check("a", ())


def test_a_repeated_stage_that_read_a_shuffle_stops_the_query_and_every_later_call() -> None:
    watched = watching(Store(ONE_JOB, {**plain(), M2: attempts_at(M2, 2)}))
    with pytest.raises(FatalError, match=r"Spark ran stage 1 again.*Restart the query"):
        watched.check("a", {RESULT})
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        watched.begin()


def test_the_query_also_stops_if_the_result_stage_ran_again() -> None:
    store = Store(ONE_JOB, {**plain(), M2: attempts_at(M2, 2), RESULT: attempts_at(RESULT, 2)})
    with pytest.raises(FatalError):
        watching(store).check("a", {RESULT})


def test_a_stage_that_does_not_read_a_shuffle_may_run_again() -> None:
    watching(Store(ONE_JOB, {**plain(), M1: attempts_at(M1, 3)})).check("a", {RESULT})


def limited(*, hides: bool) -> Store:
    """A LIMIT ends the tasks of M2 early, so that Spark reports no records. An executor dies, and M1 and M2 run again."""
    stages = {
        M1: [StageAttempt("COMPLETE", M1, number, (1,), 0, 9, at) for number, at in enumerate((0, 25))],
        M2: [
            StageAttempt("FAILED", M2, 0, (2,), 0, 9, 10, completion_time=24),
            StageAttempt("COMPLETE", M2, 1, (2,), 0, 9, 30, completion_time=40),
        ],
        RESULT: result(RESULT, 3),
    }
    return Store(ONE_JOB, stages, hiding={M2} if hides else set())


def test_a_repeated_stage_that_read_a_shuffle_stops_the_query_even_if_spark_reports_no_records() -> None:
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        watching(limited(hides=True)).check("a", {RESULT})


def test_a_second_stage_without_a_shuffle_may_also_run_again() -> None:
    """A join of two sources, for example."""
    watching(limited(hides=False)).check("a", {RESULT})


def test_the_first_stage_of_a_job_reads_no_shuffle_and_costs_no_question() -> None:
    """Spark numbers a stage after the stages that it reads."""
    store = Store(ONE_JOB, {**plain(), M1: attempts_at(M1, 2)}, hiding={M1})
    watching(store).check("a", {RESULT})


def test_a_shuffle_rewritten_after_a_limited_stage_has_read_it_stops_the_query() -> None:
    """Stage 3 runs once, and keeps what it read of the first write. The result stage reads the second write."""
    store = read_twice(StageAttempt("COMPLETE", 5, 0, (2, 6), 9, 0, 50), rewritten=45)
    store.stages[3] = [structs.replace(store.stages[3][0], shuffle_read_records=0)]
    store.hiding = {3}
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(store).check("a", {5})


def test_a_limited_broadcast_that_ran_again_stops_the_query() -> None:
    """A retry may use it again."""
    broadcast = [StageAttempt("COMPLETE", RESULT, number, (3,), 0, 0, 20 + number) for number in range(2)]
    jobs = [Job(0, (M1, RESULT), is_over=True), Job(1, (3,), is_over=True)]
    stages = {M1: attempts_at(M1, 2), RESULT: broadcast, 3: result(3, 7, reads=0)}
    with pytest.raises(FatalError, match="Spark ran stage 2 again"):
        watching(Store({"a": jobs}, stages, hiding={RESULT})).check("a", {3})


def read_twice(*results: StageAttempt, rewritten: int) -> Store:
    """Stage 3 reads the shuffle of M1 from 10 on, and writes another. The result stage reads both."""
    stages = {
        M1: [StageAttempt("COMPLETE", M1, number, (1,), 0, 9, at) for number, at in enumerate((0, rewritten))],
        3: [StageAttempt("COMPLETE", 3, 0, (2, 4), 9, 9, 10, completion_time=40)],
        5: list(results),
    }
    return Store({"a": [Job(0, (M1, 3, 5), is_over=True)]}, stages)


@pytest.mark.parametrize("begins", [[50], [41, 50]], ids=["before the result stage", "during the result stage"])
def test_a_shuffle_rewritten_between_two_reading_stages_stops_the_query(begins: list[int]) -> None:
    """RDD 2 is the shuffle's rows, which both stages compute. Each has read a different write."""
    results = [StageAttempt("COMPLETE", 5, number, (2, 6), 9, 0, begin) for number, begin in enumerate(begins)]
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(read_twice(*results, rewritten=45)).check("a", {5})


@pytest.mark.parametrize(("rdd", "rewritten"), [(6, 45), (2, 5)], ids=["read once", "written again before both"])
def test_a_shuffle_written_again_before_an_unrelated_stage_does_not_stop_the_query(rdd: int, rewritten: int) -> None:
    store = read_twice(StageAttempt("COMPLETE", 5, 0, (rdd, 7), 9, 0, 50), rewritten=rewritten)
    watching(store).check("a", {5})


@pytest.mark.parametrize("results", [{3}, set[int]()], ids=["by tasks", "by the driver"])
def test_a_broadcast_that_ran_again_stops_the_query_because_a_retry_would_use_it_again(results: set[int]) -> None:
    broadcast = [StageAttempt("COMPLETE", RESULT, number, (3,), 9, 0, 20 + number) for number in range(2)]
    jobs = [Job(0, (M1, RESULT), is_over=True), Job(1, (3,), is_over=True)]
    stages = {M1: attempts_at(M1, 2), RESULT: broadcast, 3: result(3, 7, reads=0)}
    with pytest.raises(FatalError, match="Spark ran stage 2 again"):
        watching(Store({"a": jobs}, stages)).check("a", results)


def broadcast_before(count: int) -> Store:
    """Job 0 collects rows of a shuffle for a broadcast, ``count`` times. The batch reads only a table."""
    broadcast = [StageAttempt("COMPLETE", RESULT, number, (3,), 9, 0, 20 + number) for number in range(count)]
    jobs = {"": [Job(0, (M1, RESULT), is_over=True)], "b": [Job(1, (3,), is_over=True)]}
    return Store(jobs, {M1: attempts_at(M1, count), RESULT: broadcast, 3: result(3, 7, reads=0)}, moment=NEW)


def test_a_broadcast_that_ran_again_before_the_call_stops_the_query() -> None:
    """Spark runs it while it plans the batch. The batch's own job does not show it."""
    with pytest.raises(FatalError, match="Spark ran stage 2 again"):
        watching(broadcast_before(2)).check("b", {3}, lambda: 0)


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_broadcast_whose_shuffle_was_rewritten_stops_the_query_if_merged_blocks_of_the_first_write_remain(
    *, is_merged: bool
) -> None:
    """With push-based shuffle, the job may have read blocks of both writes."""
    store = broadcast_before(1)
    store.stages[M1] = attempts_at(M1, 2)
    watched = Watched(JobHistory(store), is_merged=is_merged)
    watched.begin()
    with pytest.raises(FatalError, match="Spark ran stage 0 again") if is_merged else contextlib.nullcontext():
        watched.check("b", {3}, lambda: 0)


def test_a_job_that_may_have_made_a_broadcast_and_is_forgotten_stops_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    store = broadcast_before(1)
    store.retained = 0
    del store.jobs[""]
    with pytest.raises(FatalError, match=f"does not contain job 0.*{SETTINGS}"):
        watching(store).check("b", {3}, lambda: 0)


def test_a_batch_is_decided_if_its_broadcast_ran_once_before_the_call() -> None:
    watching(broadcast_before(1)).check("b", {3}, lambda: 0)


def test_a_repeated_job_of_another_query_does_not_stop_a_query_without_broadcasts() -> None:
    watching(broadcast_before(2)).check("b", {3})


def test_plans_are_examined_only_if_another_job_has_run_since_the_last_check() -> None:
    store = Store({"a": [Job(0, (3,), is_over=True)], "b": [Job(1, (4,), is_over=True)]}, moment=NEW)
    store.stages = {stage: result(stage, stage + 10, reads=0) for stage in (3, 4)}
    watched = watching(store)
    watched.check("a", {3}, lambda: pytest.fail("its own job"))
    watched.check("b", {4}, lambda: pytest.fail("its own job"))


def test_jobs_that_ran_before_the_batch_was_planned_are_not_examined() -> None:
    """One of them ran again, for another batch."""
    store = broadcast_before(2)
    store.jobs[""] = [structs.replace(store.jobs[""][0], began_ms=1_000)]
    with pytest.raises(FatalError, match="Spark ran stage 2 again"):
        watching(store).check("b", {3}, lambda: 500)
    watching(store).check("b", {3}, lambda: 1_500)


def test_a_job_after_the_batch_was_planned_is_examined_even_if_the_clock_was_set_back_in_between(
    set_clock: Callable[[int], None],
) -> None:
    """The batch was planned at 2,500, and its broadcast began later, at 1,000. The batch's own job began only at 3,000."""
    store = broadcast_before(2)
    store.jobs[""] = [structs.replace(store.jobs[""][0], began_ms=1_000)]
    store.jobs["b"] = [structs.replace(store.jobs["b"][0], began_ms=3_000)]
    history = JobHistory(store)
    history.begin()
    set_clock(-2_000)
    watched = Watched(history)
    watched.begin()
    with pytest.raises(FatalError, match="Spark ran stage 2 again"):
        watched.check("b", {3}, lambda: 2_500)
    watched = Watched(history)
    watched.check("b", {3}, lambda: 3_500)  # by any clock, the job began before the batch was planned


def test_jobs_before_an_earlier_batch_are_not_examined_again() -> None:
    store = broadcast_before(2)
    watched = watching(store)
    watched.check("b", {3})
    store.jobs["c"] = [Job(3, (4,), is_over=True)]
    store.jobs[""].append(Job(2, (5,), is_over=True))
    store.stages |= {4: result(4, 17, reads=0), 5: result(5, 18, reads=0)}
    watched.begin()
    watched.check("c", {4}, lambda: 0)


def test_a_job_that_failed_has_made_no_broadcast() -> None:
    store = broadcast_before(2)
    store.jobs[""] = [structs.replace(store.jobs[""][0], has_failed=True)]
    watching(store).check("b", {3}, lambda: 0)


def collected_again(first: dict[int, list[StageAttempt]], second: dict[int, list[StageAttempt]]) -> Watched:
    """The function's ``collect()`` fails. It collects the same DataFrame again, and passes the rows to the batch."""
    jobs = [Job(0, tuple(first), is_over=True, has_failed=True), Job(1, (*second, 5), is_over=True)]
    stages = {**first, **second, 5: result(5, 15), 6: result(6, 16, reads=0)}
    return watching(Store({"": jobs, "b": [Job(2, (6,), is_over=True)]}, stages, moment=NEW))


def test_a_failed_job_has_written_the_shuffles_that_a_later_job_skips() -> None:
    first = {M1: attempts_at(M1, 2), M2: attempts_at(M2, 2)}
    skipped = {stage: attempts_at(stage, of=kind, status="SKIPPED") for stage, kind in ((3, M1), (4, M2))}
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        collected_again(first, skipped).check("b", {6}, lambda: 0)


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_failed_job_has_written_a_part_of_a_shuffle_that_a_later_job_completes(*, is_rewritten: bool) -> None:
    failed = StageAttempt("FAILED", M2, 0, (2,), 9, 9, 10, 4, 20, 3)
    rewritten = [StageAttempt("COMPLETE", 3, 0, (1,), 0, 9, 30, 1, 35, 1)]
    rest = [StageAttempt("COMPLETE", 4, 0, (2,), 9, 9, 40, 1, 50, 1)]
    again = rewritten if is_rewritten else attempts_at(3, of=M1, status="SKIPPED")
    watched = collected_again({M1: attempts_at(M1), M2: [failed]}, {3: again, 4: rest})
    with pytest.raises(FatalError, match="Spark ran stage 3 again") if is_rewritten else contextlib.nullcontext():
        watched.check("b", {6}, lambda: 0)


def test_a_failed_job_whose_shuffles_no_later_job_reads_does_not_stop_the_query() -> None:
    collected_again({M1: attempts_at(M1, 2), M2: attempts_at(M2, 2)}, {}).check("b", {6}, lambda: 0)


def test_jobs_run_only_to_obtain_spark_reports_are_not_examined() -> None:
    store = broadcast_before(2)
    store.markers = {0}
    watching(store).check("b", {3}, lambda: pytest.fail("there is no other job"))


def test_two_broadcasts_whose_shuffle_was_rewritten_in_between_stop_the_query() -> None:
    """Each stage ran once. The batch's own job shows neither the broadcasts nor the shuffle."""
    jobs = {"": [Job(0, (M1, 4), is_over=True), Job(1, (3, 5), is_over=True)], "b": [Job(2, (6,), is_over=True)]}
    stages = {
        M1: attempts_at(M1),
        4: result(4, 14),
        3: attempts_at(3, of=M1),
        5: result(5, 15),
        6: result(6, 16, reads=0),
    }
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        watching(Store(jobs, stages, moment=NEW)).check("b", {6}, lambda: 0)


def test_a_batch_is_repeated_if_a_stage_whose_rows_the_driver_collected_ran_again() -> None:
    store = Store({}, {**plain(), RESULT: attempts_at(RESULT, 2)}, marked=ONE_JOB)
    with pytest.raises(RetriableError, match="stage 2 was rerun"):
        marked(store).check("a", ())


def test_the_query_stops_if_two_jobs_of_the_attempt_share_a_repeated_stage() -> None:
    """Two broadcasts at the same time. One may have read the first write, and the other one the second write."""
    jobs = [Job(0, (M1, 4), is_over=True), Job(1, (M1, 5), is_over=True), Job(2, (6,), is_over=True)]
    stages = {M1: attempts_at(M1, 2), 4: result(4, 14), 5: result(5, 15), 6: result(6, 16, reads=0)}
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(Store({"a": jobs}, stages)).check("a", {6})


def test_a_batch_with_merged_blocks_of_its_shuffles_first_write_stops_if_the_shuffle_was_rewritten() -> None:
    """With push-based shuffle, readers may still read what was merged before."""
    store = Store(ONE_JOB, {**plain(), M1: attempts_at(M1, 2)})
    watched = Watched(JobHistory(store), is_merged=True)
    watched.begin()
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watched.check("a", {RESULT})


def test_a_shuffle_written_twice_is_detected_even_if_a_lazy_checkpoint_has_cut_its_lineage() -> None:
    """From the second job on, the stage that writes the shuffle has the checkpoint's RDD, 20, instead of RDD 4."""
    jobs = {"": [Job(0, (M1, 4), is_over=True)], "b": [Job(1, (3, 5), is_over=True)]}
    stages = {M1: [attempt_of(M1, 0, 6, 5, 4)], 4: result(4, 8), 3: [attempt_of(3, 0, 6, 5, 20)], 5: result(5, 9)}
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        watching(Store(jobs, stages)).check("b", {5})


def test_two_dataframes_of_a_batch_are_repeated_if_their_shuffle_was_lost_during_the_first_ones_job() -> None:
    """Neither of their stages keeps what it read."""
    jobs = [Job(0, (M1, 4), is_over=True), Job(1, (3, 5), is_over=True)]
    first = [StageAttempt("COMPLETE", 4, number, (2, 14), 9, 0, begin) for number, begin in enumerate((10, 50))]
    again = [StageAttempt("COMPLETE", M1, number, (1,), 0, 9, at) for number, at in enumerate((0, 45))]
    second = [StageAttempt("COMPLETE", 5, 0, (2, 15), 9, 0, 60)]
    stages = {M1: again, 4: first, 3: attempts_at(3, of=M1, status="SKIPPED"), 5: second}
    with pytest.raises(RetriableError, match="stage 4 was rerun"):
        watching(Store({"a": jobs}, stages)).check("a", {4, 5})


def test_a_batch_whose_result_stage_ran_again_is_repeated_and_then_decided() -> None:
    store = Store(ONE_JOB, {**plain(), RESULT: attempts_at(RESULT, 2)})
    watched = watching(store)
    with pytest.raises(RetriableError, match=r"stage 2 was rerun \(attempt 1\)"):
        watched.check("a", {RESULT})
    store.jobs = {**ONE_JOB, "b": [Job(1, (3, 4, 5), is_over=True)]}
    store.stages |= {
        3: attempts_at(3, of=M1, status="SKIPPED"),
        4: attempts_at(4, of=M2, status="SKIPPED"),
        5: result(5, 6),
    }
    watched.check("b", {5})


def test_a_result_stage_that_cached_its_rows_and_ran_again_stops_the_query() -> None:
    """The cache keeps the rows that it read from the first shuffle, even for the retry."""
    store = Store(ONE_JOB, {**plain(), RESULT: attempts_at(RESULT, 2)}, cached={3})
    with pytest.raises(FatalError):
        watching(store).check("a", {RESULT})


def test_a_stage_that_ran_again_counts_as_a_reader_even_if_its_first_attempt_found_no_rows() -> None:
    """The first attempt may have cached an empty part of the shuffle. A storage level with a disk hides the shuffle."""
    store = Store({"a": [Job(0, (M1, RESULT), is_over=True)]}, {M1: attempts_at(M1, 2)}, cached={3})
    first, again = attempts_at(RESULT, 2)
    store.stages[RESULT] = [structs.replace(first, shuffle_read_records=0), again]
    with pytest.raises(FatalError, match="Spark ran stage 2 again"):
        watching(store).check("a", {RESULT})


def later_job(m1: str, m2: str) -> dict[int, list[StageAttempt]]:
    return {
        **plain(),
        3: attempts_at(3, of=M1, status=m1),
        4: attempts_at(4, of=M2, status=m2),
        5: result(5, 6),
    }


def test_a_shuffle_that_an_earlier_job_of_the_function_wrote_and_mixed_stops_the_query() -> None:
    """``df.count()`` before the call: its job has no tag of ours, and the batch's own job skips the stage."""
    stages = {**later_job("SKIPPED", "SKIPPED"), M2: attempts_at(M2, 2)}
    jobs = {"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True)]}
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        watching(Store(jobs, stages)).check("b", {5})


def test_a_later_job_that_completes_the_shuffle_of_an_earlier_one_stops_the_query() -> None:
    """An executor died between the two: each stage has one attempt, with some of its tasks."""
    jobs = {"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True)]}
    with pytest.raises(FatalError, match="Spark ran stage"):
        watching(Store(jobs, later_job("COMPLETE", "COMPLETE"))).check("b", {5})


@pytest.mark.parametrize("tags", [("", "b"), ("b", "b")], ids=["the function's job", "another DataFrame's job"])
def test_a_later_job_that_completely_rewrites_the_shuffle_of_an_earlier_one_stops_the_query(
    tags: tuple[str, str],
) -> None:
    """An executor that had everything died, so nothing is skipped. The first job made the cache, or the other frame's shuffle."""
    jobs: dict[str, list[Job]] = {"b": []}
    for number, (tag, stages) in enumerate(zip(tags, [(M1, RESULT), (3, 5)], strict=True)):
        jobs.setdefault(tag, []).append(Job(number, stages, is_over=True))
    watched = watching(Store(jobs, later_job("COMPLETE", "COMPLETE"), cached={2} if tags[0] == "" else set()))
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        watched.check("b", {5})
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        watched.begin()


def failed_and_retried(
    complete: int, rest: int, *, reads: int = 0, rewritten: int | None = None, is_merged: bool = False
) -> Watched:
    """Stage 1 of four tasks fails in attempt a. A retry runs the rest of its tasks in stage 4, and reads everything."""
    first = StageAttempt("FAILED", M2, 0, (2,), reads, 9, 10, 4, 20, complete)
    later = StageAttempt("COMPLETE", 4, 0, (2,), reads, 9, 40, rest, 50, rest)
    writes = [StageAttempt("COMPLETE", M1, 0, (1,), 0, 9, 0, 4, 5, 4)]
    writes += [] if rewritten is None else [StageAttempt("COMPLETE", M1, 1, (1,), 0, 9, rewritten, 1, rewritten, 1)]
    skipped = attempts_at(3, of=M1, status="SKIPPED")
    jobs = {"": [Job(0, (M1, M2), is_over=True, has_failed=True)], "b": [Job(1, (3, 4, 5), is_over=True)]}
    store = Store(jobs, {M1: writes, M2: [first], 3: skipped, 4: [later], 5: result(5, 6)})
    watched = Watched(JobHistory(store), is_merged=is_merged)
    watched.begin()
    return watched


@pytest.mark.parametrize("reads", [0, 9])
@pytest.mark.parametrize("complete", [0, 1, 3])
def test_a_retry_that_runs_only_the_tasks_that_had_not_succeeded_is_decided(complete: int, reads: int) -> None:
    """Spark keeps what the other tasks have written."""
    failed_and_retried(complete, 4 - complete, reads=reads).check("b", {5})


@pytest.mark.parametrize(("complete", "rest"), [(3, 2), (2, 3), (3, 4)])
def test_a_retry_stops_the_query_if_it_ran_more_tasks_than_had_not_succeeded(complete: int, rest: int) -> None:
    """An output may have been lost in between. Or a task succeeded too late for Spark to use its output."""
    with pytest.raises(
        FatalError, match=r"job of stage 1 failed .* a retry wrote the rest \(stage 4\).*Restart the query"
    ):
        failed_and_retried(complete, rest).check("b", {5})


def test_a_retry_stops_the_query_if_readers_may_get_the_blocks_of_a_task_that_was_killed() -> None:
    """With push-based shuffle, a killed task may already have pushed blocks."""
    with pytest.raises(FatalError, match="a retry wrote the rest"):
        failed_and_retried(3, 1, is_merged=True).check("b", {5})


@pytest.mark.parametrize("rewritten", [15, 30, 45], ids=["during the first", "in between", "during the second"])
def test_a_retry_stops_the_query_if_the_shuffle_read_by_both_parts_was_rewritten(rewritten: int) -> None:
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        failed_and_retried(3, 1, reads=9, rewritten=rewritten).check("b", {5})


def test_several_retries_that_run_only_the_missing_tasks_are_decided() -> None:
    runs = {
        stage: [StageAttempt(status, stage, 0, (1,), 0, 9, 10 * stage, tasks, 10 * stage + 5, complete)]
        for stage, status, tasks, complete in ((0, "FAILED", 6, 2), (2, "FAILED", 4, 3), (4, "COMPLETE", 1, 1))
    }
    others = [Job(number, (2 * number,), is_over=True, has_failed=True) for number in range(2)]
    store = Store({"": others, "b": [Job(2, (4, 5), is_over=True)]}, {**runs, 5: result(5, 6)})
    watching(store).check("b", {5})


def test_a_lost_part_written_in_two_runs_still_stops_the_query() -> None:
    """The first run was complete, so it may have been read before the loss."""
    runs = {
        stage: [StageAttempt(status, stage, 0, (1,), 0, 9, 10 * stage, tasks, 10 * stage + 5, complete)]
        for stage, status, tasks, complete in ((0, "COMPLETE", 6, 6), (2, "FAILED", 4, 3), (4, "COMPLETE", 1, 1))
    }
    others = [Job(number, (2 * number,), is_over=True, has_failed=number > 0) for number in range(2)]
    store = Store({"": others, "b": [Job(2, (4, 5), is_over=True)]}, {**runs, 5: result(5, 6)})
    with pytest.raises(FatalError, match="Spark ran stage 4 again"):
        watching(store).check("b", {5})


def test_a_batch_of_two_jobs_with_separate_shuffles_is_decided() -> None:
    own = [StageAttempt("COMPLETE", 3, 0, (7,), 0, 9, 30)]
    store = Store({"": ONE_JOB["a"], "b": [Job(1, (3, 5), is_over=True)]}, {**plain(), 3: own, 5: result(5, 6)})
    watching(store).check("b", {5})


def test_the_jobs_of_others_are_not_examined_if_the_batch_reads_no_shared_rows() -> None:
    """Other queries run many jobs, and of many jobs Spark has forgotten some stages."""
    others = [Job(number, (M1,), is_over=True) for number in range(5)]
    store = Store({"": others, "b": [Job(5, (5,), is_over=True)]}, {5: result(5, 6, reads=0)})
    watching(store).check("b", {5})
    assert not store.asked


def test_earlier_jobs_are_ignored_if_the_attempt_itself_computed_its_rows() -> None:
    moment = Moment(0, 1)
    store = Store(
        {"": ONE_JOB["a"], "b": [Job(1, (3, 5), is_over=True)]}, later_job("COMPLETE", "COMPLETE"), moment=moment
    )
    watching(store).check("b", {5})
    assert not store.asked


def test_a_job_that_ran_during_the_attempt_is_examined_because_it_may_have_computed_newer_rows() -> None:
    """A thread of the function caches another DataFrame of the batch, while a first one is written."""
    jobs = {"": ONE_JOB["a"], "b": [Job(1, (3, 5), is_over=True)]}
    store = Store(jobs, later_job("COMPLETE", "COMPLETE"), cached={1}, moment=NEW)
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        watching(store).check("b", {5})


def test_a_batch_is_decided_if_an_earlier_job_wrote_its_shuffle_once() -> None:
    store = Store({"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True)]}, later_job("SKIPPED", "SKIPPED"))
    watching(store).check("b", {5})
    assert store.asked == [0]


def test_a_job_is_examined_once_and_its_shuffles_are_remembered() -> None:
    """A table that the program has cached before the query: each batch reads it, none looks at all jobs again."""
    store = Store({"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True)]}, later_job("SKIPPED", "SKIPPED"))
    watched = watching(store)
    watched.check("b", {5})
    store.jobs |= {"c": [Job(2, (6, 7, 8), is_over=True)]}
    store.stages |= {
        6: attempts_at(6, of=M1, status="SKIPPED"),
        7: attempts_at(7, of=M2, status="SKIPPED"),
        8: result(8, 16),
    }
    watched.begin()
    watched.check("c", {8})
    assert store.asked == [0]
    store.jobs |= {"d": [Job(3, (9, 10, 11), is_over=True)]}
    store.stages |= {9: attempts_at(9, of=M1), 10: attempts_at(10, of=M2), 11: result(11, 17)}
    watched.begin()
    with pytest.raises(FatalError, match="Spark ran stage"):
        watched.check("d", {11})


def test_a_job_running_at_the_same_moment_that_shares_a_repeated_stage_stops_the_query() -> None:
    """It may have written the shuffle again while a task of the batch had read the first write."""
    jobs = {"": [Job(0, (M1, RESULT), is_over=False)], "b": [Job(1, (M1, 5), is_over=True)]}
    store = Store(jobs, {M1: attempts_at(M1, 2), RESULT: attempts_at(RESULT), 5: result(5, 6)})
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(store).check("b", {5})


def sharing(ours: int, other: int) -> Store:
    """Two jobs share the stage that wrote a shuffle twice, and both read it in a single attempt."""
    jobs = {"": [Job(other, (M1, RESULT), is_over=True)], "b": [Job(ours, (M1, 5), is_over=True)]}
    return Store(jobs, {M1: attempts_at(M1, 2), RESULT: attempts_at(RESULT), 5: result(5, 6)})


def test_a_job_that_began_after_the_batchs_job_and_shares_a_repeated_stage_stops_the_query() -> None:
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(sharing(ours=0, other=1)).check("b", {5})


def test_a_job_that_shares_a_repeated_stage_stops_the_query_even_if_another_query_has_examined_the_job() -> None:
    """All queries share the history. The other query's check comes while the batch's job still runs."""
    store = sharing(ours=0, other=1)
    history = JobHistory(store)
    watched = Watched(history)
    watched.begin()
    history.examine({1}, own=())
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watched.check("b", {5})


def test_a_repeated_stage_does_not_stop_the_query_if_only_unrelated_jobs_began_later() -> None:
    store = Store(ONE_JOB | {"": [Job(1, (7,), is_over=True)]}, {**plain(), M1: attempts_at(M1, 3), 7: result(7, 70)})
    watching(store).check("a", {RESULT})


def test_a_job_that_has_not_ended_is_examined_again() -> None:
    jobs = {"": [Job(0, (M1, M2, RESULT), is_over=False)], "b": [Job(1, (3, 4, 5), is_over=True)]}
    store = Store(jobs, later_job("SKIPPED", "SKIPPED"))
    watched = watching(store)
    watched.check("b", {5})
    store.jobs |= {"": ONE_JOB["a"], "c": [Job(2, (6, 7, 8), is_over=True)]}
    store.stages |= {
        M2: attempts_at(M2, 2),
        6: attempts_at(6, of=M1, status="SKIPPED"),
        7: attempts_at(7, of=M2, status="SKIPPED"),
        8: result(8, 16),
    }
    watched.begin()
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        watched.check("c", {8})


def filled(*stages: int, of: int = 3) -> dict[int, list[StageAttempt]]:
    return {stage: [StageAttempt("COMPLETE", stage, 0, (of,), 9, 0, 10 * stage)] for stage in stages}


def test_a_cache_filled_both_before_and_after_its_shuffle_was_rewritten_stops_the_query() -> None:
    """One stage of two concurrent jobs wrote it, so nothing but the order of the readers shows it."""
    again = [StageAttempt("COMPLETE", M1, number, (1,), 0, 9, time) for number, time in enumerate((0, 45))]
    jobs = {"": [Job(0, (M1, 4), is_over=True)], "b": [Job(1, (3, 5), is_over=True)]}
    stages = {M1: again, 3: attempts_at(3, of=M1, status="SKIPPED"), **filled(4, 5)}
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(Store(jobs, stages, cached={3})).check("b", {5})


def test_a_batch_is_decided_if_its_cache_was_filled_after_the_shuffle_was_rewritten() -> None:
    again = [StageAttempt("COMPLETE", M1, number, (1,), 0, 9, time) for number, time in enumerate((0, 1))]
    jobs = {"": [Job(0, (M1, 4), is_over=True)], "b": [Job(1, (3, 5), is_over=True)]}
    stages = {M1: again, 3: attempts_at(3, of=M1, status="SKIPPED"), **filled(4, 5)}
    watching(Store(jobs, stages, cached={3})).check("b", {5})


def kept_while_rewritten(ended: int | None, written: int) -> Store:
    """Job 0 keeps what it reads from the shuffle of M1 from the moment 40 until ``ended``. Job 1 writes M1 again at 45."""
    again = [StageAttempt("COMPLETE", M1, number, (1,), 0, 9, time) for number, time in enumerate((0, 45))]
    kept = StageAttempt("COMPLETE", 4, 0, (3,), 9, written, 40, completion_time=ended)
    own = StageAttempt("COMPLETE", 5, 0, (6,) if written else (3, 6), 9 * (written > 0), 0, 60)
    stages = {
        3: attempts_at(3, of=M1, status="SKIPPED"),
        6: result(6, 90),
        7: [StageAttempt("SKIPPED", 7, 0, (3,), 0, 0)],
    }
    jobs = [Job(0, (M1, 4), is_over=True), Job(1, (M1, 6), is_over=True)]
    ours = Job(2, (3, 7, 5) if written else (3, 5), is_over=True)
    return Store({"": jobs, "b": [ours]}, {**stages, M1: again, 4: [kept], 5: [own]}, cached=set() if written else {3})


@pytest.mark.parametrize("ended", [50, None])
@pytest.mark.parametrize("written", [0, 9], ids=["cached", "written as a shuffle"])
def test_rows_cached_while_another_job_rewrote_their_shuffle_stop_the_query(ended: int | None, written: int) -> None:
    """The reading stage ran once, and only its times show that it may have read both writes."""
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(kept_while_rewritten(ended, written)).check("b", {5})


@pytest.mark.parametrize("written", [0, 9], ids=["cached", "written as a shuffle"])
def test_a_batch_is_decided_if_its_rows_were_cached_before_another_job_rewrote_their_shuffle(written: int) -> None:
    watching(kept_while_rewritten(44, written)).check("b", {5})


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the driver's clock, once or several times, by this many milliseconds."""

    def set_by(change_ms: int) -> None:
        before = time.time
        monkeypatch.setattr(time, "time", lambda: before() + change_ms / 1000)

    return set_by


def read_on_both_sides(back_ms: int) -> Store:
    """A stage keeps what it reads of a shuffle. An executor dies, the clock is set back, and the result stage reads a rewrite."""
    writes = [
        StageAttempt("COMPLETE", M1, number, (1,), 0, 9, began, completion_time=ended)
        for number, began, ended in ((0, 1_000, 2_000), (1, 3_300 - back_ms, 3_500 - back_ms))
    ]
    keeping = StageAttempt("COMPLETE", 3, 0, (2, 4), 9, 9, 2_100, completion_time=3_000)
    reading = StageAttempt("COMPLETE", 5, 0, (2, 6), 9, 0, 3_600 - back_ms, completion_time=4_000 - back_ms)
    return Store({"a": [Job(0, (M1, 3, 5), is_over=True)]}, {M1: writes, 3: [keeping], 5: [reading]})


@pytest.mark.parametrize("back_ms", [0, 500, 1_250, 2_000, 2_500, 2_600, 5_000])
def test_a_shuffle_rewritten_between_its_readers_stops_the_query_even_if_the_clock_was_set_back(
    back_ms: int, set_clock: Callable[[int], None]
) -> None:
    """Spark's reports contain only the times of the driver's clock. In these times, the rewrite may precede both readers."""
    watched = watching(read_on_both_sides(back_ms))
    set_clock(-back_ms)
    with pytest.raises(FatalError, match=r"Spark ran stage 0 again.*Restart the query"):
        watched.check("a", {5})


def test_the_error_about_a_clock_that_was_set_back_says_so(set_clock: Callable[[int], None]) -> None:
    watched = watching(read_on_both_sides(2_000))
    set_clock(-2_000)
    with pytest.raises(FatalError, match=r"clock of the driver's host was set back.*Restart.*unpersist.*gradually"):
        watched.check("a", {5})


def test_a_clock_set_back_and_then_set_right_again_still_stops_the_query(set_clock: Callable[[int], None]) -> None:
    """A moment in between, such as another attempt's, has shown the change."""
    store = read_on_both_sides(2_000)
    history = JobHistory(store)
    watched = Watched(history)
    watched.begin()
    for change_ms in (-2_000, 2_000):
        set_clock(change_ms)
        history.begin()
    with pytest.raises(FatalError, match="was set back"):
        watched.check("a", {5})


def rewritten_before_both() -> Store:
    return read_twice(StageAttempt("COMPLETE", 5, 0, (2, 7), 9, 0, 50), rewritten=5)


def test_a_clock_that_was_set_forward_does_not_stop_the_query(set_clock: Callable[[int], None]) -> None:
    """The times still show the order: the shuffle was rewritten before both stages read it."""
    watched = watching(rewritten_before_both())
    set_clock(60_000)
    watched.check("a", {5})


def test_a_clock_set_back_before_the_batch_was_planned_does_not_stop_the_query(
    set_clock: Callable[[int], None],
) -> None:
    store = rewritten_before_both()
    store.moment = NEW
    history = JobHistory(store)
    history.begin()
    set_clock(-60_000)
    watched = Watched(history)
    watched.begin()
    watched.check("a", {5})


def test_a_clock_that_was_set_back_does_not_stop_a_batch_whose_shuffles_were_written_once(
    set_clock: Callable[[int], None],
) -> None:
    watched = watching(Store(ONE_JOB))
    set_clock(-60_000)
    watched.check("a", {RESULT})


def test_a_cache_without_lineage_that_another_job_refilled_stops_the_query() -> None:
    """``localCheckpoint()`` cuts the lineage: the batch's job does not show the shuffle."""
    jobs = {"": [Job(0, (M1, 4), is_over=True)], "b": [Job(1, (5,), is_over=True)]}
    stages = {M1: attempts_at(M1), 4: result(4, 3, attempts=2), 5: result(5, 3, reads=0)}
    with pytest.raises(FatalError, match="Spark ran stage 4 again"):
        watching(Store(jobs, stages, cached={3})).check("b", {5})


@pytest.mark.parametrize("cached", [{3, 8}, {8}], ids=["cached", "unpersisted"])
@pytest.mark.parametrize("reruns", [1, 2])
def test_a_local_checkpoint_of_a_cache_that_was_filled_from_two_shuffles_stops_the_query(
    reruns: int, cached: set[int]
) -> None:
    """Job 0 fills the cache, job 1 computes the checkpoint from the cache, and the batch's job shows only the checkpoint."""
    jobs = {
        "": [Job(0, (M1, 4), is_over=True), Job(1, (6,), is_over=True)],
        "b": [Job(2, (5,), is_over=True)],
    }
    kept = StageAttempt("COMPLETE", 6, 0, (8, 7, 3), 0, 0, 60)
    stages = {M1: attempts_at(M1), 4: result(4, 3, attempts=reruns), 6: [kept], 5: result(5, 8, reads=0)}
    watched = watching(Store(jobs, stages, cached=cached))
    if reruns == 1:
        watched.check("b", {5})
    else:
        with pytest.raises(FatalError, match="Spark ran stage 4 again"):
            watched.check("b", {5})


def cut_off_while_rewritten(ended: int, rewritten: int = 45) -> Store:
    """Job 0 computes a local checkpoint from the shuffle of M1 from 40 until ``ended``. Job 1 writes M1 again."""
    again = [StageAttempt("COMPLETE", M1, number, (1,), 0, 9, time) for number, time in enumerate((0, rewritten))]
    kept = StageAttempt("COMPLETE", 4, 0, (3,), 9, 0, 40, completion_time=ended)
    jobs = {"": [Job(0, (M1, 4), is_over=True), Job(1, (M1, 6), is_over=True)], "b": [Job(2, (5,), is_over=True)]}
    return Store(jobs, {M1: again, 4: [kept], 5: result(5, 3, reads=0), 6: result(6, 90)}, cached={3})


def test_a_shuffle_rewritten_by_another_job_during_a_local_checkpoint_stops_the_query() -> None:
    """The batch's job does not show the shuffle, and the stage that read it ran once."""
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(cut_off_while_rewritten(ended=50)).check("b", {5})


def test_a_shuffle_rewritten_during_a_local_checkpoint_of_limited_rows_stops_the_query() -> None:
    store = cut_off_while_rewritten(ended=50)
    store.stages[4] = [structs.replace(store.stages[4][0], shuffle_read_records=0)]
    store.hiding = {4}
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(store).check("b", {5})


@pytest.mark.parametrize(("ended", "rewritten"), [(44, 45), (50, 39)], ids=["after it", "before it"])
def test_a_batch_is_decided_if_its_shuffle_was_rewritten_outside_its_local_checkpoint(
    ended: int, rewritten: int
) -> None:
    watching(cut_off_while_rewritten(ended, rewritten)).check("b", {5})


def test_a_shuffle_of_an_earlier_batch_that_read_the_same_cache_does_not_stop_a_later_batch() -> None:
    """Both batches join a cached table. The earlier batch's shuffle is newer than the table, so the table cannot contain it."""
    jobs = {
        "": [Job(0, (M1, 4), is_over=True), Job(1, (12, 13), is_over=True)],
        "b": [Job(2, (14, 15), is_over=True)],
    }
    stages = {
        M1: attempts_at(M1),
        **filled(4),
        12: [StageAttempt("COMPLETE", 12, number, (20,), 0, 9, 120 + number) for number in range(2)],
        13: [StageAttempt("COMPLETE", 13, 0, (3, 21), 9, 0, 130)],
        14: [StageAttempt("COMPLETE", 14, 0, (30,), 0, 9, 140)],
        15: [StageAttempt("COMPLETE", 15, 0, (3, 31), 9, 0, 150)],
    }
    watching(Store(jobs, stages, cached={3})).check("b", {15})


def test_a_job_that_may_have_filled_a_cache_and_is_forgotten_stops_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    store = Store({"b": [Job(1, (3, 4, 5), is_over=True)]}, later_job("SKIPPED", "SKIPPED"), retained=0)
    with pytest.raises(FatalError, match=f"does not contain job 0.*{SETTINGS}"):
        watching(store).check("b", {5})


def without_job(number: int, last: int, **settings: Any) -> Store:
    """Job 0 has filled a cache, and the last job reads it. In between, one job's number is not reported."""
    others = [Job(0, (M1, 4), is_over=True), *(Job(one, (), is_over=True) for one in range(1, last) if one != number)]
    stages = {M1: attempts_at(M1), **filled(4), 5: [StageAttempt("COMPLETE", 5, 0, (3, 30), 9, 0, 150)]}
    return Store({"": others, "b": [Job(last, (5,), is_over=True)]}, stages, cached={3}, **settings)


def checked_while_complete() -> tuple[Store, Watched]:
    """Job 2 is not reported. A check shows that it has not begun, because Spark has forgotten no job. Later, it may have."""
    store = without_job(2, 4, retained=5)
    watched = watching(store)
    watched.check("b", {5})
    store.retained = 0
    watched.check("b", {5})
    return store, watched


def forget(store: Store, *numbers: int) -> None:
    store.jobs = {tag: [job for job in jobs if job.job_id not in numbers] for tag, jobs in store.jobs.items()}


def test_a_missing_report_of_a_job_number_does_not_matter_as_long_as_spark_has_forgotten_no_job() -> None:
    store = without_job(2, 4, retained=5)
    watching(store).check("b", {5})


def test_a_missing_report_of_a_job_number_stops_the_query_once_spark_may_have_forgotten_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    with pytest.raises(FatalError, match=f"does not contain job 2.*cache it again.*{SETTINGS}"):
        watching(without_job(2, 4, retained=4)).check("b", {5})


def test_a_missing_report_of_a_job_that_began_after_a_kept_job_ended_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark forgets the jobs that ended first, so it has forgotten nothing that began after the kept job."""
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    store, watched = checked_while_complete()
    store.jobs |= {"c": [Job(5, (5,), is_over=True)]}
    watched.begin()
    watched.check("c", {5})
    forget(store, 4)
    watched.check("c", {5})
    forget(store, 5)
    store.jobs |= {"d": [Job(6, (5,), is_over=True)]}
    watched.begin()
    with pytest.raises(FatalError, match="does not contain job 2"):
        watched.check("d", {5})


def test_a_missing_report_of_a_job_number_assigned_after_a_kept_job_ended_does_not_matter() -> None:
    store = without_job(2, 1)
    history = JobHistory(store)
    for _ in range(2):
        store.moment = Moment(0, 2)
        history.begin(exactly=True)
    store.jobs |= without_job(2, 4).jobs
    Watched(history).check("b", {5})


def test_a_job_that_begins_late_is_examined_when_it_begins() -> None:
    store = without_job(2, 4, retained=9)
    watched = watching(store)
    watched.check("b", {5})
    store.jobs[""].append(Job(2, (6,), is_over=True))
    store.stages |= {6: [StageAttempt("COMPLETE", 6, number, (3,), 9, 0, 160 + number) for number in range(2)]}
    with pytest.raises(FatalError, match="Spark ran stage 6 again"):
        watched.check("b", {5})


def test_the_error_about_a_cache_older_than_the_query_says_what_to_do_before_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    store = Store({"b": [Job(1, (3, 4, 5), is_over=True)]}, later_job("SKIPPED", "SKIPPED"), retained=0)
    with pytest.raises(FatalError, match=r"reads RDD \d+ from a cache.*UNCACHE TABLE.*Restart the query"):
        watching(store).check("b", {5})


def test_jobs_that_ran_before_the_batchs_rdds_were_created_are_not_examined() -> None:
    """In a session with many jobs, Spark has forgotten the first few."""
    store = Store({"b": [Job(900, (3, 4, 5), is_over=True)]}, later_job("COMPLETE", "COMPLETE"), moment=Moment(0, 900))
    watched = watching(store)
    store.moment = Moment(10, 900)
    watched.begin()
    watched.check("b", {5})
    assert not store.asked


def test_a_report_that_spark_dropped_during_the_attempt_stops_the_query() -> None:
    """The report of a stage that ran again would leave no other trace."""
    store = Store(dict(ONE_JOB), moment=NEW)
    watched = watching(store)
    store.lost = 2
    with pytest.raises(FatalError, match=r"Spark has dropped 2 of its reports.*eventqueue\.capacity"):
        watched.check("a", {RESULT})


def read_after_a_drop(store: Store) -> None:
    """Spark drops a report after RDD 1 and before RDD 10 is created. The attempt begins after the drop."""
    history = JobHistory(store)
    history.begin(exactly=True)
    store.lost, store.moment = 1, OLD
    watched = Watched(history)
    watched.begin()
    watched.check("b", {5})


def test_a_report_that_spark_dropped_before_the_attempts_own_jobs_does_not_matter() -> None:
    store = Store({"b": [Job(0, (3, 5), is_over=True)]}, moment=NEW)
    store.stages = {3: [attempt_of(3, 0, 20)], 5: result(5, 21)}
    read_after_a_drop(store)


def test_a_report_that_spark_dropped_after_the_attempts_shuffle_was_planned_stops_the_query() -> None:
    """The query planned the shuffle before its call. Another job may have written the shuffle twice."""
    store = Store({"b": [Job(0, (3, 4, 5), is_over=True)]}, later_job("COMPLETE", "COMPLETE"), moment=NEW)
    with pytest.raises(FatalError, match="Spark has dropped 1 of its reports"):
        read_after_a_drop(store)


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_report_dropped_by_spark_matters_only_if_old_cached_rows_were_read(*, is_cached: bool) -> None:
    """Each batch computes the rows of a table once more, unless the table is cached."""
    store = Store({"b": [Job(0, (5,), is_over=True)]}, {5: result(5, 3, reads=0)}, moment=NEW)
    store.cached = {3} if is_cached else set()
    with pytest.raises(FatalError, match="unpersist") if is_cached else contextlib.nullcontext():
        read_after_a_drop(store)


def test_a_report_dropped_between_the_planning_of_a_shuffle_and_its_local_checkpoint_stops_the_query() -> None:
    """The attempt's jobs show only the local checkpoint, which is newer than the drop."""
    store = Store({"": [Job(0, (M1, 4), is_over=True)], "b": [Job(1, (5,), is_over=True)]}, moment=NEW)
    store.stages = {M1: attempts_at(M1), 4: result(4, 13), 5: result(5, 13, reads=0)}
    store.cached = {13}
    history = JobHistory(store)
    history.begin(exactly=True)
    store.lost, store.moment = 1, OLD
    history.begin(exactly=True)
    store.moment = Moment(20, 1)
    watched = Watched(history)
    watched.begin()
    with pytest.raises(FatalError, match="Spark has dropped 1 of its reports"):
        watched.check("b", {5})


def test_a_check_waits_for_the_end_of_a_job() -> None:
    store = Store(ONE_JOB, unreported=iter([[], [Job(0, (M1, M2, RESULT), is_over=False)]]))
    watching(store).check("a", {RESULT})
    assert next(store.unreported, None) is None


SETTINGS = "spark.ui.retainedJobs, spark.ui.retainedStages .* and spark.scheduler.listenerbus.eventqueue.capacity"


def test_a_job_not_reported_by_spark_stops_the_query_at_once_and_the_error_mentions_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shuffles, "_STATUS_TIMEOUT_S", 0.01)
    with pytest.raises(FatalError, match=f"the end of the job of stage 2.*{SETTINGS}"):
        watching(Store({"a": []})).check("a", {RESULT})


def after_another() -> dict[int, list[StageAttempt]]:
    """The stages of a batch that skips the shuffle of M1. A stage with a lower number has written it."""
    return {20: attempts_at(20, of=M1, status="SKIPPED"), 21: attempts_at(21, of=M2), 22: result(22, 3)}


def test_a_job_of_another_query_that_is_just_beginning_is_awaited() -> None:
    """Spark enters such a job before its stages."""

    class Beginning(Store):
        def last_attempt(self, stage: int) -> StageAttempt | None:
            found = super().last_attempt(stage)
            if stage == 9:
                self.stages[stage] = [StageAttempt("PENDING", stage, 0, RDDS[M1], 0, 0)]
            return found

    others = [Job(0, (8,), is_over=True), Job(1, (9,), is_over=False)]
    jobs = {"": others, "a": [Job(2, (20, 21, 22), is_over=True)]}
    store = Beginning(jobs, {**after_another(), 8: attempts_at(8, of=M1)})
    watching(store).check("a", {22})
    assert 9 in store.stages


def test_a_stage_forgotten_by_spark_stops_the_query_and_the_error_mentions_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    with pytest.raises(FatalError, match=f"does not contain stage 1.*{SETTINGS}"):
        watching(Store(ONE_JOB, {stage: attempts_at(stage) for stage in (M1, RESULT)})).check("a", {RESULT})


def of_somebody_else(skipped: int, *, ended_ms: int | None = 95) -> Store:
    """A batch that another job may have computed: stages 6 and 7 of that job were not found, and stage 8 was skipped."""
    jobs = {
        "": [Job(0, (5,), is_over=True), Job(1, (6, 7, 8, 9), is_over=True, skipped=skipped, ended_ms=ended_ms)],
        "a": [Job(2, (20, 21, 22), is_over=True)],
    }
    stages = {**after_another(), 5: attempts_at(5, of=M1)}
    return Store(jobs, stages | {8: attempts_at(8, of=M1, status="SKIPPED"), 9: result(9, 90)})


def test_a_dropped_skipped_stage_of_another_query_does_not_stop_the_query() -> None:
    watching(of_somebody_else(skipped=3)).check("a", {22})


@pytest.mark.parametrize(
    ("skipped", "ended_ms"),
    [
        pytest.param(2, 95, id="one of the two has run"),
        pytest.param(0, None, id="the job still runs"),
        pytest.param(3, 90, id="a later job ran a stage that this one skipped"),
    ],
)
def test_a_stage_that_spark_has_dropped_counts_as_skipped_only_if_the_job_accounts_for_it(
    monkeypatch: pytest.MonkeyPatch, skipped: int, ended_ms: int | None
) -> None:
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    with pytest.raises(FatalError, match="does not contain stage 6"):
        watching(of_somebody_else(skipped, ended_ms=ended_ms)).check("a", {22})


@pytest.mark.parametrize(
    "shared",
    [
        pytest.param([StageAttempt("SKIPPED", 8, 0, (21,), 0, 0), attempt_of(8, 1, 21)], id="skipped, then run again"),
        pytest.param([StageAttempt("PENDING", 8, 0, (21,), 0, 0)], id="a running job shares it"),
        pytest.param([StageAttempt("SKIPPED", 8, 0, (21,), 0, 0, 60)], id="run, then reported as new"),
    ],
)
def test_an_ambiguous_number_of_skipped_stages_does_not_account_for_a_dropped_stage(
    monkeypatch: pytest.MonkeyPatch, shared: list[StageAttempt]
) -> None:
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    store = of_somebody_else(skipped=2)
    store.stages[8] = shared
    with pytest.raises(FatalError, match="does not contain stage 6"):
        watching(store).check("a", {22})


def test_a_stage_that_seems_to_have_run_before_the_clock_was_set_back_does_not_account_for_a_dropped_stage(
    monkeypatch: pytest.MonkeyPatch, set_clock: Callable[[int], None]
) -> None:
    """The job skipped stage 8 and not stage 6. A later job ran stage 8, at a time that seems to be earlier."""
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    jobs = {
        "": [Job(0, (5,), is_over=True), Job(1, (6, 8, 9), is_over=True, skipped=1, ended_ms=95)],
        "a": [Job(2, (20, 21, 22), is_over=True)],
    }
    stages = {**after_another(), 5: attempts_at(5, of=M1)}
    later = StageAttempt("COMPLETE", 8, 0, (21,), 0, 9, 80)
    watched = watching(Store(jobs, stages | {8: [later], 9: result(9, 90)}))
    set_clock(-60_000)
    with pytest.raises(FatalError, match="does not contain stage 6"):
        watched.check("a", {22})


def test_a_rerun_whose_first_attempt_spark_has_dropped_stops_the_query() -> None:
    store = Store(ONE_JOB, {**plain(), M2: attempts_at(M2, 2)[1:]})
    with pytest.raises(FatalError, match="does not contain all attempts at stage 1"):
        watching(store).check("a", {RESULT})


def without_the_writer(own: list[Job], stages: dict[int, list[StageAttempt]]) -> Watched:
    """The attempt skips a shuffle. Spark has forgotten job 0, which may have written the shuffle."""
    return watching(Store({"b": own}, stages, moment=NEW, retained=0))


def test_a_dropped_job_of_the_batch_is_detected_if_another_job_has_read_its_shuffle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adaptive execution writes a shuffle in one job and reads it in another."""
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    skipped = {stage: attempts_at(stage, of=kind, status="SKIPPED") for stage, kind in ((3, M1), (4, M2))}
    with pytest.raises(FatalError, match="does not contain job 0"):
        without_the_writer([Job(1, (3, 4, 5), is_over=True)], {**skipped, 5: result(5, 6)}).check("b", {5})


def test_a_skipped_shuffle_that_only_later_stages_are_known_to_have_written_stops_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another job of the batch has written a lost part again."""
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    own = [Job(1, (3, 4), is_over=True), Job(2, (5, 6), is_over=True), Job(3, (7, 8, 9), is_over=True)]
    skipped = {stage: [StageAttempt("SKIPPED", stage, 0, (rdd,), 0, 0)] for stage, rdd in ((3, 31), (7, 31), (8, 33))}
    ran = {stage: [attempt_of(stage, 0, rdd)] for stage, rdd in ((4, 32), (5, 31), (6, 33))}
    with pytest.raises(FatalError, match="does not contain job 0"):
        without_the_writer(own, {**skipped, **ran, 9: result(9, 34)}).check("b", {9})


def test_a_stage_that_only_computed_the_rows_of_a_skipped_shuffle_has_not_written_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both DataFrames of the batch compute RDD 33, and the second one shuffles it."""
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    jobs = [Job(1, (3,), is_over=True), Job(2, (4, 5), is_over=True)]
    stages = {
        3: [StageAttempt("COMPLETE", 3, 0, (35, 33, 31), 0, 0, 30)],
        4: [StageAttempt("SKIPPED", 4, 0, (33, 31), 0, 0)],
        5: result(5, 34),
    }
    with pytest.raises(FatalError, match="does not contain job 0"):
        without_the_writer(jobs, stages).check("b", {3, 5})


def test_a_job_that_ended_earlier_proves_nothing_once_the_clock_was_set_back(
    set_clock: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark forgets first what seems to have ended first."""
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)
    _, watched = checked_while_complete()
    set_clock(-60_000)
    with pytest.raises(FatalError, match="does not contain job 2"):
        watched.check("b", {5})


def test_a_batch_whose_jobs_have_consecutive_numbers_is_decided_although_spark_has_forgotten_all_other_jobs() -> None:
    store = Store(
        {"b": [Job(900, (3,), is_over=True), Job(901, (4,), is_over=True)]}, moment=Moment(10, 900), retained=1
    )
    store.stages = {3: result(3, 13), 4: result(4, 14)}
    watching(store).check("b", {3, 4})


def test_a_pending_stage_of_the_batch_needs_no_job_that_wrote_it() -> None:
    """The driver has collected the batch. A stateful batch is then evaluated once more, without output."""
    running = Job(1, (3, 5), is_over=False)
    pending = {stage: [StageAttempt("PENDING", stage, 0, (30 + stage,), 0, 0)] for stage in (3, 5)}
    store = Store({}, {**plain(), **pending}, moment=NEW, marked={"a": [*ONE_JOB["a"], running]})
    marked(store).check("a", ())


def test_a_shuffle_without_tasks_needs_no_job_that_wrote_it() -> None:
    empty = StageAttempt("SKIPPED", 3, 0, (3,), 0, 0, num_tasks=0)
    without_the_writer([Job(1, (3, 5), is_over=True)], {3: [empty], 5: result(5, 6)}).check("b", {5})


def unread(*, tasks: int) -> Store:
    """Stage 1 reads the shuffle of stage 0 only for a product with an empty table. All of its tasks have other rows."""
    product = StageAttempt("COMPLETE" if tasks else "SKIPPED", 1, 0, (13, 12), 0, tasks, 10 if tasks else None, tasks)
    stages = {0: [StageAttempt("SKIPPED", 0, 0, (11,), 0, 0, num_tasks=4)], 1: [product], 2: result(2, 15, reads=tasks)}
    return Store({"b": [Job(0, (0, 1, 2), is_over=True)]}, stages)


@pytest.mark.parametrize("tasks", [0, 2], ids=["alone", "with other rows"])
@pytest.mark.parametrize("moment", [OLD, Moment(20, 0)], ids=["planned by the call", "planned before the call"])
def test_a_shuffle_that_nobody_wrote_is_decided_because_no_task_has_read_it(tasks: int, moment: Moment) -> None:
    """The product has no partitions, so Spark never writes the shuffle."""
    store = unread(tasks=tasks)
    store.moment = moment
    watching(store).check("b", {2})


def test_a_shuffle_that_nobody_seems_to_have_written_stops_the_query_if_spark_has_dropped_a_report() -> None:
    """The report may be of the stage that wrote the shuffle."""
    store = unread(tasks=2)
    store.moment = NEW
    history = JobHistory(store)
    history.begin(exactly=True)
    store.lost, store.moment = 1, Moment(20, 0)
    watched = Watched(history)
    watched.begin()
    with pytest.raises(FatalError, match="Spark has dropped 1 of its reports"):
        watched.check("b", {2})


def test_a_job_of_the_batch_that_was_still_running_is_examined_when_a_retry_skips_its_shuffle() -> None:
    """The driver has collected the batch. A stateful batch is then evaluated once more, and that job rewrites a shuffle."""
    running = Job(1, (3, 4, 5), is_over=False)
    pending = {stage: [StageAttempt("PENDING", stage, 0, (stage - 2,), 0, 0)] for stage in (3, 4, 5)}
    store = Store({}, {**plain(), **pending}, marked={"a": [*ONE_JOB["a"], running]})
    watched = marked(store)
    watched.check("a", ())
    store.jobs["a"] = [*ONE_JOB["a"], structs.replace(running, is_over=True)]
    store.stages |= {3: attempts_at(3, of=M1), 4: attempts_at(4, of=M2), 5: result(5, 3)}
    store.jobs["b"] = [Job(3, (6, 7, 8), is_over=True)]
    store.stages |= {6: attempts_at(6, of=M1, status="SKIPPED"), 7: attempts_at(7, of=M2, status="SKIPPED")}
    store.stages[8] = result(8, 16)
    watched.begin()
    with pytest.raises(FatalError, match="Spark ran stage"):
        watched.check("b", {8})


def test_a_repeated_shared_stage_is_detected_although_spark_reports_it_as_new() -> None:
    """Another thread counts the batch. Spark loses its report of the stage once our job, which shares the stage, starts."""
    lost = StageAttempt("SKIPPED", M1, 0, RDDS[M1], 0, 0, 5)
    jobs = {"": [Job(0, (M1, RESULT), is_over=True)], "b": [Job(1, (M1, 5), is_over=True)]}
    store = Store(jobs, {M1: [lost, attempt_of(M1, 1, *RDDS[M1])], RESULT: attempts_at(RESULT), 5: result(5, 6)})
    with pytest.raises(FatalError, match="Spark ran stage 0 again"):
        watching(store).check("b", {5})


def test_a_retry_reads_the_state_of_a_skipped_stage_of_the_batch_that_spark_has_dropped() -> None:
    """The stage's RDDs are not known, so neither is the shuffle that the batch has read."""
    job = Job(0, (M1, M2, RESULT), is_over=True, skipped=1, ended_ms=95)
    store = Store({"a": [job]}, {stage: attempts_at(stage) for stage in (M2, RESULT)})
    watched = watching(store)
    with pytest.raises(RetriableError, match="dropped stage 0"):
        watched.check("a", {RESULT})
    store.jobs, store.stages = {"b": [job]}, plain()
    watched.begin()
    watched.check("b", {RESULT})


def reader_of_old_rows(first: int) -> dict[int, list[StageAttempt]]:
    """The stages of a later job that skips what an earlier job has written."""
    kinds = enumerate((M1, M2), first)
    skipped = {stage: attempts_at(stage, of=kind, status="SKIPPED") for stage, kind in kinds}
    return {**skipped, first + 2: result(first + 2, 16)}


def test_a_run_started_after_spark_has_forgotten_a_job_uses_the_history_of_an_earlier_run() -> None:
    """A query is restarted in a long session, and reads a table that the session cached at its beginning."""
    store = Store({"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True)]}, later_job("SKIPPED", "SKIPPED"))
    history = JobHistory(store)
    previous = Watched(history)
    previous.begin()
    previous.check("b", {5})
    store.jobs = {"c": [Job(2, (6, 7, 8), is_over=True)]}
    store.stages = reader_of_old_rows(6)
    restarted = Watched(history)
    restarted.begin()
    restarted.check("c", {8})
    store.jobs |= {"d": [Job(3, (9, 10, 11), is_over=True)]}
    store.stages |= {9: attempts_at(9, of=M1), 10: attempts_at(10, of=M2), 11: result(11, 17)}
    restarted.begin()
    with pytest.raises(FatalError, match="Spark ran stage"):
        restarted.check("d", {11})


def test_after_an_idle_period_a_query_examines_only_jobs_since_the_last_recorded_moment() -> None:
    """Others ran so many jobs that Spark has forgotten most of them."""
    store = Store({"b": [Job(900, (3, 4, 5), is_over=True)]}, later_job("COMPLETE", "COMPLETE"), moment=NEW)
    history = JobHistory(store)
    watched = Watched(history)
    watched.begin()
    store.moment = Moment(0, 900)
    history.begin(exactly=True)
    store.moment = OLD
    watched.begin()
    watched.check("b", {5})
    assert not store.asked


def test_a_recorded_moment_is_never_older_than_the_previous_one() -> None:
    """A run that knows of few jobs begins after another run has recorded how many exist."""
    history = JobHistory(Store({}, moment=Moment(5, 900)))
    history.examined([3])
    history.begin(exactly=True)
    assert history.begin().job == 900


def test_old_moments_are_thinned_out_but_the_first_and_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_history, "_MAX_MOMENTS", 16)
    store = Store({})
    history = JobHistory(store)
    for number in range(1, 1000):
        store.moment = Moment(number, number)
        history.begin(exactly=True)
    assert [history.before(rdd).job for rdd in (0, 1, 2, *range(992, 1100, 50))] == [0, 1, 1, 992, 999, 999]
    found = [history.before(rdd).job for rdd in range(1000)]
    assert found == sorted(found)
    assert all(job <= rdd for rdd, job in enumerate(found))
    assert 8 < len(set(found)) <= 17


@pytest.mark.parametrize("search", [lambda history: history.before(1050), lambda history: history._before_job(1050)])
def test_a_search_finds_its_moment_while_another_query_thins_out_the_old_ones(
    search: Callable[[JobHistory], Moment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_history, "_MAX_MOMENTS", 16)
    store = Store({})
    history = JobHistory(store)

    def begin(numbers: Iterable[int]) -> None:
        for number in numbers:
            store.moment = Moment(number, number)
            history.begin(exactly=True)

    def interrupted(*arguments: Any, **others: Any) -> int:
        found: int = bisect_right(*arguments, **others)
        begin(range(2000, 2030))
        return found

    begin(range(1000, 1100, 10))
    monkeypatch.setattr(job_history, "bisect_right", interrupted)
    assert search(history).job == 1050


def test_a_stage_that_reads_a_cached_table_does_not_make_its_dropped_stages_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stage 1 was rerun while it filled cached table 7. Then so many RDDs are computed that the table's stages are dropped."""
    monkeypatch.setattr(computed_rdds, "_MAX_RDDS", 3)
    filling = {
        0: [StageAttempt("COMPLETE", 0, 0, (5,), 0, 9, 1, 1, 2), StageAttempt("COMPLETE", 0, 1, (5,), 0, 9, 6, 1, 7)],
        1: [StageAttempt("FAILED", 1, 0, (7, 6), 9, 0, 4, 1, 5), StageAttempt("COMPLETE", 1, 1, (7, 6), 9, 0, 8, 1, 9)],
    }
    store = Store({"": [Job(0, (0, 1), is_over=True)]}, filling, cached={7})
    history = JobHistory(store)
    history.examine([7], set())
    store.jobs = {"": []}
    other, reader = Shuffles(history), Shuffles(history)
    for number in (1, 2, 3):
        store.jobs = {"o": [Job(number, (number + 1,), is_over=True)]}
        store.stages[number + 1] = [StageAttempt("COMPLETE", number + 1, 0, (10 * number + 1, 10 * number), 0, 0, 90)]
        store.moment = Moment(10 * number, number)
        other.begin()
        other.check("o", {number + 1}, lambda: None)
    store.jobs = {"r": [Job(4, (5,), is_over=True)]}
    store.stages[5] = [StageAttempt("COMPLETE", 5, 0, (41, 7, 6), 0, 0, 95)]
    store.moment = Moment(40, 4)
    for _ in range(2):
        reader.begin()
        with pytest.raises(FatalError, match="no longer knows which stages computed this RDD"):
            reader.check("r", {5}, lambda: None)
        reader = Shuffles(history)


def test_a_query_that_reuses_rows_whose_stages_were_dropped_long_ago_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(computed_rdds, "_MAX_RDDS", 3)
    store = Store({"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True)]}, later_job("SKIPPED", "SKIPPED"))
    watched = watching(store)
    watched.check("b", {5})
    store.jobs |= {"c": [Job(2, (6, 7, 8), is_over=True)]}
    store.stages |= {stage: [StageAttempt("COMPLETE", stage, 0, (20 + stage,), 0, 9, 90)] for stage in (6, 7, 8)}
    store.moment = Moment(20, 3)
    watched.begin()
    watched.check("c", {8})
    store.jobs |= {"d": [Job(3, (9, 10, 11), is_over=True)]}
    store.stages |= reader_of_old_rows(9)
    watched.begin()
    with pytest.raises(FatalError, match=r"reads RDD [12] .* which stages computed this RDD.*cache it again"):
        watched.check("d", {11})
