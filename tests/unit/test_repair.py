"""A lost transaction is repaired with exactly the rows that were decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fake_sink import FakeHandle, FakeStaging, World
from twopc.attempt import Attempt, Evidence
from twopc.log_view import LogView, fold_more
from twopc.override import Overrides
from twopc.records import Decision, Part, Repair, TaskReport
from twopc.repair import all_staged, as_decided, lost_places, lost_tasks, match_rows
from twopc.unproven import OTHER_ROWS, Unproven

if TYPE_CHECKING:
    from random import Random

    from twopc.attempt import Place


def task(partition: int, *, rows: int = 2, checksum: int = 7, staged: bool = True) -> TaskReport:
    return TaskReport(
        partition=partition,
        rows=rows,
        checksum=checksum,
        handles={"fake": {"transaction": f"t{partition}"}},
        staged=f"s{partition}" if staged else None,
    )


DECISION = Decision(
    query_id="a", batch_id=4, attempt=Attempt(0, 1), offsets=(), tasks=(task(0), task(1), task(2)), scan_start={}
)
HANDLES = {("fake", partition): FakeHandle(f"fake/{partition}") for partition in range(3)}
EVIDENCE = {("fake", 0): Evidence.COMMITTED, ("fake", 1): Evidence.ABORTED, ("fake", 2): Evidence.UNKNOWN}
LOST = frozenset({("fake", 1)})
UNPROVEN = Unproven(DECISION, HANDLES, EVIDENCE, DECISION.query_id, Overrides())


@pytest.fixture
def world() -> World:
    return World(staged={f"s{partition}": [partition, 10 + partition] for partition in range(3)})


# -- matching rows -----------------------------------------------------------------------------------------------------


def test_a_replay_is_matched_with_a_decision_by_its_rows_and_not_by_handles() -> None:
    replayed = [msgspec.structs.replace(task, handles={}, staged=None) for task in DECISION.tasks]
    assert match_rows(DECISION, replayed, expected={}) == {("", at): ("", at) for at in range(3)}
    assert match_rows(DECISION, replayed[:2], expected={}) is None


def test_identical_rows_of_another_dataframe_do_not_match() -> None:
    decision = msgspec.structs.replace(
        DECISION, tasks=tuple(msgspec.structs.replace(task(at), frame_name=frame) for at, frame in enumerate("ab"))
    )
    replayed = [msgspec.structs.replace(task(at), frame_name=frame) for at, frame in enumerate("ba")]
    assert match_rows(decision, replayed, expected={}) == {("a", 0): ("a", 1), ("b", 1): ("b", 0)}
    assert match_rows(decision, [task(0), task(1)], expected={}) is None


@given(order=st.permutations(range(6)), contents=st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_rows_match_no_matter_in_which_partition_the_replay_puts_them(order: list[int], contents: list[int]) -> None:
    decided = tuple(task(partition, checksum=contents[partition]) for partition in range(6))
    decision = msgspec.structs.replace(DECISION, tasks=decided)
    replayed = [msgspec.structs.replace(decided[here], partition=there) for here, there in enumerate(order)]
    found = match_rows(decision, replayed, expected={})
    assert found is not None
    assert sorted(found.values()) == [("", place) for place in range(6)]
    assert all(replayed[order.index(there)].checksum == contents[here] for (_, here), (_, there) in found.items())
    assert match_rows(decision, replayed, expected=found) == found


SINKS = ("one", "two")


def grouped(parts: list[Part], sizes: list[int], *, first: int = 0) -> list[TaskReport]:
    """Tasks that each have some of the parts."""
    tasks: list[TaskReport] = []
    left = list(parts)
    while left:
        size = sizes[len(tasks) % len(sizes)]
        mine, left = tuple(left[:size]), left[size:]
        rows, checksum = sum(part.rows for part in mine), sum(part.checksum for part in mine)
        tasks.append(TaskReport(partition=first + len(tasks), rows=rows, checksum=checksum, parts=mine))
    return tasks


@given(
    contents=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    decided_sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    replayed_sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    chance=st.randoms(use_true_random=False),
)
def test_after_a_repair_each_decided_partition_is_in_one_transaction_of_each_sink(
    contents: list[int], decided_sizes: list[int], replayed_sizes: list[int], chance: Random
) -> None:
    """Spark may give any partitions to one task, in any order: none is lost, and none comes twice."""
    parts = [Part(index, 1, content) for index, content in enumerate(contents)]
    tasks = [
        msgspec.structs.replace(one, handles={sink: {"parts": [part.index for part in one.parts]} for sink in SINKS})
        for one in grouped(parts, decided_sizes)
    ]
    decision = msgspec.structs.replace(DECISION, tasks=tuple(tasks))
    every = [(sink, one.partition) for one in tasks for sink in SINKS]
    lost = frozenset(chance.sample(every, chance.randint(1, len(every))))
    places = chance.sample(range(len(parts)), len(parts))
    replay = grouped(
        chance.sample([Part(place, 1, contents[here]) for here, place in enumerate(places)], len(parts)), replayed_sizes
    )
    order: dict[Place, Place] = {}
    for _ in range(2):  # the first replay shows where the rows are
        wanted = lost_places(decision, lost, order)
        written = [
            msgspec.structs.replace(
                one,
                handles={
                    sink: {"rows": sorted(contents[places.index(part.index)] for part in mine)}
                    for sink in wanted
                    if (mine := [part for part in one.parts if ("", part.index) in wanted[sink]])
                },
            )
            for one in replay
        ]
        found = match_rows(decision, written, expected=order)
        assert found is not None
        order = found
    repaired = as_decided(decision, lost, written, order)
    assert repaired is not None
    merged = fold_more(
        LogView(decision=decision),
        1,
        [Repair(query_id="a", batch_id=4, attempt=Attempt(0, 2), tasks=repaired, replaces=tuple(sorted(lost)))],
    ).decision
    assert merged is not None
    for one in merged.tasks:
        if one.is_repair:
            ((_, handle),) = one.handles.items()
            assert handle["rows"] == sorted(contents[part.index] for part in one.parts)
    for sink in SINKS:
        held = [part.index for one in merged.tasks if sink in one.handles for part in one.parts]
        assert sorted(held) == list(range(len(parts)))
    keys = [(sink, one.partition) for one in merged.tasks for sink in one.handles]
    assert len(keys) == len(set(keys))


def test_a_lost_transaction_that_no_new_one_replaces_is_in_doubt() -> None:
    replayed = [msgspec.structs.replace(one, handles={}) for one in DECISION.tasks]
    found = match_rows(DECISION, replayed, expected={})
    assert found is not None
    assert as_decided(DECISION, LOST, replayed, found) is None


@pytest.mark.parametrize(
    "replayed",
    [
        (),
        DECISION.tasks[1:],
        (*DECISION.tasks, task(3)),
        (task(0), task(1, rows=3), task(2)),
        (task(0), task(1, checksum=8), task(2)),
        (task(0, checksum=8), task(1), task(2)),
    ],
    ids=["none", "fewer", "more", "other count", "other rows", "other rows of a committed task"],
)
def test_different_rows_are_in_doubt_and_the_error_lists_each_transaction_by_its_evidence(
    replayed: tuple[TaskReport, ...], world: World
) -> None:
    assert match_rows(DECISION, replayed, expected={}) is None
    doubt = UNPROVEN.in_doubt(OTHER_ROWS, FakeStaging(world))
    assert "staging=True" in str(doubt) and "not available under Spark Connect" in str(doubt)
    assert "first start the former version" in str(doubt)
    assert (doubt.committed, doubt.lost, doubt.unknown) == (("fake/0",), ("fake/1",), ("fake/2",))


def test_an_in_doubt_error_gives_the_batch_and_the_reason() -> None:
    text = str(UNPROVEN.in_doubt("because", None))
    assert "batch 4" in text
    assert "because" in text


# -- staged rows -------------------------------------------------------------------------------------------------------


def test_all_staged_requires_exactly_the_staged_files_of_lost_tasks(world: World) -> None:
    staging = FakeStaging(world)
    assert all_staged(DECISION, LOST, staging)
    del world.staged["s0"]
    assert all_staged(DECISION, LOST, staging)
    del world.staged["s1"]
    assert not all_staged(DECISION, LOST, staging)
    assert not all_staged(DECISION, LOST | {("fake", 2)}, staging)


def test_rows_count_as_staged_only_with_a_decision_and_a_loss_and_a_slice(world: World) -> None:
    staging = FakeStaging(world)
    unstaged = msgspec.structs.replace(DECISION, tasks=(task(0), task(1, staged=False), task(2)))
    assert not all_staged(None, LOST, staging)
    assert not all_staged(DECISION, frozenset(), staging)
    assert not all_staged(unstaged, LOST, staging)


def test_the_lost_tasks_are_returned_without_their_lost_handles() -> None:
    assert lost_tasks(DECISION, LOST) == (msgspec.structs.replace(DECISION.tasks[1], handles={}),)
