"""Only rows of the same shuffles are decided (rule 6): M1 writes a shuffle, M2 reads it and writes another, R reads that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from integration.spark import shuffles
from integration.spark.shuffles import Shuffles
from integration.spark.status_store import Job, StageAttempt
from twopc.errors import FatalError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Iterator

M1, M2, RESULT = range(3)
RDDS = {M1: (1,), M2: (2,), RESULT: (3,)}


def attempts_at(stage: int, count: int = 1, *, of: int | None = None, status: str = "COMPLETE") -> list[StageAttempt]:
    """Attempts at a stage that does what stage ``of`` does: by default itself."""
    kind = stage if of is None else of
    return [StageAttempt(status, stage, RDDS[kind], 9 * (kind != M1), 9 * (kind != RESULT))] * count


def plain() -> dict[int, list[StageAttempt]]:
    return {stage: attempts_at(stage) for stage in RDDS}


@dataclass
class Store:
    """Spark's status store: the jobs of each tag, and of the query's function under the tag ``""``."""

    jobs: dict[str, list[Job]]
    stages: dict[int, list[StageAttempt]] = field(default_factory=plain)
    cached: set[int] = field(default_factory=set)
    unreported: Iterator[list[Job]] = field(default_factory=lambda: iter(()))
    looked_closer: bool = False
    marked: dict[str, list[Job]] = field(default_factory=dict)  #: what is reported by the time that a mark is

    def mark(self, tag: str) -> None:
        marks = self.jobs.get(tag, [])
        self.jobs |= {**self.marked, tag: [*marks, Job(90 + len(marks), (), is_over=True)]}

    def jobs_with_tag(self, tag: str) -> list[Job]:
        return next(self.unreported, self.jobs.get(tag, []))

    def jobs_of_group(self, group: str | None, *, after: int) -> list[Job]:
        assert group == "run"
        return sorted(
            (job for jobs in self.jobs.values() for job in jobs if job.job_id > after), key=lambda job: job.job_id
        )

    def last_attempt(self, stage: int) -> int | None:
        return len(self.stages[stage]) - 1 if stage in self.stages else None

    def attempts(self, stage: int) -> list[StageAttempt]:
        self.looked_closer = True
        return self.stages.get(stage, [])

    def shuffle_of(self, stage: int) -> frozenset[int]:
        last = self.stages[stage][-1]
        return frozenset(last.rdd_ids) if last.shuffle_write_records and last.status == "COMPLETE" else frozenset()

    def cached_rdds(self) -> set[int]:
        return self.cached


ONE_JOB = {"a": [Job(0, (M1, M2, RESULT), is_over=True)]}


def marked(store: Store) -> Shuffles:
    watched = watching(store)
    with watched.looking("a"):
        pass
    return watched


def watching(store: Store) -> Shuffles:
    return Shuffles(store, "run")  # type: ignore[arg-type]


def test_a_batch_of_stages_that_ran_once_is_decided_without_a_closer_look() -> None:
    store = Store(ONE_JOB)
    watching(store).check("a", {RESULT})
    assert not store.looked_closer


def test_a_job_whose_rows_were_collected_is_checked_once_a_mark_behind_it_is_reported() -> None:
    """Such rows do not say which stage they are from, so the mark says that everything before it is reported."""
    store = Store({}, {**plain(), M2: attempts_at(M2, 2)}, marked=ONE_JOB)
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        marked(store).check("a", ())


def test_the_jobs_of_collected_rows_are_read_once_their_mark_is_reported() -> None:
    """Whatever is read before it may lack a stage that ran again."""
    store, asked = Store(dict(ONE_JOB)), list[str]()
    reports = iter([False, False, True])
    read = store.jobs_with_tag

    def jobs_with_tag(tag: str) -> list[Job]:
        asked.append(tag)
        return read(tag) if tag == "a" or next(reports) else []

    store.jobs_with_tag = jobs_with_tag  # type: ignore[method-assign]
    marked(store).check("a", ())
    assert asked == ["a-end0"] * 3 + ["a"]


def test_what_was_seen_of_collected_rows_does_not_stand_for_a_job_of_tasks_that_followed() -> None:
    """Two DataFrames: the driver collects one, tasks write the other, in a stage that ran again."""
    store = Store(dict(ONE_JOB), {**plain(), 3: attempts_at(3, 2, of=M2), 4: attempts_at(4, of=RESULT)})
    watched = marked(store)
    store.jobs["a"] = [*ONE_JOB["a"], Job(91, (3, 4), is_over=True)]
    with pytest.raises(FatalError, match="Spark ran stage"):
        watched.check("a", {4})


def test_what_was_seen_of_one_attempt_does_not_stand_for_the_next() -> None:
    store = Store(dict(ONE_JOB))
    watched = marked(store)
    store.jobs["b"] = [Job(91, (3,), is_over=True)]
    store.stages[3] = [StageAttempt("COMPLETE", 3, (9,), 0, 0)] * 2
    with pytest.raises(RetriableError, match="stage 3 was run again"):
        watched.check("b", ())


def test_a_mark_that_is_never_reported_stops_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffles, "_STATUS_TIMEOUT_S", 0.05)
    monkeypatch.setattr(Store, "mark", lambda *_: None)
    with pytest.raises(FatalError, match="the end of the job that collected the batch"):
        marked(Store(dict(ONE_JOB))).check("a", ())


def test_a_stage_that_read_a_shuffle_and_ran_again_stops_the_query_and_every_later_call_of_the_run() -> None:
    watched = watching(Store(ONE_JOB, {**plain(), M2: attempts_at(M2, 2)}))
    with pytest.raises(FatalError, match=r"Spark ran stage 1 again.*Restart the query"):
        watched.check("a", {RESULT})
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        watched.require_unmixed()


def test_it_stops_the_query_also_where_the_result_stage_ran_again() -> None:
    store = Store(ONE_JOB, {**plain(), M2: attempts_at(M2, 2), RESULT: attempts_at(RESULT, 2)})
    with pytest.raises(FatalError):
        watching(store).check("a", {RESULT})


def test_a_stage_without_a_shuffle_as_its_input_may_run_again() -> None:
    watching(Store(ONE_JOB, {**plain(), M1: attempts_at(M1, 3)})).check("a", {RESULT})


def test_a_result_stage_that_ran_again_is_repeated_and_the_repetition_is_decided() -> None:
    store = Store(ONE_JOB, {**plain(), RESULT: attempts_at(RESULT, 2)})
    watched = watching(store)
    with pytest.raises(RetriableError, match=r"stage 2 was run again \(attempt 1\)"):
        watched.check("a", {RESULT})
    store.jobs = {**ONE_JOB, "b": [Job(1, (3, 4, 5), is_over=True, skipped=8)]}
    store.stages |= {
        3: attempts_at(3, of=M1, status="SKIPPED"),
        4: attempts_at(4, of=M2, status="SKIPPED"),
        5: [StageAttempt("COMPLETE", 5, (6,), 9, 0)],
    }
    watched.check("b", {5})


def test_a_result_stage_that_cached_its_rows_and_ran_again_stops_the_query() -> None:
    """The cache keeps what it read of the first shuffle, for the repetition, too."""
    store = Store(ONE_JOB, {**plain(), RESULT: attempts_at(RESULT, 2)}, cached={3})
    with pytest.raises(FatalError):
        watching(store).check("a", {RESULT})


def later_job(m1: str, m2: str) -> dict[int, list[StageAttempt]]:
    return {
        **plain(),
        3: attempts_at(3, of=M1, status=m1),
        4: attempts_at(4, of=M2, status=m2),
        5: [StageAttempt("COMPLETE", 5, (6,), 9, 0)],
    }


def test_a_shuffle_that_an_earlier_job_of_the_function_wrote_and_mixed_stops_the_query() -> None:
    """``df.count()`` before the call: its job has no tag of ours, and the batch's own job skips the stage."""
    stages = {**later_job("SKIPPED", "SKIPPED"), M2: attempts_at(M2, 2)}
    jobs = {"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True, skipped=8)]}
    with pytest.raises(FatalError, match="Spark ran stage 1 again"):
        watching(Store(jobs, stages)).check("b", {5})


def test_a_shuffle_of_an_earlier_job_that_is_completed_by_a_later_one_stops_the_query() -> None:
    """An executor died between the two: each stage has one attempt, with some of its tasks."""
    jobs = {"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True, missing=4)]}
    with pytest.raises(FatalError, match="Spark ran stage"):
        watching(Store(jobs, later_job("COMPLETE", "COMPLETE"))).check("b", {5})


@pytest.mark.parametrize("tags", [("", "b"), ("b", "b")], ids=["the function's job", "another DataFrame's job"])
def test_a_shuffle_that_an_earlier_job_wrote_and_a_later_one_writes_anew_as_a_whole_stops_the_query(
    tags: tuple[str, str],
) -> None:
    """An executor died that had all of it: nothing is skipped. A cache, or what the other DataFrame wrote, is of the first."""
    jobs: dict[str, list[Job]] = {"b": []}
    for number, (tag, stages) in enumerate(zip(tags, [(M1, RESULT), (3, 5)], strict=True)):
        jobs.setdefault(tag, []).append(Job(number, stages, is_over=True))
    watched = watching(Store(jobs, later_job("COMPLETE", "COMPLETE"), cached={2} if tags[0] == "" else set()))
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        watched.check("b", {5})
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        watched.require_unmixed()


def test_two_jobs_with_shuffles_of_their_own_are_decided_without_a_closer_look() -> None:
    stages = {**plain(), 3: [StageAttempt("COMPLETE", 3, (7,), 0, 9)], 5: [StageAttempt("COMPLETE", 5, (6,), 9, 0)]}
    store = Store({"": ONE_JOB["a"], "b": [Job(1, (3, 5), is_over=True)]}, stages, cached={2})
    watching(store).check("b", {5})
    assert not store.looked_closer


def test_a_batch_of_one_job_that_skips_nothing_reads_nothing_of_the_functions_jobs_where_nothing_is_cached() -> None:
    store = Store({"": ONE_JOB["a"], "b": [Job(1, (3, 5), is_over=True)]}, later_job("COMPLETE", "COMPLETE"))
    del store.stages[M1]  # of many jobs Spark has forgotten some stages
    watching(store).check("b", {5})


def test_what_an_earlier_job_of_the_function_wrote_once_is_decided_without_a_closer_look() -> None:
    store = Store(
        {"": ONE_JOB["a"], "b": [Job(1, (3, 4, 5), is_over=True, skipped=8)]}, later_job("SKIPPED", "SKIPPED")
    )
    watching(store).check("b", {5})
    assert not store.looked_closer


def test_jobs_of_a_batch_that_was_checked_are_not_checked_again() -> None:
    store = Store(ONE_JOB)
    watched = watching(store)
    watched.check("a", {RESULT})
    store.stages = {**later_job("SKIPPED", "SKIPPED"), M2: attempts_at(M2, 2)}
    store.jobs = {**ONE_JOB, "b": [Job(1, (3, 4, 5), is_over=True, skipped=8)]}
    watched.check("b", {5})


def test_the_end_of_a_job_is_waited_for() -> None:
    store = Store(ONE_JOB, unreported=iter([[], [Job(0, (M1, M2, RESULT), is_over=False, missing=1)]]))
    watching(store).check("a", {RESULT})
    assert next(store.unreported, None) is None


SETTINGS = "spark.ui.retainedJobs, spark.ui.retainedStages .* and spark.scheduler.listenerbus.eventqueue.capacity"


def test_a_job_that_spark_does_not_report_stops_the_query_at_once_and_names_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shuffles, "_STATUS_TIMEOUT_S", 0.01)
    with pytest.raises(FatalError, match=f"the end of the job of stage 2.*{SETTINGS}"):
        watching(Store({"a": []})).check("a", {RESULT})


def test_a_stage_that_spark_has_forgotten_stops_the_query_and_names_the_settings() -> None:
    with pytest.raises(FatalError, match=f"does not have stage 1.*{SETTINGS}"):
        watching(Store(ONE_JOB, {stage: attempts_at(stage) for stage in (M1, RESULT)})).check("a", {RESULT})
