"""Rule 10, if the decisions are in the checkpoint although a sink has a log: only that sink's transactions reveal a copy."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.coordinator_support import DRIVER_POINTS, OTHER, die_at
from tests.unit.fake_sink import QUERY_ID, Cluster, Crash, FakeCommitter, FakeHandle, Query, all_rows, rows_of
from twopc import crash_points
from twopc.errors import CommitBlockedError, RefusedStartError
from twopc.files import LocalFiles
from twopc.override import Abandon, Overrides, ResumeAt
from twopc.settings import Settings
from twopc.testing.crash_points import arm

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from twopc.attempt import Known

ADDING = Settings(overrides=Overrides(added_sinks={"two"}))


def is_older_copy(error: RefusedStartError) -> bool:
    return error.case == "older copy"


def start(cluster: Cluster, settings: Settings = ADDING, files: LocalFiles | None = None) -> Query:
    return cluster.start("one", "two", settings=settings, files=files)


def two(query: Query) -> FakeCommitter:
    committer = query.coordinator.participants.committers["two"]
    assert isinstance(committer, FakeCommitter)
    return committer


@pytest.fixture
def added(cluster: Cluster, tmp_path: Path) -> Cluster:
    """Batch 0 is in sink one. Sink two, which has a log, may be added after it."""
    cluster.start("one").run(0)
    cluster.world.logs["two"] = LocalFiles(tmp_path / "own")
    return cluster


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_an_older_copy_of_the_checkpoint_is_refused_before_it_fences_any_driver(
    batches: int, added: Cluster, tmp_path: Path
) -> None:
    known = list(range(1, batches + 1))
    healthy = start(added)
    healthy.run(*known)
    backup = LocalFiles(shutil.copytree(added.files.location, tmp_path / "backup"))
    healthy.run(batches + 1)
    epoch = added.world.store("two").driver_epoch
    for replayed in {max(batches, 1), batches + 1}:
        with pytest.raises(RefusedStartError, check=is_older_copy):
            start(added, files=backup).run(replayed)
    assert added.world.store("two").driver_epoch == epoch
    healthy.run(batches + 2)
    assert added.world.store("two").visible() == all_rows(*range(1, batches + 3))


def test_a_copy_of_the_checkpoint_that_decided_the_same_batch_is_refused(added: Cluster, tmp_path: Path) -> None:
    start(added).run(1)
    backup = LocalFiles(shutil.copytree(added.files.location, tmp_path / "backup"))
    die_at(added, start(added), "driver.decided", 2)
    copy = start(added, files=backup)
    copy.run(2)
    for batch in (2, 3):
        with pytest.raises(RefusedStartError, check=is_older_copy):
            start(added).run(batch)
    copy.run(3)
    assert added.world.store("two").visible() == all_rows(1, 2, 3)


def test_a_commit_that_overtakes_the_sweep_is_noticed_after_it(
    added: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(added).run(1)
    backup = LocalFiles(shutil.copytree(added.files.location, tmp_path / "backup"))
    die_at(added, start(added), "driver.decided", 2)

    copy, store = start(added, files=backup), added.world.store("two")
    really = FakeCommitter.recover_and_abort

    def overtaken(committer: FakeCommitter, decided: Collection[FakeHandle]) -> None:
        for name in store.pending():
            store.transactions[name].state = "committed"
        really(committer, decided)

    monkeypatch.setattr(FakeCommitter, "recover_and_abort", overtaken)
    with pytest.raises(RefusedStartError, match="has stopped the other run, so restart that run", check=is_older_copy):
        copy.run(2)
    monkeypatch.undo()
    start(added).run(2, 3)
    assert store.visible() == all_rows(1, 2, 3)


@pytest.mark.parametrize("second", ["driver.recovered", "driver.committing"])
@pytest.mark.parametrize("first", DRIVER_POINTS)
def test_a_restart_after_two_crashes_is_not_an_older_copy(first: str, second: str, added: Cluster) -> None:
    start(added).run(1)
    die_at(added, start(added), first, 2)
    arm(second, added.world.crash)
    with contextlib.suppress(Crash):
        start(added).run(2)
    crash_points.disarm()
    start(added).run(2, 3)
    start(added).run(3, 4)
    assert added.world.store("two").visible() == all_rows(1, 2, 3, 4)


@pytest.mark.parametrize("lost", [1, None], ids=["some", "all"])
def test_a_restart_after_a_repair_is_not_an_older_copy(lost: int | None, added: Cluster) -> None:
    die_at(added, start(added), "driver.decided", 1)
    added.world.store("two").expire(lost)
    die_at(added, start(added), "driver.committed", 1)
    start(added).run(1, 2)
    assert added.world.store("two").visible() == all_rows(1, 2)


@pytest.mark.parametrize("lost", [1, None], ids=["some", "all"])
def test_a_repair_by_another_driver_during_a_start_does_not_make_its_checkpoint_an_older_copy(
    lost: int | None, added: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the start reads the log again, but does not see that a repair is new."""
    die_at(added, start(added), "driver.decided", 1)
    added.world.store("two").expire(lost)
    really = FakeCommitter.has_unknown_commit

    def overtaken(committer: FakeCommitter, known: Known[FakeHandle], scan_start: Mapping[str, Any]) -> bool:
        monkeypatch.undo()
        start(added).run(1)
        return really(committer, known, scan_start)

    monkeypatch.setattr(FakeCommitter, "has_unknown_commit", overtaken)
    start(added).run(1, 2)
    assert added.world.store("two").visible() == all_rows(1, 2)


