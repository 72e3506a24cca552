"""A table whose files were restored, copied, deleted in part, or created anew is refused by name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.unit.delta_support import SCHEMA, Shop, evidence, prepare
from twopc import CheckpointExpiredError, ConfigurationError, RefusedStartError
from twopc.attempt import Evidence
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import QUERY_ID, Driver, Query, all_rows, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


def query_on(shop: Shop, directory: Path) -> Query:
    return Query(Case(shop.sink, numbers, shop.values), directory)


@pytest.mark.parametrize("behind", [1, 2])
def test_a_start_on_an_older_table_is_refused(shop: Shop, tmp_path: Path, behind: int) -> None:
    query = query_on(shop, tmp_path)
    query.run(0)
    backup = shop.backed_up(tmp_path / "backup")
    query.run(*range(1, behind + 2))
    shop.restored(backup)
    with pytest.raises(RefusedStartError, match="is older than this checkpoint"):
        query.run(behind + 2)
    assert shop.values() == all_rows(0)


def test_a_table_that_lacks_only_the_newest_commit_gets_it_again(shop: Shop, tmp_path: Path) -> None:
    """A machine may lose what deltalake has not flushed to its disk. The batch is decided, and its files are there."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    backup = shop.backed_up(tmp_path / "backup")
    driver.commit([handle], scan_start)
    shop.restored(backup)
    assert Driver(shop.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert shop.values() == [1, 2]


def test_a_log_that_lacks_only_the_newest_commit_gets_it_again(shop: Shop) -> None:
    """The same, if all other files have outlived the crash and the deleted ones are lost permanently."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.commit([handle], scan_start)
    (shop.path / "_delta_log" / f"{shop.version():020}.json").unlink()
    assert Driver(shop.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert shop.values() == [1, 2]


def test_a_running_driver_notices_that_the_table_was_restored(shop: Shop, tmp_path: Path) -> None:
    driver = Driver(shop.sink)
    backup = shop.backed_up(tmp_path / "backup")
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, 1)], scan_start)
    shop.restored(backup)
    with pytest.raises(ConfigurationError, match="was restored to an older state while this driver was running"):
        driver.begin()


def test_a_driver_never_commits_ahead_of_a_restored_log(shop: Shop, tmp_path: Path) -> None:
    """A table object in memory would add a version beyond a gap."""
    backup = shop.backed_up(tmp_path / "backup")
    for value in range(5):
        shop.append(value)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    shop.restored(backup)
    assert evidence(driver, [handle], scan_start) == [Evidence.UNKNOWN]
    assert shop.version() == 0


def test_a_table_that_was_created_again_is_named_while_a_driver_runs(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    shutil.rmtree(shop.path)
    DeltaTable.create(str(shop.path), SCHEMA)
    assert evidence(driver, [handle], scan_start) == [Evidence.UNKNOWN]
    assert "was deleted and created again" in driver.committer.blockers()[0]
    with pytest.raises(ConfigurationError, match="was deleted and created again"):
        driver.begin()


def test_a_table_that_was_created_again_is_another_one_for_the_checkpoint(shop: Shop, tmp_path: Path) -> None:
    query = query_on(shop, tmp_path)
    query.run(0)
    shutil.rmtree(shop.path)
    DeltaTable.create(str(shop.path), SCHEMA)
    with pytest.raises((RefusedStartError, ConfigurationError)):
        query.run(1)
    assert shop.values() == []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.unlink(), "is gone, which the table's log names"),
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_text(path.read_text().replace('"pointer":', '"pointer":1')), "is the record of"),
    ],
    ids=["deleted", "cut short", "another one"],
)
def test_a_record_that_was_changed_is_named(shop: Shop, damage: object, why: str) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    [record] = shop.records()
    damage(record)  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match=why):
        Driver(shop.sink)
    assert evidence(driver, [handle], scan_start) == [Evidence.UNKNOWN]
    assert why in driver.committer.blockers()[0]
    assert shop.values() == []


def test_a_log_with_a_gap_is_named(shop: Shop) -> None:
    Driver(shop.sink)
    shop.append(1)
    (shop.path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(ConfigurationError, match="log is damaged"):
        Driver(shop.sink)


def test_vacuum_spares_the_record(shop: Shop) -> None:
    Driver(shop.sink)
    shop.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert len(shop.records()) == 1
    Driver(shop.sink)


def test_a_batch_that_vacuum_may_take_for_garbage_is_not_decided(tmp_path: Path) -> None:
    shop = Shop(tmp_path, configuration={"delta.deletedFileRetentionDuration": "interval 3 hours"})
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1)
    driver.committer.confirm([handle], 3_600_000)
    with pytest.raises(CheckpointExpiredError, match="a third of that, 3600000 ms, is the limit"):
        driver.committer.confirm([handle], 3_600_001)
    close_opened()


@pytest.mark.parametrize(("query", "is_refused"), [(QUERY_ID, True), ("another query", False)])
def test_a_batch_that_sparks_own_writer_has_committed_is_not_written_again(
    shop: Shop, tmp_path: Path, query: str, *, is_refused: bool
) -> None:
    adopting = Settings(overrides=Overrides(adopt_query_id=QUERY_ID))
    done = CommitProperties(app_transactions=[Transaction(query, 3)])
    write_deltalake(str(shop.path), SCHEMA.empty_table(), mode="append", commit_properties=done)
    before = shop.version()
    if is_refused:
        with pytest.raises(
            RefusedStartError, match=r"written already: .* has written batch 3 to the store of sink 'orders'"
        ):
            query_on(shop, tmp_path).run(3, settings=adopting)
        assert shop.version() == before
    query_on(shop, tmp_path).run(4 if is_refused else 3, settings=adopting)
    assert shop.values() == all_rows(4 if is_refused else 3)
