"""A decided batch is in the table once: after lost answers, late requests, other drivers, and any act of users on the table."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.transforms import BucketTransform

from tests.faulty_catalog import lost_answer, lost_request, next_commits
from tests.unit.iceberg_support import SCHEMA, TAG, Shop, evidence, prepare
from twopc import (
    BadRecordError,
    CheckpointExpiredError,
    ConfigurationError,
    FencedError,
    RetriableError,
    UnavailableError,
)
from twopc.attempt import Claim, Evidence
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faulty_catalog import Send

COMMITTED, ABORTED, UNKNOWN = Evidence.COMMITTED, Evidence.ABORTED, Evidence.UNKNOWN


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


# -- one commit a batch ------------------------------------------------------------------------------------------------


def test_a_batch_is_one_snapshot_and_a_start_is_another(shop: Shop) -> None:
    driver = Driver(shop.sink)
    assert shop.snapshots() == 1
    for batch in range(3):
        scan_start = driver.begin()
        handles = [prepare(driver, shop.sink, batch, batch=batch, attempt=batch) for _ in range(2)]
        assert driver.commit(handles, scan_start) == [COMMITTED, COMMITTED]
        driver.committer.recover_and_abort(handles)
        driver.committer.forget(scan_start)
        assert shop.snapshots() == 2 + batch
    Driver(shop.sink)
    assert shop.snapshots() == 5
    assert len(shop.table().metadata.snapshot_log) == 4, "the second start is not in the history of the branch"


def test_the_snapshot_names_the_sink_and_the_batch(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, 1, 2, batch=7)], scan_start)
    table = shop.table()
    current = table.current_snapshot()
    assert current is not None and current.summary is not None
    assert (current.summary["twopc.sink"], current.summary["twopc.batch"]) == ("orders", "7")
    assert (current.summary["added-records"], current.summary["total-records"]) == ("2", "2")
    assert table.metadata.refs[TAG].snapshot_id == current.snapshot_id
    Driver(shop.sink)
    own = [found.summary for found in shop.table().metadata.snapshots if found.summary and found.summary["twopc.sink"]]
    assert [summary["twopc.batch"] for summary in own] == [None, "7", None], "a start is no batch"


def test_two_sinks_may_write_to_one_table(shop: Shop) -> None:
    other = shop.named("others")
    mine, theirs = Driver(shop.sink), Driver(other)
    for driver, sink, value in ((mine, shop.sink, 1), (theirs, other, 2), (mine, shop.sink, 3)):
        scan_start = driver.begin()
        assert driver.commit([prepare(driver, sink, value)], scan_start) == [COMMITTED]
        driver.committer.recover_and_abort([])
    assert shop.values() == [1, 2, 3]


# -- lost answers and late requests ------------------------------------------------------------------------------------


def test_a_commit_whose_answer_is_lost_is_found_in_the_table(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    with next_commits(lost_answer):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]
    assert shop.snapshots() == 2
    assert "another driver" not in caplog.text


def test_a_commit_that_never_arrives_is_repeated(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    with next_commits(lost_request, lost_request):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]
    metadata = shop.warehouse.directory / "shop" / "orders" / "metadata"
    named = {path.name for path in metadata.glob("snap-*")}
    assert len(named) == shop.snapshots(), "the files of the tries that did not arrive are deleted"


def test_a_repeated_commit_stays_whole_if_a_successor_moves_the_tag_at_once(shop: Shop) -> None:
    """The files of the failed tries are deleted, and the tag no longer says which try succeeded."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)

    def succeeded(send: Send) -> Any:
        response = send()
        Driver(shop.sink)
        return response

    with next_commits(lost_request, succeeded):
        driver.committer.commit([handle], scan_start)
    assert shop.values() == [1, 2]
    assert driver.committer.prove([handle], scan_start) == {handle: COMMITTED}


