"""Decided transactions that are lost: written anew, repaired, published from staging, or in doubt (rule 9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.coordinator_support import die_at, records
from tests.unit.fake_sink import Cluster, FakeStaging, all_rows
from twopc import crash_points
from twopc.errors import (
    CommitBlockedError,
    InDoubtError,
    RetriableError,
)
from twopc.records import Decision, Repair


def test_a_batch_whose_transactions_are_all_lost_is_written_anew(cluster: Cluster) -> None:
    cluster.start().run(0)
    die_at(cluster, cluster.start(), "driver.decided", 1)
    cluster.store.expire()
    query = cluster.start()
    query.engine.rows = {0: all_rows(1)}  # another plan is welcome: nothing of the old one is in
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert [d.kind for d in records(cluster, Decision) if isinstance(d, Decision)] == ["write", "write", "rewrite"]
    assert query.engine.evaluated == 0


def test_a_batch_of_which_some_transactions_are_lost_is_repaired_with_the_same_rows(cluster: Cluster) -> None:
    running = cluster.start()
    running.run(0)
    die_at(cluster, running, "driver.committing", 1)
    cluster.store.expire(1)
    query = cluster.start()
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    (work,) = query.engine.works
    assert work.only_tasks == frozenset({("fake", 2)})
    (repaired,) = records(cluster, Repair)
    assert isinstance(repaired, Repair)
    assert [task.partition for task in repaired.tasks] == [2]
    assert query.engine.evaluated == 0


@pytest.mark.parametrize("point", [name for name in crash_points.POINTS if name != "driver.inspected"])
def test_a_repair_that_crashed_is_not_repaired_twice(point: str, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    die_at(cluster, cluster.start(), point, 0)
    cluster.start().run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert len(records(cluster, Repair)) == 1


@pytest.mark.parametrize(
    "rows",
    [
        {0: [0, 1], 1: [10, 11], 2: [20, 22]},
        {0: [0, 1], 1: [10, 11, 20, 21], 2: []},
        {0: [0, 1], 1: [10, 11]},
    ],
)
def test_a_replay_with_other_rows_is_in_doubt_and_says_which_are_in(
    rows: dict[int, list[int]], cluster: Cluster
) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    query.engine.rows = rows
    with pytest.raises(InDoubtError, match="staging=True") as doubt:
        query.run(0)
    names = list(cluster.store.transactions)[:3]  # partitions 2, 1, 0 in this order
    assert doubt.value.lost == (names[0],)
    assert doubt.value.committed == (names[2], names[1])
    assert all(name in str(doubt.value) for name in names)
    assert (cluster.store.visible(), cluster.store.pending()) == (all_rows(0)[:4], [])
    assert records(cluster, Repair) == []


@pytest.mark.parametrize(
    ("rows", "written"),
    [
        ({0: [10, 11], 1: [0, 1], 2: [20, 21]}, [{2}]),
        ({0: [20, 21], 1: [0, 1], 2: [10, 11]}, [{2}, {0}]),
    ],
    ids=["of what is in", "of what was lost"],
)
def test_a_replay_that_gives_the_decided_rows_in_other_tasks_is_repaired_from_where_they_are(
    rows: dict[int, list[int]], written: list[set[int]], cluster: Cluster
) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    query.engine.rows = rows
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert [{partition for _, partition in work.only_tasks or ()} for work in query.engine.works] == written
    (repaired,) = records(cluster, Repair)
    assert isinstance(repaired, Repair)
    assert [task.partition for task in repaired.tasks] == [2]
    cluster.start().run(0)
    assert (cluster.store.visible(), cluster.store.pending()) == (all_rows(0), [])


def test_an_engine_that_writes_more_than_what_was_lost_is_caught_before_the_decision(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    prepare = query.engine.prepare
    query.engine.prepare = lambda work: prepare(replace(work, only_tasks=None))  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="exactly what was lost"):
        query.run(0)
    assert (records(cluster, Repair), cluster.store.visible()) == ([], all_rows(0)[:4])


def test_a_loss_that_the_engine_has_left_behind_is_in_doubt(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    cluster.store.expire()
    query = cluster.start()
    with pytest.raises(InDoubtError, match="cannot replay") as doubt:
        query.run(1)
    assert len(doubt.value.lost) == 3
    assert query.engine.works == []


@pytest.mark.parametrize("lost", [None, 1])
def test_staged_rows_are_published_whatever_the_plan_gives_today(lost: int | None, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.committing", 0)
    cluster.store.expire(lost)
    query = cluster.start(staging=True)
    query.engine.rows = {0: [999]}
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert (query.engine.evaluated, query.engine.works) == (1, [])


def test_staged_rows_are_published_even_when_the_engine_has_gone_on(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    query = cluster.start(staging=True)
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert query.engine.evaluated == 0


def test_without_every_slice_that_was_lost_nothing_is_published_from_staging(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    del cluster.world.staged["0-1-1"]
    query = cluster.start(staging=True)
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert len(query.engine.works) == 1


def test_a_publication_that_fails_leaves_nothing_pending(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    cluster.store.refused_confirmations = 1
    with pytest.raises(RetriableError):
        cluster.start(staging=True).run(0)
    assert cluster.store.pending() == []
    cluster.start(staging=True).run(0)
    assert cluster.store.visible() == all_rows(0)


def test_staged_rows_are_proven_when_the_batch_is_proven(cluster: Cluster) -> None:
    query = cluster.start(staging=True)
    query.run(0, 1)
    staging = query.coordinator._start.staging
    assert isinstance(staging, FakeStaging)
    assert staging.settled == [(0, 0), (0, 1)]


def test_transactions_that_are_lost_while_they_are_committed_are_written_anew_at_once(cluster: Cluster) -> None:
    cluster.store.expire_on_commit = 3
    query = cluster.start()
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert len(query.engine.works) == 4


def test_transactions_that_are_lost_again_and_again_stop_the_query(cluster: Cluster) -> None:
    cluster.store.expire_on_commit = 4
    query = cluster.start()
    with pytest.raises(InDoubtError, match="timeout"):
        query.run(0)
    assert cluster.store.visible() == []
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)


def test_a_commit_that_cannot_be_proven_blocks_and_names_its_transactions(cluster: Cluster) -> None:
    cluster.store.unreachable = True
    with pytest.raises(CommitBlockedError) as blocked:
        cluster.start().run(0)
    assert blocked.value.transactions == tuple(reversed(cluster.store.transactions))
    with pytest.raises(CommitBlockedError):
        cluster.start().run(0)
    assert sorted(cluster.store.pending()) == sorted(blocked.value.transactions)  # the restart has ended none of them
    cluster.store.unreachable = False
    cluster.start().run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)
