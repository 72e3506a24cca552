"""A stage that wrote no rows has also written its shuffle (rule 6)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from tests.unit.test_spark_shuffles import (
    NEW,
    OLD,
    Store,
    broadcast_before,
    collected_again,
    cut_off_while_rewritten,
    kept_while_rewritten,
    read_twice,
    watching,
)
from twopc.errors import FatalError, RetriableError
from twopc.integration.spark.reports import Job, Moment, StageAttempt

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

#: How many rows the first run of a shuffle's stage has written, and how many the second.
ROWS = [(9, 9), (0, 9), (9, 0), (0, 0)]
MIXED = "Spark ran stage {} again"


def writes(stage: int, rdd: int, rows: int, at: int, tasks: int = 1, reads: int = 0) -> list[StageAttempt]:
    """A stage that writes a shuffle of the RDD's rows."""
    return [StageAttempt("COMPLETE", stage, 0, (rdd,), reads, rows, at, tasks, at + 5, tasks)]


def reads(stage: int, *rdds: int, rows: int, at: int) -> list[StageAttempt]:
    """A job's last stage. It reads a shuffle."""
    return [StageAttempt("COMPLETE", stage, 0, rdds, rows, 0, at, 1, at + 5, 1)]


def skipped(stage: int, rdd: int) -> list[StageAttempt]:
    return [StageAttempt("SKIPPED", stage, 0, (rdd,), 0, 0)]


def refused_unless_empty(rows: tuple[int, int], stage: int) -> AbstractContextManager[object]:
    """The batch is decided only if neither run has written rows."""
    return pytest.raises(FatalError, match=MIXED.format(stage)) if any(rows) else contextlib.nullcontext()


@pytest.mark.parametrize("moment", [OLD, NEW], ids=["planned before the call", "planned by the call"])
@pytest.mark.parametrize("rows", ROWS)
def test_a_shuffle_rewritten_between_two_dataframes_stops_the_query(rows: tuple[int, int], moment: Moment) -> None:
    """An executor died in between, and the second job wrote the lost part again. Each stage ran once."""
    jobs = {"b": [Job(0, (0, 1), is_over=True), Job(1, (2, 3), is_over=True)]}
    stages = {
        0: writes(0, 1, rows[0], 0, 4),
        1: reads(1, 11, 2, rows=rows[0], at=10),
        2: writes(2, 1, rows[1], 30, 2),
        3: reads(3, 12, 2, rows=rows[1], at=40),
    }
    with refused_unless_empty(rows, 2):
        watching(Store(jobs, stages, moment=moment)).check("b", {1, 3})


@pytest.mark.parametrize("cached", [set[int](), {7}], ids=["count() before the call", "a cache partly filled before"])
@pytest.mark.parametrize("rows", ROWS)
def test_a_shuffle_that_an_earlier_job_wrote_and_the_batchs_job_rewrote_stops_the_query(
    rows: tuple[int, int], cached: set[int]
) -> None:
    jobs = {"": [Job(0, (0, 1), is_over=True)], "b": [Job(1, (2, 3), is_over=True)]}
    stages = {
        0: writes(0, 1, rows[0], 0, 4),
        1: reads(1, 7, 2, rows=rows[0], at=10),
        2: writes(2, 1, rows[1], 30, 2),
        3: reads(3, 12, *cached, 2, rows=rows[1], at=40),
    }
    with refused_unless_empty(rows, 2):
        watching(Store(jobs, stages, cached=cached)).check("b", {3})


@pytest.mark.parametrize("rows", ROWS)
def test_a_shuffle_that_adaptive_execution_wrote_in_its_own_job_and_another_job_rewrote_stops_the_query(
    rows: tuple[int, int],
) -> None:
    """Jobs 0 and 1 end with the stages of the two shuffles. Only the output of the second shuffle is lost."""
    jobs = {"b": [Job(0, (0,), is_over=True), Job(1, (1, 2), is_over=True), Job(2, (3, 4, 5), is_over=True)]}
    stages = {
        0: writes(0, 1, 9, 0, 4),
        1: skipped(1, 1),
        2: writes(2, 3, rows[0], 10, 4, reads=9),
        3: skipped(3, 1),
        4: writes(4, 3, rows[1], 25, 1, reads=5),
        5: reads(5, 5, 4, rows=9, at=40),
    }
    with refused_unless_empty(rows, 4):
        watching(Store(jobs, stages, moment=NEW)).check("b", {5})


