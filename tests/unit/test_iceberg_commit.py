"""A decided batch is in an Iceberg table once: the cases that need its tag, its branches, or its snapshots."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemovePartitionSpecsUpdate, RemoveSchemasUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from tests.faulty_catalog import next_commits
from tests.unit.iceberg_support import TAG, Shop
from tests.unit.lake_support import evidence, lost_request, prepare
from twopc import (
    BadRecordError,
    CheckpointExpiredError,
    ConfigurationError,
    FencedError,
    RetriableError,
    UnavailableError,
)
from twopc.attempt import Evidence
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faulty_catalog import Send

COMMITTED, ABORTED, UNKNOWN = Evidence.COMMITTED, Evidence.ABORTED, Evidence.UNKNOWN


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


# -- one commit a batch ------------------------------------------------------------------------------------------------


def test_a_batch_adds_one_snapshot_and_a_start_adds_another(shop: Shop) -> None:
    driver = Driver(shop.sink)
    assert shop.commits() == 1
    for batch in range(3):
        scan_start = driver.begin()
        handles = [prepare(driver, shop.sink, batch, batch=batch, attempt=batch) for _ in range(2)]
        assert driver.commit(handles, scan_start) == [COMMITTED, COMMITTED]
        driver.committer.recover_and_abort(handles)
        driver.committer.forget(scan_start)
        assert shop.commits() == 2 + batch
    Driver(shop.sink)
    assert shop.commits() == 5
    assert len(shop.table().metadata.snapshot_log) == 5, "each commit should be in the branch's history"


def test_the_snapshot_mentions_the_sink_and_the_batch(shop: Shop) -> None:
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
    assert [summary["twopc.batch"] for summary in own] == [None, "7", None], "a start should not record a batch"


# -- lost responses and late requests ------------------------------------------------------------------------------------


def test_the_files_of_attempts_that_did_not_reach_the_catalog_are_deleted(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    with next_commits(lost_request, lost_request):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]
    metadata = shop.warehouse.directory / "shop" / "orders" / "metadata"
    named = {path.name for path in metadata.glob("snap-*")}
    assert len(named) == shop.commits(), "the files of attempts that did not reach the catalog should be deleted"


def test_a_repeated_commit_keeps_its_files_if_a_successor_moves_the_tag_at_once(shop: Shop) -> None:
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


def test_a_commit_is_refused_even_if_only_the_tag_has_moved(shop: Shop) -> None:
    """The owner rolls the branch back to where it was before a new driver's start."""
    Driver(shop.sink)
    loser = Driver(shop.sink)
    scan_start = loser.begin()
    handle = prepare(loser, shop.sink, 1, 2)

    def overtaken(send: Send) -> Any:
        Driver(shop.sink)
        shop.roll_back()
        return send()

    with next_commits(overtaken), pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    assert shop.values() == []


# -- several drivers ---------------------------------------------------------------------------------------------------


def test_a_start_that_arrives_after_a_commit_does_not_forget_the_commit(shop: Shop) -> None:
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


@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_a_start_that_arrives_after_commits_of_others_does_not_lower_the_sequence_number(
    shop: Shop, *, is_rolled_back: bool
) -> None:
    """Rows that are appended with a number below that of an older equality delete would be hidden by it.

    After a rollback, the branch is where the start has found it.
    """
    Driver(shop.sink)
    found = shop.table().metadata.refs[TAG].snapshot_id

    def overtaken(send: Send) -> Any:
        shop.append(8)
        shop.append(9)
        if is_rolled_back:
            shop.change(lambda table: table.manage_snapshots().rollback_to_snapshot(found).commit())
        return send()

    with next_commits(overtaken):
        Driver(shop.sink)
    assert shop.sequence_numbers() == (4, 4)
    assert shop.values() == ([] if is_rolled_back else [8, 9])


def test_a_start_does_not_fail_the_commit_of_another_writer(shop: Shop) -> None:
    """A catalog answers "try again" only if ``main`` has moved.

    If only the table's sequence number was raised, other writers fail (apache/iceberg#15001).
    """
    shop.append(8)
    rows = shop.table().schema().as_arrow().empty_table().from_pylist([{"value": 9}], shop.table().schema().as_arrow())

    def begun_before_the_start(table: Any) -> None:
        Driver(shop.sink)
        table.append(rows)

    shop.change(begun_before_the_start)
    assert shop.values() == [8, 9]


