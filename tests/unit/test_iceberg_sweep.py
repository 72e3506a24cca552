"""The sweep deletes files that no driver will decide, in every place, but never a file that is or will be in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from tests.unit.iceberg_support import SCHEMA, Shop
from tests.unit.lake_support import prepare
from tests.warehouse import Warehouse
from twopc import IcebergSink
from twopc.attempt import Evidence
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


def test_files_that_compaction_or_a_rollback_removed_from_the_table_are_kept(shop: Shop) -> None:
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


def test_two_tables_may_keep_their_files_in_one_directory(tmp_path: Path) -> None:
    """Their sinks may also have the same name. Each sink deletes only its own files."""
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
