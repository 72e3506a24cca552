"""Checkpoints and tables that no longer belong together are refused with an error that identifies them, in every table format."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.unit.lake_support import lost_answer, prepare
from tests.unit.test_lake_commit import shop
from twopc import ConfigurationError, RefusedStartError
from twopc.attempt import Evidence
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.sinks.lake import writer as writer_module
from twopc.testing import crash_points
from twopc.testing.contract import Case, Crash, die, numbers
from twopc.testing.contract.drivers import QUERY_ID, Driver, Engine, Query, all_rows, batch_of
from twopc.times import Times

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.lake_support import LakeShop
    from twopc.batch import Batch

__all__ = ["shop"]

#: The settings of a query that Spark's own writer has run.
ADOPTING: Final = Settings(overrides=Overrides(adopt_query_id=QUERY_ID))


@pytest.fixture
def case(shop: LakeShop) -> Case:
    return Case(shop.sink, numbers, shop.values)


def ending(query_id: str) -> Settings:
    return Settings(overrides=Overrides(end_query_ids={query_id}))


@pytest.mark.parametrize("behind", [1, 2])
def test_a_start_on_an_older_table_is_refused(shop: LakeShop, case: Case, tmp_path: Path, behind: int) -> None:
    query = Query(case, tmp_path / "query")
    query.run(0)
    backup = shop.backup()
    commits = shop.commits()
    query.run(*range(1, behind + 2))
    shop.restore(backup)
    with pytest.raises(RefusedStartError, match=r"sink 'orders': .*orders is older than this checkpoint"):
        query.run(behind + 2)
    assert (shop.values(), shop.commits()) == (all_rows(0), commits)


@pytest.mark.parametrize("most_inline", [2**14, 10])
def test_a_lost_commit_is_repeated_if_it_was_the_newest(
    shop: LakeShop, monkeypatch: pytest.MonkeyPatch, most_inline: int
) -> None:
    """The lists of files are in the handles, or in files."""
    monkeypatch.setattr(writer_module, "_MOST_INLINE", most_inline)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    older = shop.backup()
    driver.commit([handle], scan_start)
    shop.lose_newest_commit(older)
    assert Driver(shop.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert shop.values() == [1, 2]


def test_the_last_batch_is_added_again_to_a_table_restored_to_a_state_before_that_batch(
    shop: LakeShop, case: Case, tmp_path: Path
) -> None:
    """A machine may lose what was not flushed to its disk. The batch is decided, and its files are there."""
    query = Query(case, tmp_path / "query")
    running = query.start()
    query.continue_with(running, 0)
    older = shop.backup()
    query.continue_with(running, 1)
    shop.restore(older)
    query.run(1, 2)
    assert shop.values() == all_rows(0, 1, 2)


def test_a_table_restored_to_a_state_before_the_repair_of_an_earlier_batch_is_refused(
    shop: LakeShop, case: Case, tmp_path: Path
) -> None:
    """The table contains that batch's decision, but no start examines the batch again, so its rows would be lost."""
    query = Query(case, tmp_path / "query")
    states: list[Any] = []

    def lose() -> None:
        shop.files()[0].unlink()

    crash_points.arm("driver.decided", lose)
    running = query.start()
    query.continue_with(running, 0, before_tasks=lambda: states.append(shop.backup()))
    assert len(states) == 2  # the second attempt is the repair
    query.continue_with(running, 1)
    assert shop.values() == all_rows(0, 1)
    shop.restore(states[1])
    with pytest.raises(RefusedStartError, match=r"orders is older than this checkpoint"):
        query.run(1)
    assert set(shop.values()) < set(all_rows(0))


def test_a_table_restored_while_a_query_runs_is_reported(shop: LakeShop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path / "query")
    running = query.start()
    query.continue_with(running, 0)
    older = shop.backup()
    commits = shop.commits()
    query.continue_with(running, 1)
    shop.restore(older)
    with pytest.raises(ConfigurationError, match=r"was restored to an older state.*Restart the query first"):
        query.continue_with(running, 2)
    assert shop.commits() == commits


def test_when_a_table_is_restored_the_loss_of_a_commit_that_only_the_table_proved_is_noticed(
    shop: LakeShop, case: Case, tmp_path: Path
) -> None:
    query = Query(case, tmp_path / "query")
    running = query.start()
    query.continue_with(running, 0)
    older = shop.backup()
    with shop.next_commits(lost_answer):
        query.continue_with(running, 1)
    shop.restore(older)
    with pytest.raises(ConfigurationError, match=r"was restored to an older state.*Restart the query first"):
        query.continue_with(running, 2)
    assert shop.values() == all_rows(0)


def test_a_recreated_table_is_refused_at_the_start(shop: LakeShop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path / "query")
    query.run(0)
    shop.recreate()
    with pytest.raises(RefusedStartError, match="sink 'orders' was bound to"):
        query.run(1)
    assert (shop.values(), shop.commits()) == ([], 0)


