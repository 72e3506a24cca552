"""A decided batch that nothing can complete is abandoned if the user names it, and only then (rule 9)."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from tests.unit.coordinator_support import DRIVER_POINTS, OTHER, die_at, records
from tests.unit.fake_sink import PARTITIONS, QUERY_ID, Cluster, Crash, FakeCommitter, all_rows, rows_of
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.errors import CommitBlockedError, InDoubtError
from twopc.override import Abandon, Overrides
from twopc.records import Begin
from twopc.settings import Settings
from twopc.testing.crash_points import arm


def abandoning(batch: int, *, end: str | None = None) -> Settings:
    return Settings(overrides=Overrides(abandoned={Abandon(batch)}, end_query_ids={end} if end else frozenset()))


def lose_some(cluster: Cluster) -> list[int]:
    """Decide batch 0 and lose one of its transactions; return the rows that stay visible."""
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    return all_rows(0)[:4]


def abandoned(cluster: Cluster) -> list[int]:
    begins = [record for record in records(cluster, Begin) if isinstance(record, Begin)]
    return [begin.first_batch - 1 for begin in begins if begin.abandons]


def test_the_setting_in_the_error_abandons_a_loss_that_was_left_behind(cluster: Cluster) -> None:
    kept = lose_some(cluster)
    with pytest.raises(InDoubtError, match=r"restart with override=Abandon\(0, 'query-a'\)\."):
        cluster.start().run(1)
    cluster.start(settings=abandoning(0)).run(1, 2)
    assert cluster.store.visible() == sorted(kept + all_rows(1, 2))
    assert abandoned(cluster) == [0]
    cluster.start().run(2, 3)
    assert cluster.store.visible() == sorted(kept + all_rows(1, 2, 3))


def test_a_new_checkpoint_may_abandon_a_batch_lost_by_the_query_that_it_ends(cluster: Cluster) -> None:
    """A new checkpoint resolves most refusals, so it must not be blocked by the old query's doubt."""
    kept = lose_some(cluster)
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    with pytest.raises(InDoubtError, match=r"override=\[EndQuery\('query-a'\), Abandon\(0, 'query-a'\)\]\."):
        cluster.start(settings=ending).run(0, query_id=OTHER)
    query = cluster.start(settings=abandoning(0, end=QUERY_ID))
    query.engine.rows = rows_of(7)
    query.run(0, query_id=OTHER)
    assert cluster.store.visible() == sorted(kept + all_rows(7))
    assert [begin.ends for begin in records(cluster, Begin) if isinstance(begin, Begin)] == [None, None, QUERY_ID]
    assert abandoned(cluster) == [0]


def test_a_replay_with_different_rows_is_only_evaluated_once_its_batch_is_abandoned(cluster: Cluster) -> None:
    kept = lose_some(cluster)
    query = cluster.start()
    query.engine.rows = {0: [999]}
    with pytest.raises(InDoubtError, match=r"restart with override=Abandon\(0, 'query-a'\)\."):
        query.run(0)
    query = cluster.start(settings=abandoning(0))
    query.engine.rows = {0: [999]}
    query.run(0)
    assert (query.engine.evaluated, query.engine.works) == (1, [])
    cluster.start().run(0, 1)
    assert cluster.store.visible() == sorted(kept + all_rows(1))


