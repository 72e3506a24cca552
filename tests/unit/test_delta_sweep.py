"""The sweep deletes the files that nobody will decide, and no others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.unit.delta_support import SCHEMA, Shop, evidence, prepare, task_of
from twopc.attempt import Evidence
from twopc.sinks.delta import writer as writer_module
from twopc.sinks.delta.entries import Entry
from twopc.sinks.delta.orphans import Orphans
from twopc.sinks.delta.record import read_record
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


def test_files_of_dead_drivers_are_deleted_and_those_of_a_successor_are_not(shop: Shop) -> None:
    dead = Driver(shop.sink)
    dead.begin()
    prepare(dead, shop.sink, 1)
    late = Driver(shop.sink)
    late.begin()
    successor = Driver(shop.sink)
    successor.begin()
    prepare(successor, shop.sink, 2)
    late.committer.recover_and_abort([])
    assert len(shop.files()) == 2, "a fenced driver sweeps nothing"
    successor.committer.recover_and_abort([])
    assert shop.files() == []
    assert successor.committer.orphans_ended() == 2


def test_a_driver_that_is_fenced_after_its_look_does_not_even_list_the_files_of_its_successor(shop: Shop) -> None:
    """A step that only reads is not fenced when it deletes, so the driver epoch in the path is what protects them."""
    Driver(shop.sink)
    successor = Driver(shop.sink)
    successor.begin()
    prepare(successor, shop.sink, 1)
    store = shop.sink.store()
    _, record = read_record(store, shop.table(), "orders")
    assert Orphans(store, "orders").find(record, own_epoch=1) == []
    assert len(Orphans(store, "orders").find(record, own_epoch=2)) == 1


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


def test_failed_attempts_at_the_decided_batch_and_at_the_next_one_are_deleted(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.committer.recover_and_abort([])
    driver.begin()
    prepare(driver, shop.sink, 1)
    scan_start = driver.begin()
    decided = prepare(driver, shop.sink, 1, attempt=2)
    prepare(driver, shop.sink, 7, batch=1, attempt=3)
    driver.commit([decided], scan_start)
    driver.committer.recover_and_abort([decided])
    assert [decided.transaction in path.name for path in shop.files()] == [True]
    assert shop.values() == [1]


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


@pytest.mark.parametrize("keeps_record", [True, False])
def test_the_files_of_a_table_stay_if_it_is_made_anew_from_them(shop: Shop, *, keeps_record: bool) -> None:
    """Whoever has lost the log converts the files, as here. The same sink then begins anew with a new checkpoint."""
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


def test_a_batch_that_is_decided_and_not_yet_committed_is_spared(shop: Shop) -> None:
    dead = Driver(shop.sink)
    scan_start = dead.begin()
    decided = prepare(dead, shop.sink, 1)
    prepare(dead, shop.sink, 2)
    successor = Driver(shop.sink)
    successor.committer.recover_and_abort([decided])
    assert len(shop.files()) == 1
    assert evidence(successor, [decided], scan_start) == [Evidence.COMMITTED]


def test_a_writer_that_is_closed_deletes_its_files(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    writer = shop.sink.create_writer(task_of(driver))
    writer.write_rows(numbers([1, 2]))
    writer.close()
    voted = shop.sink.create_writer(task_of(driver))
    voted.write_rows(numbers([1, 2]))
    voted.snapshot_state(0)
    assert len(shop.files()) == 1
    voted.close()
    assert shop.files() == []


def test_other_files_in_the_sinks_directories_are_left_alone(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    prepare(driver, shop.sink, 1)
    notes = shop.files()[0].parent / "notes.txt"
    notes.write_text("mine")
    driver.committer.recover_and_abort([])
    assert shop.files() == [notes]


def test_entries_that_are_too_many_for_a_handle_are_in_a_file(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_MOST_INLINE", 10)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    first, second = prepare(driver, shop.sink, 1), prepare(driver, shop.sink, 2)
    assert first.entries == b"" and len(shop.files("*.entries")) == 2
    shop.files(f"{second.transaction}.entries")[0].write_bytes(b"no entries")
    assert evidence(driver, [first, second], scan_start) == [Evidence.COMMITTED, Evidence.ABORTED]
    assert shop.values() == [1]
    assert [path.name for path in shop.files("*.entries")] == [f"{second.transaction}.entries"]
    driver.committer.recover_and_abort([first])
    assert len(shop.files()) == 1
