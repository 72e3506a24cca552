"""The sweep deletes files that nobody will decide, in every place, but never a file that is or will be in the table."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from tests.unit.iceberg_support import SCHEMA, Shop, prepare
from tests.warehouse import Warehouse
from twopc import IcebergSink
from twopc.attempt import Evidence
from twopc.testing import crash_points
from twopc.testing.contract import Case, Crash, die, numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


def named(shop: Shop) -> set[str]:
    """The files that a snapshot names."""
    table = shop.table()
    return {task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()}


def present(shop: Shop) -> set[str]:
    return {path.name for path in shop.files()}


@pytest.mark.parametrize(
    "point", ["task.written", "task.prepared", "driver.confirmed", "driver.decided", "driver.committed"]
)
def test_after_a_crash_and_a_restart_every_file_is_in_the_table(point: str, shop: Shop, tmp_path: Path) -> None:
    query = Query(Case(shop.sink, numbers, shop.values), tmp_path)
    query.run(0, 1)
    for batch in (2, 3):
        crash_points.arm(point, die)
        with contextlib.suppress(Crash):
            query.run(batch)
        crash_points.disarm()
        query.run(batch)
    assert shop.values() == all_rows(0, 1, 2, 3)
    assert present(shop) == named(shop)


def test_files_of_earlier_batches_and_drivers_stay(shop: Shop) -> None:
    for start in range(3):
        driver = Driver(shop.sink)
        driver.committer.recover_and_abort([])
        for batch in range(3):
            scan_start = driver.begin()
            handle = prepare(driver, shop.sink, start, batch=3 * start + batch, attempt=batch)
            assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
            driver.committer.recover_and_abort([])
            driver.committer.recover_and_abort([handle])
    assert len(shop.values()) == 9
    assert len(named(shop)) == 9


def test_files_that_compaction_or_a_rollback_took_out_of_the_table_stay(shop: Shop) -> None:
    """Older snapshots still name them."""
    driver = Driver(shop.sink)
    older = shop.table().metadata.refs["main"].snapshot_id
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    driver.commit([handle], scan_start)
    shop.change(lambda table: table.manage_snapshots().rollback_to_snapshot(older).commit())
    for _ in range(2):
        driver.committer.recover_and_abort([handle])
        successor = Driver(shop.sink)
        successor.committer.recover_and_abort([])
        successor.committer.recover_and_abort([handle])
        driver = successor
    assert len(shop.files()) == 1


@pytest.mark.parametrize("is_published", [True, False])
def test_the_files_of_a_repair_stay_although_another_query_does_not_know_them(
    *, is_published: bool, shop: Shop
) -> None:
    """A later driver has repaired the batch of an earlier one, and then a new query takes over the sink."""
    first = Driver(shop.sink)
    scan_start = first.begin()
    lost, kept = prepare(first, shop.sink, 1), prepare(first, shop.sink, 2)
    for file in shop.files(f"{lost.transaction}*"):
        file.unlink()
    if is_published:
        first.committer.commit([lost, kept], scan_start)
    second = Driver(shop.sink)
    if is_published:
        second.committer.initialize_state([lost, kept], scan_start)
    repaired = prepare(second, shop.sink, 1)
    assert second.commit([kept, repaired], scan_start) == [Evidence.COMMITTED] * 2
    Driver(shop.sink).committer.recover_and_abort([])
    assert shop.values() == [1, 2]


def test_two_tables_may_have_their_files_in_one_directory(tmp_path: Path) -> None:
    """Their sinks, too, may have one name. Each deletes only what is its own."""
    warehouse = Warehouse(tmp_path / "warehouse", timeout_s=0.2)
    shared = (tmp_path / "shared").as_uri()
    for number, table in enumerate(("shop.orders", "shop.returns")):
        warehouse.create(table, SCHEMA, UNPARTITIONED_PARTITION_SPEC, **{"write.data.path": shared})
        sink = IcebergSink(name="orders", catalog=warehouse.properties, table=table)
        driver = Driver(sink)
        driver.committer.recover_and_abort([])
        scan_start = driver.begin()
        assert driver.commit([prepare(driver, sink, number)], scan_start) == [Evidence.COMMITTED]
    assert (warehouse.column("shop.orders", "value"), warehouse.column("shop.returns", "value")) == ([0], [1])
    close_opened()


def test_orphans_of_every_earlier_driver_are_found(shop: Shop) -> None:
    first = Driver(shop.sink)
    scan_start = first.begin()
    first.commit([prepare(first, shop.sink, 1, batch=4)], scan_start)
    prepare(first, shop.sink, 2, batch=5)
    second = Driver(shop.sink)
    prepare(second, shop.sink, 3, batch=5)
    third = Driver(shop.sink)
    third.committer.recover_and_abort([])
    assert third.committer.orphans_ended() == 2
    assert present(shop) == named(shop)


def test_an_orphan_of_the_batch_that_was_decided_is_found(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.committer.recover_and_abort([])
    scan_start = driver.begin()
    prepare(driver, shop.sink, 1)
    handle = prepare(driver, shop.sink, 1, attempt=2)
    driver.commit([handle], scan_start)
    driver.committer.recover_and_abort([handle])
    assert driver.committer.orphans_ended() == 1
    prepare(driver, shop.sink, 2, batch=1, attempt=3)
    driver.committer.recover_and_abort([handle])
    assert driver.committer.orphans_ended() == 2
    assert present(shop) == named(shop)


def test_files_of_others_are_left_alone(shop: Shop) -> None:
    driver = Driver(shop.sink)
    prepare(driver, shop.sink, 1)
    [own] = shop.files()
    own.with_name("notes.txt").write_text("kept")
    other = Driver(shop.named("orders2"))
    prepare(other, shop.named("orders2"), 2)
    Driver(shop.sink).committer.recover_and_abort([])
    assert sorted(path.suffix for path in shop.files()) == [".parquet", ".txt"]


def test_an_aborted_task_leaves_no_file(shop: Shop) -> None:
    driver = Driver(shop.sink)
    handle = prepare(driver, shop.sink, 1)
    driver.committer.abort([handle])
    assert shop.files() == []