@pytest.mark.parametrize("batch", [0, 1], ids=["replayed", "left behind"])
def test_a_batch_that_can_never_be_proven_can_be_abandoned_and_holds_back_no_later_batch(
    batch: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    with monkeypatch.context() as patched:
        patched.setattr(FakeCommitter, "commit", lambda _, handles, __: dict.fromkeys(handles, Evidence.UNKNOWN))
        with pytest.raises(CommitBlockedError, match=r"restart with override=Abandon\(0, 'query-a'\)\."):
            cluster.start().run(batch)
        assert len(cluster.store.pending()) == PARTITIONS
        die_at(
            cluster, cluster.start(settings=abandoning(0)), "driver.swept" if batch == 0 else "driver.prepared", batch
        )
        assert len(cluster.store.pending()) == PARTITIONS * batch, (
            "the abandoned batch should be swept before anything else is written"
        )
    cluster.start().run(batch, batch + 1)
    assert cluster.store.visible() == all_rows(*range(1, batch + 2))
    assert (cluster.store.pending(), abandoned(cluster)) == ([], [0])


@pytest.mark.parametrize("staging", [True, False])
def test_a_setting_that_abandons_a_batch_has_no_effect_if_its_rows_can_be_written_again(
    *, staging: bool, cluster: Cluster
) -> None:
    die_at(cluster, cluster.start(staging=staging), "driver.decided", 0)
    cluster.store.expire()
    cluster.start(staging=staging, settings=abandoning(0)).run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert abandoned(cluster) == []


def test_a_setting_left_in_the_code_abandons_no_other_batch(cluster: Cluster) -> None:
    left_on = abandoning(0)
    running = cluster.start(settings=left_on)
    running.run(0, 1)
    die_at(cluster, running, "driver.committing", 2)
    cluster.store.expire(1)
    with pytest.raises(InDoubtError, match=r"override=\[Abandon\(0\), Abandon\(2, 'query-a'\)\]\."):
        cluster.start(settings=left_on).run(3)
    cluster.start(settings=left_on).run(2, 3)
    assert cluster.store.visible() == all_rows(0, 1, 2, 3)
    assert abandoned(cluster) == []


def test_a_setting_left_in_the_code_does_not_abandon_the_next_querys_batch_with_that_number(cluster: Cluster) -> None:
    """The next query counts its batches from 0 again. The user abandoned a batch of the previous query."""
    kept = lose_some(cluster)
    left_on = abandoning(0, end=QUERY_ID)
    die_at(cluster, cluster.start(settings=left_on), "driver.decided", 0, query_id=OTHER)
    cluster.store.expire(1)
    cluster.start(settings=left_on).run(0, 1, query_id=OTHER)
    assert cluster.store.visible() == sorted(kept + all_rows(0, 1))
    assert abandoned(cluster) == [0]


def test_the_next_query_may_abandon_a_batch_with_a_number_that_the_previous_query_abandoned(cluster: Cluster) -> None:
    kept = lose_some(cluster)
    both = Overrides(abandoned={Abandon(0)}, end_query_ids={QUERY_ID})
    die_at(cluster, cluster.start(settings=Settings(overrides=both)), "driver.decided", 0, query_id=OTHER)
    cluster.store.expire(1)
    with pytest.raises(
        InDoubtError, match=r"override=\[EndQuery\('query-a'\), Abandon\(0\), Abandon\(0, 'query-b'\)\]"
    ):
        cluster.start(settings=Settings(overrides=both)).run(1, query_id=OTHER)
    named = Settings(overrides=replace(both, abandoned={Abandon(0, OTHER)}))
    cluster.start(settings=named).run(1, query_id=OTHER)
    assert cluster.store.visible() == sorted(kept + kept + all_rows(1))
    assert abandoned(cluster) == [0, 0]


def test_a_batch_is_not_abandoned_by_the_run_that_decides_it(cluster: Cluster) -> None:
    """A commit that is slow only once must stop the query, even if the user has left a setting in the code."""
    cluster.store.unreachable = True
    with pytest.raises(CommitBlockedError):
        cluster.start(settings=abandoning(0)).run(0)
    assert abandoned(cluster) == []


@pytest.mark.parametrize("first", [0, 1], ids=["replayed", "left behind"])
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_crash_while_a_batch_is_abandoned_changes_nothing(point: str, first: int, cluster: Cluster) -> None:
    kept = lose_some(cluster)
    arm(point, cluster.world.crash)
    with contextlib.suppress(Crash):
        cluster.start(settings=abandoning(0)).run(first)
    crash_points.disarm()
    cluster.start(settings=abandoning(0)).run(*range(first, 3))
    assert cluster.store.visible() == sorted(kept + all_rows(1, 2))
    assert abandoned(cluster) == [0]
    assert cluster.store.pending() == []
