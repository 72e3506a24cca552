"""Lost transactions of a decision: the batch is rewritten, repaired, published from staged rows, or in doubt (rule 9)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import OTHER, die_at, records
from tests.unit.fake_sink import QUERY_ID, Cluster, FakeStaging, all_rows, batch_of
from twopc import crash_points, unproven
from twopc.engine import Publish, Write
from twopc.engine import Repair as RepairMode
from twopc.errors import (
    CheckpointExpiredError,
    CommitBlockedError,
    DecisionInDoubtError,
    InDoubtError,
    RetriableError,
)
from twopc.files import LocalFiles
from twopc.override import Overrides
from twopc.records import Decision, Repair
from twopc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.fake_sink import Query
    from twopc.engine import Work
    from twopc.records import TaskReport


def _lost_of(work: Work) -> set[tuple[str, int]]:
    assert isinstance(work.mode, RepairMode)
    return {(sink, index) for sink, places in work.mode.lost.items() for _, index in places}


def test_a_batch_with_every_transaction_lost_is_rewritten(cluster: Cluster) -> None:
    cluster.start().run(0)
    die_at(cluster, cluster.start(), "driver.decided", 1)
    cluster.store.expire()
    query = cluster.start()
    query.engine.rows = {0: all_rows(1)}  # other tasks are fine, since no part of the batch is visible
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert [d.kind for d in records(cluster, Decision) if isinstance(d, Decision)] == ["write", "write", "rewrite"]
    assert query.engine.evaluated == 0


@pytest.mark.parametrize(
    ("rows", "counts"),
    [({0: [0, 1]}, [("6", "2")]), ({0: all_rows(0)}, []), ({0: [*all_rows(0), 99]}, [("6", "7")])],
    ids=["fewer", "as many", "more"],
)
def test_the_driver_warns_if_a_lost_batch_is_rewritten_with_another_number_of_rows(
    rows: dict[int, list[int]], counts: list[tuple[str, str]], cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The source may have deleted rows in the meantime, and failOnDataLoss=false hides this."""
    die_at(cluster, cluster.start(), "driver.decided", 0)
    cluster.store.expire()
    query = cluster.start()
    query.engine.rows = rows
    query.run(0)
    assert cluster.store.visible() == sorted(row for some in rows.values() for row in some)
    warned = r"batch 0 was decided with (\d+) rows\. All of its transactions were lost .* now returns (\d+) rows"
    assert re.findall(warned, caplog.text) == counts


def test_a_partly_lost_batch_is_repaired_with_the_same_rows(cluster: Cluster) -> None:
    running = cluster.start()
    running.run(0)
    die_at(cluster, running, "driver.committing", 1)
    cluster.store.expire(1)
    query = cluster.start()
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    (work,) = query.engine.works
    assert work.mode == RepairMode({"fake": frozenset({("", 2)})}, 3, direct=frozenset())
    (repaired,) = records(cluster, Repair)
    assert isinstance(repaired, Repair)
    assert repaired.replaces == (("fake", 2),)
    assert [part.index for task in repaired.tasks for part in task.parts] == [2]
    assert query.engine.evaluated == 0


def test_only_a_batch_without_a_decision_after_proven_ones_may_be_replanned(cluster: Cluster) -> None:
    """Otherwise, the log would refuse the new plan as another history, or the lost transactions could not be completed."""
    running = cluster.start()
    running.run(0)
    running.engine.failures = [CheckpointExpiredError("too slow")]
    with pytest.raises(CheckpointExpiredError):
        running.run(1)
    assert running.coordinator.is_undecided(batch_of(1))
    assert not running.coordinator.is_undecided(batch_of(0))
    die_at(cluster, running, "driver.decided", 1)
    cluster.store.expire()
    rewriting = cluster.start()
    rewriting.engine.failures = [CheckpointExpiredError("too slow")]
    with pytest.raises(CheckpointExpiredError):
        rewriting.run(1)
    assert not rewriting.coordinator.is_undecided(batch_of(1))
    assert not rewriting.coordinator.is_undecided(batch_of(2))


@pytest.mark.parametrize("point", [name for name in crash_points.POINTS if name != "driver.inspected"])
def test_a_repair_is_not_repeated_after_a_crash(point: str, cluster: Cluster) -> None:
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
def test_a_replay_with_different_rows_is_in_doubt_and_the_error_lists_what_is_committed(
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
    ids=["of committed tasks", "of lost tasks"],
)
def test_a_replay_with_the_decided_rows_in_other_tasks_is_repaired(
    rows: dict[int, list[int]], written: list[set[int]], cluster: Cluster
) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    query.engine.rows = rows
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert [{partition for _, partition in _lost_of(work)} for work in query.engine.works] == written
    (repaired,) = records(cluster, Repair)
    assert isinstance(repaired, Repair)
    assert repaired.replaces == (("fake", 2),)
    assert [part.index for task in repaired.tasks for part in task.parts] == [2]
    cluster.start().run(0)
    assert (cluster.store.visible(), cluster.store.pending()) == (all_rows(0), [])


