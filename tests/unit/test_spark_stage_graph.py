"""Whether a stage may have read a shuffle without a record of it: its RDDs 2 and 3 follow from the shuffle's rows, RDD 1."""

from __future__ import annotations

import pytest

from twopc.integration.spark.stage_graph import StageGraph

MEMORY, BOTH = "Memory Deserialized 1x Replicated", "Disk Memory Deserialized 1x Replicated"
PLAIN = StageGraph([(1, 2), (2, 3)], {1}, set())


def test_a_stage_without_a_shuffle_read_nothing() -> None:
    assert not StageGraph([(1, 2)], set(), set()).may_read(lambda _: None)


def test_a_stage_that_passes_on_rows_of_a_shuffle_may_have_read_some() -> None:
    assert PLAIN.may_read(lambda _: None)
    assert StageGraph([], {1}, set()).may_read(lambda _: None)


@pytest.mark.parametrize("cached", [1, 2, 3])
@pytest.mark.parametrize(("level", "expected"), [(BOTH, False), (MEMORY, True), (None, True)])
def test_a_cached_rdd_that_may_go_to_disk_takes_all_rows_of_a_shuffle(
    cached: int, level: str | None, *, expected: bool
) -> None:
    graph = StageGraph(PLAIN.edges, PLAIN.reading, {cached})
    assert graph.may_read(lambda rdd: level if rdd == cached else pytest.fail("not cached")) is expected


@pytest.mark.parametrize(
    ("edges", "expected"), [([(1, 2), (1, 3), (2, 4), (3, 4)], True), ([(1, 2), (2, 3), (2, 4)], False)]
)
def test_rows_may_pass_a_cached_rdd_by(edges: list[tuple[int, int]], *, expected: bool) -> None:
    assert StageGraph(edges, {1}, {2}).may_read(lambda _: BOTH) is expected


def test_one_of_two_shuffles_may_have_been_read_although_a_cached_rdd_takes_the_other() -> None:
    assert StageGraph([(1, 2), (2, 4), (3, 4)], {1, 3}, {2}).may_read(lambda _: BOTH)