def test_a_commit_that_arrives_after_its_repetition_is_refused(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    late: list[Send] = []

    def held_back(send: Send) -> None:
        late.append(send)
        raise ConnectionError("no answer")

    with next_commits(held_back):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    with pytest.raises(CommitFailedException):
        late[0]()
    assert shop.values() == [1, 2]


def test_a_commit_held_back_past_a_change_of_driver_is_refused(shop: Shop) -> None:
    """The schedule of apache/iceberg#14425: the check, a long pause, and the request."""
    loser = Driver(shop.sink)
    scan_start = loser.begin()
    handle = prepare(loser, shop.sink, 1, 2)

    def overtaken(send: Send) -> Any:
        winner = Driver(shop.sink)
        assert winner.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
        return send()

    with next_commits(overtaken), pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    assert shop.values() == [1, 2]


def test_a_commit_held_back_past_a_change_of_driver_and_a_foreign_commit_is_refused(shop: Shop) -> None:
    """The tag alone would refuse the first; the branch alone would refuse neither after a rebase."""
    loser = Driver(shop.sink)
    scan_start = loser.begin()
    handle = prepare(loser, shop.sink, 1, 2)

    def overtaken(send: Send) -> Any:
        Driver(shop.sink)
        shop.append(9)
        return send()

    with next_commits(overtaken), pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    winner = Driver(shop.sink)
    assert winner.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == [1, 2, 9]


def test_a_commit_is_refused_if_only_the_tag_has_moved(shop: Shop) -> None:
    """A new driver's start leaves the branch as it was."""
    Driver(shop.sink)
    loser = Driver(shop.sink)
    scan_start = loser.begin()
    handle = prepare(loser, shop.sink, 1, 2)

    def overtaken(send: Send) -> Any:
        Driver(shop.sink)
        return send()

    with next_commits(overtaken), pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    assert shop.values() == []


def test_without_any_answer_the_outcome_is_unknown_until_the_table_can_be_read(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    with contextlib.ExitStack() as silence:  # ends it in any case: a REST catalog could not be closed

        def silent(send: Send) -> None:
            send()
            silence.enter_context(shop.warehouse.silent())
            raise ConnectionError("no answer")

        with next_commits(silent):
            assert evidence(driver, [handle], scan_start) == [UNKNOWN]
        assert "sink 'orders', loading table shop.orders: " in driver.committer.blockers()[-1]
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]


def test_a_commit_of_somebody_else_in_between_costs_one_more_try(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)

    def overtaken(send: Send) -> Any:
        shop.append(9)
        return send()

    with next_commits(overtaken):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2, 9]


# -- several drivers ---------------------------------------------------------------------------------------------------


def test_of_two_drivers_that_start_on_a_table_without_snapshots_one_is_fenced(shop: Shop) -> None:
    loser, seen = shop.sink.create_committer(), None
    seen = loser.inspect()

    def overtaken(send: Send) -> Any:
        Driver(shop.sink)
        return send()

    with next_commits(overtaken), pytest.raises(FencedError):
        loser.acquire(Claim("query-a", "loser", "registers"), seen)
    loser.close()


def test_a_start_held_back_past_a_commit_does_not_forget_it(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)

    def overtaken(send: Send) -> Any:
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
        return send()

    with next_commits(overtaken):
        successor = Driver(shop.sink)
    assert successor.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == [1, 2]


def test_a_start_held_back_past_commits_of_others_does_not_set_the_sequence_number_back(shop: Shop) -> None:
    """Rows that are appended with a number below that of an older equality delete would be hidden by it."""
    Driver(shop.sink)

    def overtaken(send: Send) -> Any:
        shop.append(8)
        shop.append(9)
        return send()

    with next_commits(overtaken):
        Driver(shop.sink)
    assert shop.sequence_numbers() == (4, 4)
    assert shop.values() == [8, 9]


def without_main(content: dict[str, Any]) -> None:
    """``CREATE OR REPLACE TABLE`` leaves snapshots and the tag, but no branch."""
    content["refs"].pop("main")
    content["current-snapshot-id"] = -1


def test_of_two_drivers_that_start_on_a_table_without_a_main_branch_one_is_fenced(shop: Shop) -> None:
    """No sequence number protects such a start: only the tag does."""
    Driver(shop.sink)
    shop.edit(without_main)

    def overtaken(send: Send) -> Any:
        Driver(shop.sink)
        return send()

    with next_commits(overtaken), pytest.raises(FencedError):
        Driver(shop.sink)


@pytest.mark.parametrize("branch", ["audit", "main"])
def test_a_start_does_not_set_back_the_sequence_number_of_a_table_without_a_main_branch(
    branch: str, shop: Shop
) -> None:
    Driver(shop.sink)
    snapshot = shop.table().metadata.refs[TAG].snapshot_id
    shop.change(lambda table: table.manage_snapshots().create_branch(snapshot, "audit").commit())
    shop.edit(without_main)
    rows = shop.table().schema().as_arrow().empty_table().from_pylist([{"value": 9}], shop.table().schema().as_arrow())

    def overtaken(send: Send) -> Any:
        shop.change(lambda table: table.append(rows, branch=branch))
        return send()

    with next_commits(overtaken):
        Driver(shop.sink)
    assert shop.sequence_numbers() == (3, 3)