@pytest.mark.parametrize("settings", [None, ending(QUERY_ID)], ids=["no override", "override still in the code"])
def test_a_table_restored_to_a_state_before_a_takeover_is_refused(
    shop: LakeShop, case: Case, tmp_path: Path, settings: Settings | None
) -> None:
    """The restored table names the ended query as its owner, but decisions of the query that ended it are missing."""
    Query(case, tmp_path / "query").run(0)
    backup, commits = shop.backup(), shop.commits()
    other = Query(case, tmp_path / "other", query_id="query-b")
    other.run(0, 1, settings=ending(QUERY_ID))
    shop.restore(backup)
    with pytest.raises(RefusedStartError, match=r"sink 'orders': .*orders is older than this checkpoint"):
        other.run(1, settings=settings)
    assert (shop.values(), shop.commits()) == (all_rows(0), commits)


def test_a_driver_that_decided_and_died_commits_its_batch(shop: LakeShop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path / "query")
    query.run(0)
    crash_points.arm("driver.decided", die)
    with pytest.raises(Crash):
        query.run(1)
    query.run(1, 2)
    assert shop.values() == all_rows(0, 1, 2)


def test_a_query_may_return_after_another_one_took_over(shop: LakeShop, case: Case, tmp_path: Path) -> None:
    """The table has forgotten the first query's newest decision, but not its commit."""
    query = Query(case, tmp_path / "query")
    query.run(0, 1)
    other = Query(case, tmp_path / "other", query_id="query-b")
    crash_points.arm("driver.fenced", die)
    with pytest.raises(Crash):
        other.run(0, settings=ending(QUERY_ID))
    query.run(1, settings=ending("query-b"))
    query.run(1, 2)
    assert shop.values() == all_rows(0, 1, 2)


def planned(batch_id: int, at_ms: int) -> Batch:
    """A batch that Spark planned at this time."""
    return replace(batch_of(batch_id), times_of=lambda _: Times(0, at_ms))


def refusal(case: Case, directory: Path, batch: Batch) -> str:
    """Start a query that Spark's own writer has run, with this batch. Return the message with which the start is refused."""
    coordinator = Query(case, directory).start(ADOPTING)
    with pytest.raises(RefusedStartError) as error:
        coordinator.process(batch, Engine(case))
    return str(error.value)


@pytest.mark.parametrize(("query", "is_refused"), [(QUERY_ID, True), ("another query", False)])
def test_a_batch_committed_by_sparks_own_writer_is_not_written_again(
    shop: LakeShop, case: Case, tmp_path: Path, query: str, *, is_refused: bool
) -> None:
    began_ms = time.time_ns() // 1_000_000
    shop.commit_as_spark(query, 3)
    before = shop.commits()
    if is_refused:
        message = refusal(case, tmp_path / "query", planned(3, began_ms))
        assert message.startswith("written already: ")
        assert "has written batch 3 to the store of sink 'orders'" in message
        assert shop.commits() == before
    Query(case, tmp_path / "query").run(4 if is_refused else 3, settings=ADOPTING)
    assert shop.values() == all_rows(4 if is_refused else 3)


@pytest.mark.parametrize("is_planned_again", [False, True])
def test_an_older_copy_of_the_checkpoint_of_sparks_own_writer_is_not_given_back_to_that_writer(
    shop: LakeShop, case: Case, tmp_path: Path, *, is_planned_again: bool
) -> None:
    """Spark would plan the batches again, and that writer would skip them by their numbers, whatever rows they contain."""
    shop.commit_as_spark(QUERY_ID, 3)
    before = shop.commits()
    committed_ms = time.time_ns() // 1_000_000
    batch = planned(3, committed_ms + 1) if is_planned_again else planned(2, committed_ms - 60_000)
    message = refusal(case, tmp_path / "query", batch)
    assert message.startswith("older copy: ")
    assert "Use the newest checkpoint" in message and "Do not start the previous version" in message
    assert shop.commits() == before


def test_a_batch_that_sparks_own_writer_committed_at_an_unknown_time_is_not_written_again(
    shop: LakeShop, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit may be missing from the table's history, and a file of the checkpoint may contain no times."""
    shop.commit_as_spark(QUERY_ID, 3)
    assert refusal(case, tmp_path / "one", batch_of(3)).startswith("written already: ")
    committer = type(shop.sink.create_committer())
    monkeypatch.setattr(committer, "committed_by_others_ms", lambda *_: None)
    later_ms = time.time_ns() // 1_000_000 + 1
    assert refusal(case, tmp_path / "two", planned(3, later_ms)).startswith("written already: ")


def test_a_batch_committed_by_sparks_own_writer_between_two_of_this_sinks_is_not_written_again(
    shop: LakeShop, case: Case, tmp_path: Path
) -> None:
    query = Query(case, tmp_path / "query")
    query.run(0)
    shop.commit_as_spark(QUERY_ID, 1)
    with pytest.raises(RefusedStartError, match="written already"):
        query.run(1)
    assert shop.values() == all_rows(0)