def without_main(content: dict[str, Any]) -> None:
    """``CREATE OR REPLACE TABLE`` leaves snapshots and the tag, but no branch."""
    content["refs"].pop("main")
    content["current-snapshot-id"] = -1


def test_one_of_two_drivers_that_start_on_a_table_without_a_main_branch_is_fenced(shop: Shop) -> None:
    """No sequence number protects such a start: only the tag does."""
    Driver(shop.sink)
    shop.edit(without_main)

    def overtaken(send: Send) -> Any:
        Driver(shop.sink)
        shop.edit(without_main)
        return send()

    with next_commits(overtaken), pytest.raises(FencedError):
        Driver(shop.sink)


@pytest.mark.parametrize("branch", ["audit", "main"])
def test_a_start_does_not_lower_the_sequence_number_of_a_table_without_a_main_branch(branch: str, shop: Shop) -> None:
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


# -- changes that users make to the table ------------------------------------------------------------------------------


def test_the_evidence_survives_the_expiry_of_snapshots(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.commit([handle], scan_start)
    shop.append(9)
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    shop.change(lambda table: table.maintenance.expire_snapshots().older_than(later).commit())
    assert shop.commits() == 2
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == [1, 2, 9]


def test_the_tag_outlives_the_retention_of_references(shop: Shop) -> None:
    Driver(shop.sink)
    assert shop.table().metadata.refs[TAG].max_ref_age_ms == 2**63 - 1


def test_the_branchs_retention_settings_are_preserved(shop: Shop) -> None:
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


def test_a_deleted_tag_is_reported_before_the_decision_and_after_it(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).commit())
    with pytest.raises(
        ConfigurationError, match=r"the tag 'twopc-orders' is missing.* CREATE TAG `twopc-orders` AS OF VERSION"
    ):
        driver.committer.confirm([handle], 0)
    with pytest.raises(ConfigurationError, match="is missing"):
        Driver(shop.sink)
    assert evidence(driver, [handle], scan_start) == [UNKNOWN]
    assert "the tag 'twopc-orders' is missing" in driver.committer.blockers()[0]
    assert shop.values() == []


def test_a_moved_tag_is_reported(shop: Shop) -> None:
    driver = Driver(shop.sink)
    first = shop.table().metadata.refs[TAG].snapshot_id
    scan_start = driver.begin()
    driver.commit([prepare(driver, shop.sink, 1)], scan_start)

    def move(to: int) -> None:
        shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).create_tag(to, TAG).commit())

    move(first)
    with pytest.raises(ConfigurationError, match=r"The tag was moved back.*REPLACE TAG"):
        Driver(shop.sink)
    shop.append(9)
    foreign = shop.table().current_snapshot()
    assert foreign is not None
    move(foreign.snapshot_id)
    with pytest.raises(ConfigurationError, match=r"this sink did not write. The tag was moved.*REPLACE TAG"):
        Driver(shop.sink)


# -- a table that changes ----------------------------------------------------------------------------------------------


def test_files_are_added_unchanged_to_a_table_altered_after_the_decision(shop: Shop) -> None:
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


def test_files_whose_partition_spec_was_removed_from_the_table_are_proven_lost(shop: Shop) -> None:
    """``expire_snapshots`` with ``clean_expired_metadata`` removes a partition spec that no snapshot uses.

    A repair writes the rows again.
    """
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


def partition(shop: Shop, transform: Any) -> None:
    shop.change(lambda table: table.update_spec().add_field("value", transform, "part").commit())


def add_column(shop: Shop, name: str) -> None:
    shop.change(lambda table: table.update_schema().add_column(name, LongType()).commit())


def remove_spec(shop: Shop) -> None:
    """The owner drops the partition field, and ``clean_expired_metadata`` removes the partition spec."""
    shop.change(lambda table: table.update_spec().remove_field("part").commit())
    removal = RemovePartitionSpecsUpdate.model_validate({"spec-ids": [1]})
    shop.change(lambda table: table.catalog.commit_table(table, (), (removal,)))


def reuse_spec(shop: Shop) -> None:
    remove_spec(shop)
    partition(shop, IdentityTransform())
    assert shop.table().spec().spec_id == 1


def reuse_schema(shop: Shop) -> None:
    """The same for a column."""
    shop.change(lambda table: table.update_schema().delete_column("more").commit())
    removal = RemoveSchemasUpdate.model_validate({"schema-ids": [1]})
    shop.change(lambda table: table.catalog.commit_table(table, (), (removal,)))
    add_column(shop, "other")
    assert shop.table().schema().schema_id == 1