@pytest.mark.parametrize("rewritten", [5, 45], ids=["before both", "in between"])
def test_a_shuffle_rewritten_between_its_readers_stops_the_query_even_if_the_first_reader_kept_no_rows(
    rewritten: int,
) -> None:
    """Stage 3 found no rows for itself in the first write. In the second write, its rows may be elsewhere, and get lost."""
    store = read_twice(StageAttempt("COMPLETE", 5, 0, (2, 6), 9, 0, 50), rewritten=rewritten)
    store.stages[3] = [structs.replace(store.stages[3][0], shuffle_write_records=0)]
    with refused_unless_empty((rewritten > 40, 0), 0):
        watching(store).check("a", {5})


def test_an_empty_shuffle_written_while_another_job_rewrote_its_input_stops_the_query() -> None:
    """Adaptive execution wrote the shuffle in job 0, of which it is the last stage. The batch's own job skips it."""
    store = kept_while_rewritten(50, 9)
    store.stages[4] = [structs.replace(store.stages[4][0], shuffle_write_records=0)]
    with pytest.raises(FatalError, match=MIXED.format(0)):
        watching(store).check("b", {5})


@pytest.mark.parametrize("rows", ROWS)
def test_a_shuffle_rewritten_during_a_local_checkpoint_stops_the_query(rows: tuple[int, int]) -> None:
    """The batch's job does not show the shuffle."""
    store = cut_off_while_rewritten(ended=50)
    store.stages[0] = [
        structs.replace(one, shuffle_write_records=count) for one, count in zip(store.stages[0], rows, strict=True)
    ]
    with refused_unless_empty(rows, 0):
        watching(store).check("b", {5})


@pytest.mark.parametrize("rows", ROWS)
def test_a_shuffle_of_a_failed_job_that_another_job_rewrote_stops_the_query(rows: tuple[int, int]) -> None:
    """The function collects a DataFrame, and its job fails. The second job writes a lost part of the shuffle again."""
    first = {0: writes(0, 1, rows[0], 0, 4), 1: reads(1, 2, rows=rows[0], at=10)}
    watched = collected_again(first, {3: writes(3, 1, rows[1], 30, 2)})
    with refused_unless_empty(rows, 3):
        watched.check("b", {6}, lambda: 0)


def test_a_failed_run_without_rows_and_the_run_that_wrote_the_rest_are_one_write() -> None:
    first = [StageAttempt("FAILED", 0, 0, (1,), 0, 0, 0, 4, 5, 1)]
    jobs = {"": [Job(0, (0, 1), is_over=True, has_failed=True)], "b": [Job(1, (2, 3), is_over=True)]}
    stages = {0: first, 1: skipped(1, 2), 2: writes(2, 1, 9, 30, 3), 3: reads(3, 12, 2, rows=9, at=40)}
    watching(Store(jobs, stages)).check("b", {3})


def test_stages_without_rows_that_ran_once_are_decided() -> None:
    """Nothing was lost: the batch has no rows, and one of its shuffles was written by an earlier job."""
    jobs = {"": [Job(0, (0, 1), is_over=True)], "b": [Job(1, (2, 3, 4), is_over=True)]}
    stages = {
        0: writes(0, 1, 0, 0),
        1: reads(1, 7, 2, rows=0, at=10),
        2: skipped(2, 1),
        3: writes(3, 13, 0, 30),
        4: reads(4, 14, 2, rows=0, at=40),
    }
    watching(Store(jobs, stages)).check("b", {4})