def test_versions_of_two_drivers_never_clash(shop: Shop) -> None:
    first = Driver(shop.sink)
    older = [first.begin()["base"] for _ in range(3)]
    second = Driver(shop.sink)
    newer = [second.begin()["base"] for _ in range(3)]
    assert sorted({*older, *newer}) == older + newer
    with pytest.raises(FencedError):
        first.begin()


# -- acts of users on the table ----------------------------------------------------------------------------------------


def test_the_evidence_survives_the_expiry_of_snapshots(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.commit([handle], scan_start)
    shop.append(9)
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    shop.change(lambda table: table.maintenance.expire_snapshots().older_than(later).commit())
    assert shop.snapshots() == 2
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == [1, 2, 9]


def test_the_tag_outlives_the_retention_of_references(shop: Shop) -> None:
    Driver(shop.sink)
    assert shop.table().metadata.refs[TAG].max_ref_age_ms == 2**63 - 1


def test_the_retention_of_the_branch_is_kept(shop: Shop) -> None:
    driver = Driver(shop.sink)

    def retain(table: Any) -> None:
        current = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(current, "main", 5_000, 6_000, 7).commit()

    shop.change(retain)
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, 1)], scan_start)
    main = shop.table().metadata.refs["main"]
    assert main.snapshot_ref_type is SnapshotRefType.BRANCH
    assert (main.max_ref_age_ms, main.max_snapshot_age_ms, main.min_snapshots_to_keep) == (5_000, 6_000, 7)


def test_a_rollback_of_the_branch_is_respected(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    older = shop.table().metadata.refs["main"].snapshot_id
    handle = prepare(driver, shop.sink, 1, 2)
    driver.commit([handle], scan_start)
    shop.change(lambda table: table.manage_snapshots().rollback_to_snapshot(older).commit())
    assert shop.values() == []
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == []
    scan_start = restarted.begin()
    restarted.commit([prepare(restarted, shop.sink, 3, batch=1)], scan_start)
    assert shop.values() == [3]


def test_a_deleted_tag_is_named_before_the_decision_and_after_it(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).commit())
    with pytest.raises(
        ConfigurationError, match=r"the tag 'twopc-orders' is gone.* CREATE TAG `twopc-orders` AS OF VERSION"
    ):
        driver.committer.confirm([handle], 0)
    with pytest.raises(ConfigurationError, match="is gone"):
        Driver(shop.sink)
    assert evidence(driver, [handle], scan_start) == [UNKNOWN]
    assert "the tag 'twopc-orders' is gone" in driver.committer.blockers()[0]
    assert shop.values() == []


def test_a_tag_that_was_moved_is_named(shop: Shop) -> None:
    driver = Driver(shop.sink)
    first = shop.table().metadata.refs[TAG].snapshot_id
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, 1)], scan_start)

    def move(to: int) -> None:
        shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).create_tag(to, TAG).commit())

    move(first)
    with pytest.raises(ConfigurationError, match=r"somebody has moved the tag back.*REPLACE TAG"):
        Driver(shop.sink)
    shop.append(9)
    foreign = shop.table().current_snapshot()
    assert foreign is not None
    move(foreign.snapshot_id)
    with pytest.raises(ConfigurationError, match=r"not of this sink: somebody has moved it.*REPLACE TAG"):
        Driver(shop.sink)


