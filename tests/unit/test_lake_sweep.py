"""The sweep deletes files that no driver will decide, in every place, but never a file that is or will be in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.lake_support import evidence, prepare, task_of
from tests.unit.test_lake_commit import shop
from twopc import control
from twopc.attempt import Evidence
from twopc.sinks.lake import writer as writer_module
from twopc.sinks.lake.layout import copied_ms, data_file, new_copy, original_of, transaction_of
from twopc.sinks.lake.orphans import Orphans
from twopc.sinks.lake.step import LakeStep
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.lake_support import LakeShop

__all__ = ["shop"]


def present(shop: LakeShop) -> set[str]:
    return {path.name for path in shop.files()}


@pytest.mark.parametrize(
    "point", ["task.written", "task.prepared", "driver.confirmed", "driver.decided", "driver.committed"]
)
def test_after_a_crash_and_a_restart_every_file_is_in_the_table(point: str, shop: LakeShop, tmp_path: Path) -> None:
    query = Query(Case(shop.sink, numbers, shop.values), tmp_path / "query")
    query.run(0, 1)
    for batch in (2, 3):
        assert query.run_until(point, batch)
        query.finish(batch)
    assert shop.values() == all_rows(0, 1, 2, 3)
    assert present(shop) == shop.named_files()


def test_files_of_earlier_batches_and_drivers_stay(shop: LakeShop) -> None:
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
    assert len(shop.named_files()) == 9


@pytest.mark.parametrize("is_published", [True, False])
def test_the_files_of_a_repair_stay_although_another_query_has_no_record_of_them(
    *, is_published: bool, shop: LakeShop
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


def test_files_of_dead_drivers_are_deleted_and_those_of_a_successor_are_not(shop: LakeShop) -> None:
    dead = Driver(shop.sink)
    dead.begin()
    prepare(dead, shop.sink, 1)
    late = Driver(shop.sink)
    late.begin()
    successor = Driver(shop.sink)
    successor.begin()
    prepare(successor, shop.sink, 2)
    late.committer.recover_and_abort([])
    assert len(shop.files()) == 2, "a fenced driver must not sweep anything"
    successor.committer.recover_and_abort([])
    assert shop.files() == []
    assert successor.committer.orphans_ended() == 2


def test_a_driver_fenced_after_its_check_does_not_even_list_the_files_of_its_successor(shop: LakeShop) -> None:
    """A step that only reads is not fenced when it deletes, so the driver epoch in the path is what protects them."""
    Driver(shop.sink)
    successor = Driver(shop.sink)
    successor.begin()
    prepare(successor, shop.sink, 1)
    view = shop.view()
    root = view.root(control.decode(view.stored).id)
    assert Orphans().find(view.files, root, view.outcome, own_epoch=1) == []
    assert len(Orphans().find(view.files, root, view.outcome, own_epoch=2)) == 1


def test_orphans_of_every_earlier_driver_are_found(shop: LakeShop) -> None:
    first = Driver(shop.sink)
    scan_start = first.begin()
    first.commit([prepare(first, shop.sink, 1, batch=4)], scan_start)
    prepare(first, shop.sink, 2, batch=5)
    second = Driver(shop.sink)
    prepare(second, shop.sink, 3, batch=5)
    third = Driver(shop.sink)
    third.committer.recover_and_abort([])
    assert third.committer.orphans_ended() == 2
    assert present(shop) == shop.named_files()


def test_orphans_of_the_decided_batch_and_of_the_next_batch_are_found(shop: LakeShop) -> None:
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
    assert present(shop) == shop.named_files()


def test_a_batch_without_rows_does_not_search_the_earlier_batches(
    shop: LakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a directory for each batch with rows, for as long as the query exists."""
    driver = Driver(shop.sink)
    driver.committer.initialize_state([], {})
    handle = prepare(driver, shop.sink, 1)
    scan_start = driver.begin()
    driver.committer.notify_checkpoint_complete(0, [handle], scan_start)
    driver.committer.recover_and_abort([handle])
    listed = listings(shop, monkeypatch)
    driver.committer.notify_checkpoint_complete(1, [], driver.begin())
    driver.committer.recover_and_abort([])
    assert [names for names in listed if names] == []