#: What the owner does before the batch, and what happens after the batch's decision.
SPEC_REMOVED = (lambda shop: partition(shop, BucketTransform(4)), remove_spec)
SPEC_REUSED = (lambda shop: partition(shop, BucketTransform(4)), reuse_spec)
SCHEMA_REUSED = (lambda shop: add_column(shop, "more"), reuse_schema)


@pytest.mark.parametrize(
    ("before", "after"),
    [SPEC_REMOVED, SPEC_REUSED, SCHEMA_REUSED],
    ids=["a removed partitioning", "a reused id of a partitioning", "a reused id of a schema"],
)
@pytest.mark.parametrize("within", [True, False], ids=["within the commit", "before the commit"])
def test_files_are_lost_if_the_ids_of_their_definition_no_longer_mean_it(
    shop: Shop, before: Callable[[Shop], None], after: Callable[[Shop], None], *, within: bool
) -> None:
    """Iceberg gives a removed id to the next definition. Readers would apply that definition to the files, and skip rows."""
    before(shop)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.committer.confirm([handle], 0)

    def overtaken(send: Send) -> Any:
        after(shop)
        return send()

    if within:
        with next_commits(overtaken):
            assert evidence(driver, [handle], scan_start) == [ABORTED]
    else:
        after(shop)
        assert evidence(driver, [handle], scan_start) == [ABORTED]
    assert shop.values() == []
    driver.begin()
    repaired = prepare(driver, shop.sink, 1, 2, attempt=2)
    assert evidence(driver, [repaired], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]
    for value in (1, 2):
        assert shop.table().scan(f"value = {value}").to_arrow().num_rows == 1


@pytest.mark.parametrize(("before", "after"), [SPEC_REUSED, SCHEMA_REUSED], ids=["of a partitioning", "of a schema"])
def test_an_attempt_is_void_if_the_table_has_reused_an_id(
    shop: Shop, before: Callable[[Shop], None], after: Callable[[Shop], None]
) -> None:
    before(shop)
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    after(shop)
    with pytest.raises(RetriableError, match="was altered while this batch was being written"):
        driver.committer.confirm([handle], 0)


def test_a_handle_without_a_fingerprint_is_still_committed(shop: Shop) -> None:
    """An earlier version of the sink has stored such handles."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = dataclasses.replace(prepare(driver, shop.sink, 1, 2), fingerprint="")
    encoded = shop.sink.encode_handle(handle)
    del encoded["fingerprint"]
    assert shop.sink.decode_handle(encoded) == handle
    driver.committer.confirm([handle], 0)
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda shop: partition(shop, BucketTransform(4)),
        lambda shop: add_column(shop, "more"),
        lambda shop: shop.change(lambda table: table.update_schema().rename_column("note", "text").commit()),
    ],
    ids=["partition field", "column", "name"],
)
def test_a_harmless_change_within_a_commit_costs_one_more_attempt(shop: Shop, change: Callable[[Shop], None]) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.committer.confirm([handle], 0)
    refused = []

    def overtaken(send: Send) -> Any:
        change(shop)
        try:
            return send()
        except Shop.refused as error:
            refused.append(error)
            raise

    with next_commits(overtaken, lambda send: send()):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert len(refused) == 1
    assert shop.values() == [1, 2]
    [task] = shop.table().scan().plan_files()
    assert task.file.spec_id == 0


def test_a_batch_that_took_too_long_is_not_decided(shop: Shop) -> None:
    sink = shop.named("orders", orphan_age_ms=3_000)
    driver = Driver(sink)
    driver.begin()
    handle = prepare(driver, sink, 1)
    driver.committer.confirm([handle], 1_000)
    with pytest.raises(CheckpointExpiredError, match="orphan_age_ms=3000"):
        driver.committer.confirm([handle], 1_001)


def test_a_catalog_that_does_not_respond_ends_the_attempt(shop: Shop) -> None:
    driver = Driver(shop.sink)
    with (
        shop.warehouse.silent(),
        pytest.raises(UnavailableError, match="sink 'orders', beginning an attempt: loading table"),
    ):
        driver.begin()


def test_a_row_without_a_required_value_counts_as_a_bad_row(shop: Shop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    with pytest.raises(BadRecordError, match="column 'value' is null, but the table requires a value"):
        prepare(driver, shop.sink, 1, None)  # type: ignore[arg-type]
