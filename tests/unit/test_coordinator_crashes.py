"""Crashes at every step, and two drivers at once."""

from __future__ import annotations

import re

import pytest

from tests.unit.coordinator_support import DRIVER_POINTS, die_at, fail, fingerprint
from tests.unit.fake_sink import Cluster, Crash, all_rows
from twopc import crash_points
from twopc.errors import (
    DecisionInDoubtError,
    FencedError,
    RefusedStartError,
)
from twopc.testing.crash_points import InjectedFault, arm

# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", crash_points.POINTS)
def test_every_row_is_visible_once_after_a_crash_at(point: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    die_at(cluster, cluster.start(), point, 1)
    query = cluster.start()
    query.run(1)
    assert query.engine.evaluated + len(query.engine.works) == 1
    query.run(2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert cluster.store.pending() == []


@pytest.mark.parametrize("point", crash_points.POINTS)
def test_every_row_is_visible_once_after_a_crash_in_the_first_batch_at_any_point(point: str, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), point, 0)
    cluster.start().run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)


@pytest.mark.parametrize("point", [name for name in crash_points.POINTS if name != "driver.deciding"])
def test_every_row_is_visible_once_after_an_error_at_any_point(point: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    arm(point, fail)
    with pytest.raises(InjectedFault):
        cluster.start().run(1)
    cluster.start().run(1, 2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert cluster.store.pending() == []


def test_a_decision_found_after_an_unanswered_write_counts(cluster: Cluster) -> None:
    arm("driver.deciding", fail)
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)


@pytest.mark.parametrize("second", crash_points.POINTS)
@pytest.mark.parametrize("first", crash_points.POINTS)
def test_a_crash_during_recovery_does_no_harm(first: str, second: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    die_at(cluster, cluster.start(), first, 1)
    arm(second, cluster.world.crash)
    try:
        cluster.start().run(1)
    except Crash:
        crash_points.disarm()
        cluster.start().run(1)
    crash_points.disarm()
    cluster.start().run(2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert cluster.store.pending() == []


@pytest.mark.parametrize("passage", [1, 2, 3])
def test_a_restart_completes_an_interrupted_commit(passage: int, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0, passage=passage)
    assert len(cluster.store.visible()) == 2 * passage
    query = cluster.start()
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert (query.engine.evaluated, query.engine.works) == (1, [])


def test_a_decided_batch_is_committed_before_the_next_one_is_written(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    assert cluster.store.visible() == []
    cluster.start().run(1)  # Spark has moved past batch 0
    assert cluster.store.visible() == all_rows(0, 1)


# -- two drivers -------------------------------------------------------------------------------------------------------


def test_of_two_drivers_the_fenced_one_changes_nothing(cluster: Cluster) -> None:
    loser, winner = cluster.start(), cluster.start()
    loser.run(0)
    winner.run(1)
    before, visible = fingerprint(cluster), cluster.store.visible()
    with pytest.raises(FencedError, match=re.escape("registers/00000000000000000002")):
        loser.run(1)
    assert (fingerprint(cluster), cluster.store.visible()) == (before, visible)
    with pytest.raises(FencedError):
        loser.run(1)
    winner.run(2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert cluster.store.pending() == []


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_second_driver_that_runs_while_the_first_is_paused_duplicates_nothing(point: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    paused, other = cluster.start(), cluster.start()
    arm(point, lambda: other.run(1))
    try:
        paused.run(1)
    except (FencedError, DecisionInDoubtError):
        paused.coordinator.close()
    assert cluster.store.visible() == all_rows(0, 1)
    outcomes = []
    for query in (paused, other):
        try:
            query.run(2)
            outcomes.append("wrote")
        except (FencedError, RefusedStartError):
            outcomes.append("stopped")
    assert sorted(outcomes) == ["stopped", "wrote"]
    assert cluster.store.visible() == all_rows(0, 1, 2)


def test_a_start_refused_after_its_acquisition_sweeps_nothing(cluster: Cluster) -> None:
    cluster.start().run(0)
    paused, other = cluster.start(), cluster.start()

    def let_another_driver_run() -> None:
        other.run(1)
        arm("driver.confirmed", fail)
        with pytest.raises(InjectedFault):
            other.run(2)
        sweeps.append(cluster.store.sweeps)

    sweeps: list[int] = []
    arm("driver.inspected", let_another_driver_run)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "rewound"):
        paused.run(0)
    assert cluster.store.sweeps == sweeps[0]


def test_a_driver_fenced_during_its_own_acquisition_does_not_fence_the_newer_one(cluster: Cluster) -> None:
    paused, winner = cluster.start(), cluster.start()
    log = paused.coordinator.log
    read = log.read

    def read_late() -> object:
        winner.run(0)
        log.read = read  # type: ignore[method-assign]
        return read()

    log.read = read_late  # type: ignore[method-assign,assignment]
    for _ in range(2):
        with pytest.raises(FencedError):
            paused.run(0)
    winner.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