def test_a_stage_without_rows_that_ran_again_does_not_stop_the_query() -> None:
    jobs = {"b": [Job(0, (0, 1), is_over=True)]}
    runs = [StageAttempt("COMPLETE", 0, number, (1,), 0, 0, number, 1, number + 1) for number in range(2)]
    watched = watching(Store(jobs, {0: runs, 1: reads(1, 2, rows=0, at=10)}))
    with pytest.raises(RetriableError, match="stage 0 was rerun"):
        watched.check("b", {1})


@pytest.mark.parametrize(("before", "after"), [((7, 1), (7, 1)), ((7, 1), (1,))], ids=["map().count()", "count()"])
def test_an_action_of_the_user_on_a_shuffles_own_rdd_is_no_write(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """Only the API of RDDs gives users such an RDD."""
    others = [Job(0, (0,), is_over=True), Job(1, (1, 2), is_over=True), Job(2, (3,), is_over=True)]
    jobs = {"": others, "b": [Job(3, (4, 5), is_over=True)]}
    stages = {
        0: reads(0, *before, rows=0, at=0),
        1: writes(1, 1, 9, 10),
        2: reads(2, 8, 2, rows=9, at=20),
        3: reads(3, *after, rows=0, at=30),
        4: skipped(4, 1),
        5: reads(5, 14, 2, rows=9, at=40),
    }
    watching(Store(jobs, stages)).check("b", {5})


@pytest.mark.parametrize("rows", ROWS)
def test_a_broadcast_whose_shuffle_another_job_rewrote_stops_the_query(rows: tuple[int, int]) -> None:
    store = broadcast_before(1)
    store.jobs |= {"": [Job(0, (0, 2), is_over=True), Job(1, (4, 5), is_over=True)], "b": [Job(2, (3,), is_over=True)]}
    store.stages |= {
        0: writes(0, 1, rows[0], 0),
        4: writes(4, 1, rows[1], 30),
        5: reads(5, 15, rows=rows[1], at=40),
    }
    with refused_unless_empty(rows, 4):
        watching(store).check("b", {3}, lambda: 0)


def test_a_failed_run_in_which_no_task_succeeded_is_not_a_write() -> None:
    """Spark tried the stage twice and lost its input each time. A retry of the query then ran the stage from the beginning."""
    jobs = {"": [Job(0, (0, 1, 2), is_over=True, has_failed=True)], "b": [Job(1, (3, 4, 5), is_over=True)]}

    def lost(attempt: int, at: int) -> StageAttempt:
        return StageAttempt("FAILED", 1, attempt, (3, 2), 0, 0, at, 4, at + 5)

    stages = {
        0: [*writes(0, 1, 9, 0, 4), StageAttempt("COMPLETE", 0, 1, (1,), 0, 5, 12, 2, 17, 2)],
        1: [lost(0, 10), lost(1, 20)],
        2: skipped(2, 5),
        3: skipped(3, 1),
        4: [StageAttempt("COMPLETE", 4, 0, (3, 2), 9, 9, 40, 4, 45, 4)],
        5: reads(5, 12, 4, rows=9, at=50),
    }
    watching(Store(jobs, stages)).check("b", {5})


def test_the_result_stage_of_a_failed_job_is_not_a_write() -> None:
    """One action may run several jobs over one RDD. The first job succeeded, and a later job reran its last stage and failed."""
    jobs = {
        "": [Job(0, (0, 1), is_over=True), Job(1, (2, 3), is_over=True, has_failed=True)],
        "b": [Job(2, (4,), is_over=True)],
    }
    failed = [StageAttempt("FAILED", 3, number, (3, 2), 9, 0, at, 4, at + 5, 4) for number, at in enumerate((20, 30))]
    stages = {
        0: writes(0, 1, 9, 0, 4),
        1: [StageAttempt("COMPLETE", 1, 0, (3, 2), 9, 0, 10, 4, 15, 4)],
        2: skipped(2, 1),
        3: failed,
        4: reads(4, 7, rows=0, at=50),
    }
    watching(Store(jobs, stages, moment=NEW)).check("b", {4}, kept_since_ms=lambda: 0.0)
