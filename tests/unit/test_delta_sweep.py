"""The sweep deletes the files that no driver will decide, and no others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.unit.delta_support import SCHEMA, Shop
from tests.unit.lake_support import prepare
from twopc.attempt import Evidence
from twopc.sinks.delta.entries import Entry
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


def test_files_of_earlier_batches_are_never_deleted(shop: Shop) -> None:
    """Others may have removed them from the newest version. Time travel needs them, and VACUUM decides for how long."""
    driver = Driver(shop.sink)
    handles = {}
    for batch in range(3):
        scan_start = driver.begin()
        handles[batch] = prepare(driver, shop.sink, batch, batch=batch, attempt=batch)
        driver.commit([handles[batch]], scan_start)
        driver.committer.recover_and_abort([handles[batch]])
    shop.table().delete()
    successor = Driver(shop.sink)
    successor.committer.initialize_state([handles[2]], scan_start)
    successor.committer.recover_and_abort([])
    assert len(shop.files()) == 3
    assert shop.table().version() > 0


@pytest.mark.parametrize("keeps_record", [True, False])
def test_the_files_of_a_table_stay_if_it_is_created_again_from_them(shop: Shop, *, keeps_record: bool) -> None:
    """A user who has lost the log converts the files, as here. The same sink then starts over with a new checkpoint."""
    driver = Driver(shop.sink)
    driver.commit([prepare(driver, shop.sink, 1, batch=7)], driver.begin())
    shutil.rmtree(shop.path / "_delta_log")
    if not keeps_record:
        shutil.rmtree(shop.path / "_twopc")
    DeltaTable.create(str(shop.path), SCHEMA)
    [file] = shop.files()
    entry = Entry(str(file.relative_to(shop.path)), file.stat().st_size, 1, {}, 1, '{"numRecords":1}')
    shop.table().create_write_transaction([entry.action()], "append", shop.table().schema())
    assert shop.values() == [1]
    second = Driver(shop.sink)
    second.committer.recover_and_abort([])
    scan_start = second.begin()
    handle = prepare(second, shop.sink, 2)
    assert second.commit([handle], scan_start) == [Evidence.COMMITTED]
    second.committer.recover_and_abort([handle])
    assert shop.values() == [1, 2]