def test_a_table_that_was_created_again_is_named(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    with shop.warehouse.catalog() as catalog:
        catalog.drop_table("shop.orders")
    shop.warehouse.create("shop.orders", SCHEMA)
    with pytest.raises(ConfigurationError, match="dropped and created again"):
        driver.committer.confirm([handle], 0)
    assert evidence(driver, [handle], scan_start) == [UNKNOWN]
    assert shop.values() == []


# -- files that are missing --------------------------------------------------------------------------------------------


def test_files_that_are_gone_before_the_decision_void_the_attempt(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1)
    [file] = shop.files("*.parquet")
    file.unlink()
    with pytest.raises(RetriableError, match="no longer whole"):
        driver.committer.confirm([handle], 0)


def test_a_file_with_another_size_voids_the_attempt(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1)
    [file] = shop.files("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RetriableError, match="no longer whole"):
        driver.committer.confirm([handle], 0)


def test_files_that_are_gone_after_the_decision_are_a_proven_loss_and_the_others_are_committed(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    lost = prepare(driver, shop.sink, 1)
    [file] = shop.files("*.parquet")
    kept = prepare(driver, shop.sink, 2)
    driver.committer.confirm([lost, kept], 0)
    content = file.read_bytes()
    file.unlink()
    assert evidence(driver, [lost, kept], scan_start) == [ABORTED, COMMITTED]
    file.write_bytes(content)
    assert evidence(driver, [lost, kept], scan_start) == [ABORTED, COMMITTED], "the loss is final"
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([lost, kept], scan_start) == {lost: ABORTED, kept: COMMITTED}
    assert shop.values() == [2]


def test_a_repair_adds_only_what_was_lost(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    lost, kept = prepare(driver, shop.sink, 1), prepare(driver, shop.sink, 2)
    for file in shop.files(f"{lost.transaction}*"):
        file.unlink()
    assert evidence(driver, [lost, kept], scan_start) == [ABORTED, COMMITTED]
    driver.begin()
    repaired = prepare(driver, shop.sink, 1, attempt=2)
    # A repair has the decision's scan_start.
    assert evidence(driver, [kept, repaired], scan_start) == [COMMITTED, COMMITTED]
    assert evidence(driver, [kept, repaired], scan_start) == [COMMITTED, COMMITTED]
    assert shop.values() == [1, 2]


def test_a_transaction_that_was_not_in_the_commit_does_not_count_as_committed(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    first, second = prepare(driver, shop.sink, 1), prepare(driver, shop.sink, 2)
    assert evidence(driver, [first], scan_start) == [COMMITTED]
    assert evidence(driver, [first, second], scan_start) == [UNKNOWN, UNKNOWN]


# -- a table that changes ----------------------------------------------------------------------------------------------


def test_a_table_that_is_altered_before_the_decision_voids_the_attempt(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1)
    shop.change(lambda table: table.update_spec().add_field("value", BucketTransform(4), "bucket").commit())
    with pytest.raises(RetriableError, match="was altered"):
        driver.committer.confirm([handle], 0)


def test_a_table_that_is_altered_after_the_decision_takes_the_files_as_they_are(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.committer.confirm([handle], 0)

    def alter(table: Any) -> None:
        table.update_spec().add_field("value", BucketTransform(4), "bucket").commit()
        table.update_schema().rename_column("value", "amount").commit()

    shop.change(alter)
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert sorted(shop.warehouse.column("shop.orders", "amount")) == [1, 2]
    [task] = shop.table().scan().plan_files()
    assert task.file.spec_id == 0


def test_files_whose_partitioning_was_removed_from_the_table_are_a_proven_loss(shop: Shop) -> None:
    """``expire_snapshots`` with ``clean_expired_metadata`` removes one that no snapshot uses; a repair helps."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.committer.confirm([handle], 0)
    shop.change(lambda table: table.update_spec().add_field("value", BucketTransform(4), "bucket").commit())
    shop.edit(lambda content: content["partition-specs"].pop(0))
    assert evidence(driver, [handle], scan_start) == [ABORTED]
    driver.begin()
    repaired = prepare(driver, shop.sink, 1, 2, attempt=2)
    assert evidence(driver, [repaired], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]


def test_a_batch_that_took_too_long_is_not_decided(shop: Shop) -> None:
    sink = shop.named("orders", orphan_age_ms=3_000)
    driver = Driver(sink)
    driver.begin()
    handle = prepare(driver, sink, 1)
    driver.committer.confirm([handle], 1_000)
    with pytest.raises(CheckpointExpiredError, match="orphan_age_ms=3000"):
        driver.committer.confirm([handle], 1_001)


def test_a_task_of_an_earlier_driver_does_not_begin(shop: Shop) -> None:
    former = Driver(shop.sink)
    Driver(shop.sink)
    with pytest.raises(RetriableError, match="a newer driver has replaced"):
        prepare(former, shop.sink, 1)
    assert shop.files() == []


def test_a_catalog_that_does_not_answer_ends_the_attempt(shop: Shop) -> None:
    driver = Driver(shop.sink)
    with (
        shop.warehouse.silent(),
        pytest.raises(UnavailableError, match="sink 'orders', beginning an attempt: loading table"),
    ):
        driver.begin()


def test_a_row_without_a_required_value_is_a_bad_row(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    with pytest.raises(BadRecordError, match="column 'value' is null, but the table requires a value"):
        prepare(driver, shop.sink, 1, None)  # type: ignore[arg-type]
