"""Checkpoints and tables that do not belong together are refused with an error that identifies them. Nothing is written."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from tests.unit.iceberg_support import TAG, Shop
from tests.unit.lake_support import prepare, prepare_long_ago
from twopc import ConfigurationError, RefusedStartError
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


@pytest.fixture
def case(shop: Shop) -> Case:
    return Case(shop.sink, numbers, shop.values)


def test_recreating_the_tag_on_an_older_snapshot_does_not_add_the_last_batch_twice(
    shop: Shop, case: Case, tmp_path: Path
) -> None:
    """The newest snapshot of the sink has expired without its tag, and the error for the deleted tag names an older one."""
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0)
    older = shop.table().metadata.refs[TAG].snapshot_id
    shop.change(lambda table: table.manage_snapshots().create_tag(older, "daily").commit())
    query.continue_with(running, 1)
    running.close()
    shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).commit())
    shop.append(9_999)
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    shop.change(lambda table: table.maintenance.expire_snapshots().older_than(later).commit())
    with pytest.raises(ConfigurationError, match=f"CREATE TAG `{TAG}` AS OF VERSION {older}"):
        query.run(2)
    shop.change(lambda table: table.manage_snapshots().create_tag(older, TAG).commit())
    query.run(2)
    assert shop.values() == [*all_rows(0, 1, 2), 9_999]


@pytest.mark.parametrize("has_original", [True, False])
def test_recreating_the_tag_does_not_add_a_copied_file_twice(shop: Shop, *, has_original: bool) -> None:
    """The table contains the copies, whose paths are in no handle, and maintenance may have deleted the originals."""
    driver = Driver(shop.sink)
    older = shop.table().metadata.refs[TAG].snapshot_id
    shop.change(lambda table: table.manage_snapshots().create_tag(older, "daily").commit())
    scan_start = driver.begin()
    handle = prepare_long_ago(shop, driver, 1, 2)
    [original] = shop.garbage()
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    if not has_original:
        original.unlink()
    shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).commit())
    shop.append(9)
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    shop.change(lambda table: table.maintenance.expire_snapshots().older_than(later).commit())
    shop.change(lambda table: table.manage_snapshots().create_tag(older, TAG).commit())
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert shop.values() == [1, 2, 9]


@pytest.mark.parametrize(
    ("tasks", "is_gone"),
    [([(1, 2)], False), ([(1, 2)], True), ([(1,), (2,)], False)],
    ids=["one task", "one task, file gone", "two tasks"],
)
def test_recreating_the_tag_does_not_bring_deleted_rows_back(
    tmp_path: Path, tasks: list[tuple[int, ...]], *, is_gone: bool
) -> None:
    """A file that is still in the table proves that its commit added all files of the attempt."""
    shop = Shop(tmp_path, PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "value")))
    driver = Driver(shop.sink)
    older = shop.table().metadata.refs[TAG].snapshot_id
    shop.change(lambda table: table.manage_snapshots().create_tag(older, "daily").commit())
    scan_start = driver.begin()
    handles = [prepare(driver, shop.sink, *values) for values in tasks]
    assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * len(tasks)
    shop.change(lambda table: table.delete("value = 1"))
    shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).commit())
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    shop.change(lambda table: table.maintenance.expire_snapshots().older_than(later).commit())
    shop.change(lambda table: table.manage_snapshots().create_tag(older, TAG).commit())
    if is_gone:  # Spark's expire_snapshots deletes the files that no snapshot lists any more
        for file in shop.files():
            if file.name not in shop.named_files():
                file.unlink()
    found = Driver(shop.sink).committer.initialize_state(handles, scan_start)
    assert found == dict.fromkeys(handles, Evidence.COMMITTED)
    assert shop.values() == [2]


def set_back(shop: Shop, case: Case, directory: Path, *starts: tuple[int, ...]) -> None:
    """A query ends whose newest snapshots have expired without their tag. Then its tag is recreated on its first batch.

    Args:
        shop: the table.
        case: the sink's case.
        directory: where the query's checkpoint is.
        starts: for each later start of the query, its batches. A start without batches only acquires the sink.
    """
    query = Query(case, directory)
    query.run(0)
    older = shop.table().metadata.refs[TAG].snapshot_id
    shop.change(lambda table: table.manage_snapshots().create_tag(older, "daily").commit())
    for batches in starts:
        if batches:
            query.run(*batches)
        else:
            Driver(shop.sink)
    shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).commit())
    shop.append(9_999)
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    shop.change(lambda table: table.maintenance.expire_snapshots().older_than(later).commit())
    shop.change(lambda table: table.manage_snapshots().create_tag(older, TAG).commit())


@pytest.mark.parametrize("starts", [((1, 2),), ((1,), (2,)), ((), (1, 2))], ids=["one", "two", "one without rows"])
def test_a_query_that_ends_another_one_deletes_no_rows_of_a_table_with_a_recreated_tag(
    shop: Shop, case: Case, tmp_path: Path, starts: tuple[tuple[int, ...], ...]
) -> None:
    """By the record, the files of all later batches are orphans. The new query's log does not contain these batches."""
    set_back(shop, case, tmp_path / "query", *starts)
    other = Query(case, tmp_path / "other", query_id="query-b")
    for _ in range(2):
        with pytest.raises(RefusedStartError, match=r"contains rows of batch [12], but the sink's record .* batch 0"):
            other.run(0, settings=Settings(overrides=Overrides(end_query_ids={QUERY_ID})))
    assert shop.values() == [*all_rows(0, 1, 2), 9_999]


def test_a_tag_deleted_between_two_runs_is_reported(shop: Shop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).commit())
    with pytest.raises(ConfigurationError, match="the tag 'twopc-orders' is missing"):
        query.run(1)


def test_a_tag_deleted_with_everything_the_sink_wrote_is_refused(shop: Shop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    shop.append(9)

    def forget(table: object) -> None:
        table.manage_snapshots().remove_tag(TAG).commit()  # type: ignore[attr-defined]

    shop.change(forget)
    current = shop.table().metadata.refs["main"].snapshot_id
    own = [one.snapshot_id for one in shop.table().metadata.snapshots if one.snapshot_id != current]
    shop.change(lambda table: table.maintenance.expire_snapshots().by_ids(own).commit())
    before = shop.table().metadata_location
    with pytest.raises(RefusedStartError, match="sink 'orders'"):
        query.run(1)
    assert shop.table().metadata_location == before


def test_the_newest_batch_of_sparks_own_writer_is_found_in_any_order_of_the_snapshots(shop: Shop) -> None:
    """Expiry or a rewrite may have changed it."""
    for batch in (3, 2):
        shop.commit_as_spark(QUERY_ID, batch)
    assert Driver(shop.sink).committer.newest_batch_of_others(QUERY_ID) == 3