def test_a_restart_after_an_abandoned_batch_is_not_an_older_copy(added: Cluster) -> None:
    die_at(added, start(added), "driver.committing", 1, passage=4)  # starting the query commits batch 0 again
    added.world.store("two").expire()
    abandoning = Settings(overrides=Overrides(added_sinks={"two"}, abandoned={Abandon(1)}))
    die_at(added, start(added, abandoning), "driver.confirmed", 2)
    start(added).run(2, 3)
    assert added.world.store("two").visible() == sorted(rows_of(1)[0] + all_rows(2, 3))


def test_batches_that_the_user_lets_the_query_skip_do_not_count(added: Cluster, tmp_path: Path) -> None:
    start(added).run(1)
    backup = LocalFiles(shutil.copytree(added.files.location, tmp_path / "backup"))
    start(added).run(2, 3)
    resuming = Settings(overrides=Overrides(added_sinks={"two"}, resume_at=ResumeAt(4)))
    start(added, resuming, backup).run(4)
    assert added.world.store("two").visible() == all_rows(1, 2, 3, 4)
    with pytest.raises(RefusedStartError, check=is_older_copy):
        start(added).run(4)
    start(added, resuming, backup).run(5)


def test_a_query_that_ends_another_one_is_not_an_older_copy(added: Cluster) -> None:
    start(added).run(1, 2)
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    query = start(added, ending)
    query.run(0, query_id=OTHER)
    assert [(known.first_batch, starts) for known, starts in two(query).asked] == [(0, {})] * 3


def test_the_sink_is_asked_again_for_newer_decisions_after_the_sweep(added: Cluster) -> None:
    query = start(added)
    query.run(1, 2)
    assert [known.is_swept for known, _ in two(query).asked] == [False, False, True]


def test_an_unproven_batch_stops_the_query_before_the_sink_is_asked_for_newer_decisions(added: Cluster) -> None:
    """The open transactions would hide the answer, and the error would not name them."""
    die_at(added, start(added), "driver.decided", 1)
    added.world.store("two").unreachable = True
    query = start(added)
    with pytest.raises(CommitBlockedError):
        query.run(1)
    assert [known.is_swept for known, _ in two(query).asked] == [False, False]


def test_a_sink_whose_log_contains_the_decisions_is_asked_only_for_lost_ones_after_the_sweep(
    cluster: Cluster, tmp_path: Path
) -> None:
    """All copies use the same log, so before the sweep there is nothing to find."""
    cluster.world.logs |= {"one": LocalFiles(tmp_path / "own"), "two": LocalFiles(tmp_path / "other")}
    start(cluster).run(0)
    query = start(cluster)
    query.run(0, 1)
    assert [(known.is_swept, known.decides_in_checkpoint) for known, _ in two(query).asked] == [(False, False)]