def test_a_repair_that_is_lost_again_is_repaired_from_the_decided_rows(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    for _ in range(2):
        die_at(cluster, cluster.start(), "driver.decided", 0)
        cluster.store.expire()
    cluster.start().run(0, 1)
    assert (cluster.store.visible(), cluster.store.pending()) == (all_rows(0, 1), [])
    assert [found.replaces for found in records(cluster, Repair) if isinstance(found, Repair)] == [
        (("fake", 2),),
        (("fake", 5),),
        (("fake", 8),),
    ]


def test_an_engine_that_writes_more_than_the_lost_tasks_is_detected_before_the_decision(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    prepare = query.engine.prepare
    query.engine.prepare = lambda work: prepare(replace(work, mode=Write()))  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="exactly the lost rows"):
        query.run(0)
    assert (records(cluster, Repair), cluster.store.visible()) == ([], all_rows(0)[:4])


@pytest.mark.parametrize("staging", [False, True], ids=["off", "in another place"])
@pytest.mark.parametrize("batch", [0, 1], ids=["the replay differs", "Spark has moved on"])
def test_the_error_says_where_the_lost_rows_were_staged_and_the_former_setting_completes_the_batch(
    batch: int, *, staging: bool, cluster: Cluster
) -> None:
    """Fails if the user is only told to abandon rows that still exist."""
    die_at(cluster, cluster.start(staging=True), "driver.committing", 0)
    cluster.store.expire(1)
    kept, cluster.world.staged = cluster.world.staged, {}
    restarted = cluster.start(staging=staging)
    restarted.engine.rows = {0: [7]}
    with pytest.raises(
        InDoubtError, match=r"staged in 1 file that .* \(0-2-1\)\. .*former staging.*Abandon\(0"
    ) as doubt:
        restarted.run(batch)
    assert "staging=True" not in str(doubt.value)
    cluster.world.staged = kept
    cluster.start(staging=True).run(0)
    assert cluster.store.visible() == all_rows(0)


def test_after_a_new_checkpoint_the_error_names_the_query_that_staged_the_lost_rows(cluster: Cluster) -> None:
    """Each query has its own directory of staged files."""
    die_at(cluster, cluster.start(staging=True), "driver.committing", 0)
    cluster.store.expire(1)
    cluster.world.staged.clear()
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    with pytest.raises(
        InDoubtError, match=rf"query {QUERY_ID} has its own directory.*start that query once with its own"
    ):
        cluster.start(staging=True, settings=ending).run(0, query_id=OTHER)


def test_a_loss_that_spark_cannot_replay_is_in_doubt(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    cluster.store.expire()
    query = cluster.start()
    with pytest.raises(InDoubtError, match=re.escape(unproven.LEFT_BEHIND)) as doubt:
        query.run(1)
    assert len(doubt.value.lost) == 3
    assert query.engine.works == []


@pytest.mark.parametrize("lost", [None, 1])
def test_staged_rows_are_published_even_if_the_replay_has_different_rows(lost: int | None, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.committing", 0)
    cluster.store.expire(lost)
    query = cluster.start(staging=True)
    query.engine.rows = {0: [999]}
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert query.engine.evaluated == 1
    (work,) = query.engine.works
    assert isinstance(work.mode, Publish)
    assert {task.partition for task in work.mode.tasks} == {partition for _, partition in work.mode.lost}


def test_staged_rows_are_published_even_if_spark_has_moved_past_the_batch(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    query = cluster.start(staging=True)
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert query.engine.evaluated == 0
    assert [(work.batch.batch_id, type(work.mode)) for work in query.engine.works] == [(0, Publish), (1, Write)]


def test_staged_rows_are_not_published_if_one_slice_is_missing(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    del cluster.world.staged["0-1-1"]
    query = cluster.start(staging=True)
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert len(query.engine.works) == 1


def test_a_failed_publication_leaves_nothing_pending(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    cluster.store.refused_confirmations = 3
    with pytest.raises(RetriableError):
        cluster.start(staging=True).run(0)
    assert cluster.store.pending() == []
    cluster.start(staging=True).run(0)
    assert cluster.store.visible() == all_rows(0)


def test_staged_rows_are_released_when_the_batch_is_proven(cluster: Cluster) -> None:
    query = cluster.start(staging=True)
    query.run(0, 1)
    staging = query.coordinator._setup.staging
    assert isinstance(staging, FakeStaging)
    assert staging.released == [(0, 0), (0, 1)]


def _staged_at_attempts(cluster: Cluster, query: Query) -> list[int]:
    """Count the staged files at the start of each attempt from now on."""
    found: list[int] = []
    prepare = query.engine.prepare

    def counting(work: Work) -> list[TaskReport]:
        found.append(len(cluster.world.staged))
        return prepare(work)

    query.engine.prepare = counting  # type: ignore[method-assign]
    return found


def test_staged_rows_of_failed_attempts_do_not_accumulate(cluster: Cluster) -> None:
    """A query that restarts forever on the same batch would otherwise fill the file system."""
    for _ in range(3):
        query = cluster.start(staging=True)
        found = _staged_at_attempts(cluster, query)
        cluster.store.refused_confirmations = 3
        with pytest.raises(RetriableError):
            query.run(0)
        assert found == [0, 0, 0]
        assert len(cluster.world.staged) == 3
    cluster.start(staging=True).run(0)
    assert cluster.store.visible() == all_rows(0)


def test_decided_staged_rows_survive_restarts_and_failed_publications(cluster: Cluster) -> None:
    cluster.store.refused_confirmations = 1
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    decision = next(one for one in records(cluster, Decision) if isinstance(one, Decision))
    for _ in range(2):
        cluster.store.refused_confirmations = 3
        query = cluster.start(staging=True)
        found = _staged_at_attempts(cluster, query)
        with pytest.raises(RetriableError):
            query.run(1)
        assert found == [3, 3, 3]
    assert cluster.world.staged.keys() == {task.staged for task in decision.tasks}
    cluster.start(staging=True).run(1)
    assert cluster.store.visible() == all_rows(0, 1)


def test_staged_rows_of_a_decision_in_doubt_are_kept_for_the_restart(cluster: Cluster, tmp_path: Path) -> None:
    class Unanswered(LocalFiles):
        is_cut_off = False

        def read(self, name: str) -> bytes | None:
            if self.is_cut_off:
                raise OSError("no route")
            return super().read(name)

        def put_if_absent(self, name: str, data: bytes) -> bool:
            written = super().put_if_absent(name, data)
            if b'"type":"decision"' in data:
                self.is_cut_off = True
                raise OSError("no answer")
            return written

    files = Unanswered(tmp_path / "checkpoint" / "twopc")
    query = cluster.start(staging=True, files=files)
    for _ in range(2):
        with pytest.raises(DecisionInDoubtError):
            query.run(0)
        files.is_cut_off = False
        assert len(cluster.world.staged) == 3
    cluster.store.expire()
    restarted = cluster.start(staging=True)
    restarted.engine.rows = {0: [999]}
    restarted.run(0)
    assert cluster.store.visible() == all_rows(0)


def test_only_attempts_after_a_start_or_a_failure_look_for_staged_rows_to_delete(cluster: Cluster) -> None:
    query = cluster.start(staging=True)
    staging = query.coordinator._setup.staging
    assert isinstance(staging, FakeStaging)
    query.run(0, 1, 2)
    assert len(staging.discards) == 1
    cluster.store.refused_confirmations = 1
    query.run(3, 4)
    assert len(staging.discards) == 2


def test_transactions_lost_during_the_commit_are_rewritten_at_once(cluster: Cluster) -> None:
    cluster.store.expire_on_commit = 3
    query = cluster.start()
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert len(query.engine.works) == 4


def test_transactions_lost_repeatedly_stop_the_query(cluster: Cluster) -> None:
    cluster.store.expire_on_commit = 4
    query = cluster.start()
    with pytest.raises(InDoubtError, match=re.escape(unproven.LOST_AGAIN)):
        query.run(0)
    assert cluster.store.visible() == []
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)


def test_an_unproven_commit_blocks_with_an_error_that_lists_its_transactions(cluster: Cluster) -> None:
    cluster.store.unreachable = True
    with pytest.raises(CommitBlockedError) as blocked:
        cluster.start().run(0)
    assert blocked.value.transactions == tuple(reversed(cluster.store.transactions))
    with pytest.raises(CommitBlockedError):
        cluster.start().run(0)
    assert sorted(cluster.store.pending()) == sorted(blocked.value.transactions)  # the restart has ended no transaction
    cluster.store.unreachable = False
    cluster.start().run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)
