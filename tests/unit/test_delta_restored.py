"""A table whose files were restored, copied, deleted in part, or created again is refused with an error that identifies it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.delta_support import Shop, next_commits
from tests.unit.lake_support import evidence, prepare
from twopc import CheckpointExpiredError, ConfigurationError, FencedError
from twopc.attempt import Evidence
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


def test_the_newest_commit_is_repeated_if_only_this_commit_is_missing_from_the_log(shop: Shop) -> None:
    """All other files have outlived the crash, and the deleted file is lost permanently."""
    Driver(shop.sink)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.commit([handle], scan_start)
    (shop.path / "_delta_log" / f"{shop.commits():020}.json").unlink()
    assert Driver(shop.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert shop.values() == [1, 2]


def test_a_start_whose_commit_is_missing_from_the_log_is_repeated(shop: Shop) -> None:
    for value in (1, 2):
        driver = Driver(shop.sink)
        driver.commit([prepare(driver, shop.sink, value)], driver.begin())
    Driver(shop.sink)
    (shop.path / "_delta_log" / f"{shop.commits():020}.json").unlink()
    Driver(shop.sink)
    assert shop.values() == [1, 2]


def test_the_record_of_a_commit_without_a_response_stays_although_a_successor_has_moved_the_pointer(shop: Shop) -> None:
    """The commit may have taken effect, so its record is the successor's previous record."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)

    def overtaken(send: Callable[[], None]) -> None:
        send()
        Driver(shop.sink)
        raise shop.refused("no response")

    with next_commits(overtaken), pytest.raises(FencedError):
        driver.committer.commit([handle], scan_start)
    (shop.path / "_delta_log" / f"{shop.commits():020}.json").unlink()
    assert Driver(shop.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert shop.values() == [1, 2]


def test_a_driver_never_commits_ahead_of_a_restored_log(shop: Shop) -> None:
    """A table object in memory would add a version beyond a gap."""
    backup = shop.backup()
    for value in range(5):
        shop.append(value)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    shop.restore(backup)
    assert evidence(driver, [handle], scan_start) == [Evidence.UNKNOWN]
    assert shop.commits() == 0


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.unlink(), "but this file is missing"),
        (lambda path: path.write_text("{"), "is damaged"),
        (
            lambda path: path.write_text(path.read_text().replace('"pointer":', '"pointer":1')),
            "instead of pointer",
        ),
    ],
    ids=["deleted", "cut short", "another one"],
)
def test_a_changed_record_is_reported(shop: Shop, damage: object, why: str) -> None:
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


def test_a_log_with_a_gap_is_reported(shop: Shop) -> None:
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


def test_a_batch_that_vacuum_may_mistake_for_garbage_is_not_decided(tmp_path: Path) -> None:
    shop = Shop(tmp_path, configuration={"delta.deletedFileRetentionDuration": "interval 3 hours"})
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1)
    driver.committer.confirm([handle], 3_600_000)
    with pytest.raises(CheckpointExpiredError, match="The limit is 3600000 ms, a third of"):
        driver.committer.confirm([handle], 3_600_001)
    close_opened()