def test_orphans_of_a_batch_that_was_decided_without_rows_and_of_the_next_batch_are_found(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    driver.committer.initialize_state([], {})
    for batch, orphaned in ((3, 3), (4, 5)):
        driver.begin()
        prepare(driver, shop.sink, 1, batch=orphaned)
        driver.committer.notify_checkpoint_complete(batch, [], driver.begin())
        driver.committer.recover_and_abort([])
        assert shop.files() == []
    prepare(driver, shop.sink, 1, batch=5)
    driver.committer.recover_and_abort([])  # after a failed attempt, which no batch completes
    assert shop.files() == []


def test_the_files_of_an_abandoned_batch_are_deleted(shop: LakeShop) -> None:
    """An earlier driver decided the batch, so its files are not in this driver's directories."""
    dead = Driver(shop.sink)
    scan_start = dead.begin()
    decided = prepare(dead, shop.sink, 1)
    successor = Driver(shop.sink)
    successor.committer.recover_and_abort([decided])
    with shop.silent():
        successor.committer.notify_checkpoint_complete(0, [decided], scan_start)
    successor.committer.recover_and_abort([])
    assert shop.files() == []


def test_a_start_does_not_list_the_batches_before_the_newest(shop: LakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Driver(shop.sink)
    for batch in (*range(10), 2_500):
        scan_start = first.begin()
        first.commit([prepare(first, shop.sink, batch, batch=batch)], scan_start)
    prepare(first, shop.sink, 1, batch=2_501)
    prepare(first, shop.sink, 1, batch=3_000)
    second = Driver(shop.sink)
    listed = listings(shop, monkeypatch)
    second.committer.initialize_state([], {})
    assert second.committer.orphans_ended() == 2
    assert not any({"1", "9"} & names for names in listed[1:])  # the first listing is that of the driver epochs
    assert len(shop.values()) == 11
    assert present(shop) == shop.named_files()


def listings(shop: LakeShop, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The results of the sink's later listings."""
    files, results = type(shop.view().files), []
    listed = files.listed

    def noted(*arguments: Any, **named: Any) -> list[str]:
        found: list[str] = listed(*arguments, **named)
        results.append(set(found))
        return found

    monkeypatch.setattr(files, "listed", noted)
    return results


def test_a_decided_but_uncommitted_batch_is_spared(shop: LakeShop) -> None:
    dead = Driver(shop.sink)
    scan_start = dead.begin()
    decided = prepare(dead, shop.sink, 1)
    prepare(dead, shop.sink, 2)
    successor = Driver(shop.sink)
    successor.committer.recover_and_abort([decided])
    assert len(shop.files()) == 1
    assert evidence(successor, [decided], scan_start) == [Evidence.COMMITTED]


def test_files_that_the_sink_did_not_write_are_left_alone(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    prepare(driver, shop.sink, 1)
    [own] = shop.files()
    own.with_name("notes.txt").write_text("kept")
    other = Driver(shop.named("orders2"))
    prepare(other, shop.named("orders2"), 2)
    Driver(shop.sink).committer.recover_and_abort([])
    assert sorted(path.suffix for path in shop.files()) == [".parquet", ".txt"]


def test_the_file_of_a_task_with_very_many_files_is_found(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    handle = prepare(driver, shop.sink, 1)
    [file] = shop.files()
    file.rename(data_file(str(file.parent), handle.transaction, 100_000))
    Driver(shop.sink).committer.recover_and_abort([])
    assert shop.files() == []


@pytest.mark.parametrize("number", [0, 99_999, 100_000, 1_234_567])
def test_the_names_of_a_file_and_of_its_copies_are_recognized(number: int) -> None:
    transaction = f"orders-3-{'a' * 32}"
    path = data_file("somewhere/0/7", transaction, number)
    copy = new_copy(path, 1_700_000_000_000)
    assert transaction_of(path) == transaction_of(copy) == transaction
    assert (copied_ms(path), copied_ms(copy)) == (None, 1_700_000_000_000)
    assert original_of(copy) == path


def test_an_aborted_task_leaves_no_file(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    handle = prepare(driver, shop.sink, 1)
    driver.committer.abort([handle])
    assert shop.files() == []


def test_closing_a_writer_deletes_its_files(shop: LakeShop) -> None:
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


def test_entries_that_do_not_fit_into_a_handle_are_in_a_file(shop: LakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_MOST_INLINE", 10)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    first, second = prepare(driver, shop.sink, 1), prepare(driver, shop.sink, 2)
    assert first.entries == b"" and len(shop.files("*.entries")) == 2
    shop.files(f"{second.transaction}.entries")[0].write_bytes(b"no entries")
    assert evidence(driver, [first, second], scan_start) == [Evidence.COMMITTED, Evidence.ABORTED]
    assert shop.values() == [1]
    driver.committer.recover_and_abort([first])
    assert {path.stem for path in shop.files("*.entries")} == {first.transaction}


@pytest.mark.parametrize("restarts", [True, False])
def test_a_file_with_entries_stays_until_the_next_batch_with_rows_is_in_the_table(
    shop: LakeShop, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    """Until then, the commit of its batch may be the newest one, which a machine crash may lose."""
    monkeypatch.setattr(writer_module, "_MOST_INLINE", 10)
    driver = Driver(shop.sink)
    driver.committer.initialize_state([], {})
    handles: list[Any] = []
    scan_start: dict[str, Any] = {}
    for batch in range(3):
        if restarts:
            driver = Driver(shop.sink)
            driver.committer.initialize_state(handles, scan_start)
        scan_start = driver.begin()
        handles = [prepare(driver, shop.sink, batch, batch=batch)]
        assert len(shop.files("*.entries")) == (2 if batch else 1)
        driver.committer.notify_checkpoint_complete(batch, handles, scan_start)
        driver.committer.recover_and_abort(handles)
        assert {path.stem for path in shop.files("*.entries")} == {handles[0].transaction}
    driver.committer.notify_checkpoint_complete(3, [], driver.begin())
    driver.committer.recover_and_abort([])
    assert {path.stem for path in shop.files("*.entries")} == {handles[0].transaction}
    successor = Driver(shop.sink)  # of another query, which knows no decision
    successor.committer.initialize_state([], {})
    assert {path.stem for path in shop.files("*.entries")} == {handles[0].transaction}
    successor.committer.commit([prepare(successor, shop.sink, 9)], successor.begin())
    assert handles[0].transaction not in {path.stem for path in shop.files("*.entries")}
    assert shop.values() == [0, 1, 2, 9]


def test_files_with_entries_that_a_dead_driver_should_have_deleted_are_deleted_after_the_next_batch(
    shop: LakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_MOST_INLINE", 10)
    driver = Driver(shop.sink)
    handles = [prepare(driver, shop.sink, 0)]
    driver.committer.commit(handles, driver.begin())
    handles.append(prepare(driver, shop.sink, 1, batch=1))
    with monkeypatch.context() as patch:
        patch.setattr(LakeStep, "_delete_lists", lambda _: None)
        scan_start = driver.begin()
        driver.committer.commit(handles[1:], scan_start)
    assert {path.stem for path in shop.files("*.entries")} == {handle.transaction for handle in handles}
    driver = Driver(shop.sink)
    driver.committer.initialize_state(handles[1:], scan_start)
    last = prepare(driver, shop.sink, 2, batch=2)
    driver.committer.commit([last], driver.begin())
    assert {path.stem for path in shop.files("*.entries")} == {last.transaction}


def test_files_with_entries_of_several_drivers_are_deleted_after_the_batch_that_follows_their_repair(
    shop: LakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_MOST_INLINE", 10)
    first = Driver(shop.sink)
    scan_start = first.begin()
    lost, kept = prepare(first, shop.sink, 1), prepare(first, shop.sink, 2)
    for file in shop.files(f"{lost.transaction}*"):
        file.unlink()
    first.committer.commit([lost, kept], scan_start)
    second = Driver(shop.sink)
    second.committer.initialize_state([lost, kept], scan_start)
    repaired = prepare(second, shop.sink, 1)
    second.committer.commit([kept, repaired], scan_start)
    assert {path.stem for path in shop.files("*.entries")} == {kept.transaction, repaired.transaction}
    last = prepare(second, shop.sink, 3, batch=1)
    second.committer.commit([last], second.begin())
    assert {path.stem for path in shop.files("*.entries")} == {last.transaction}
    assert shop.values() == [1, 2, 3]
