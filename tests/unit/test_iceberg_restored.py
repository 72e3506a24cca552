"""Checkpoints and tables that no longer belong together are refused by name, and nothing is written."""

from __future__ import annotations

import contextlib
import datetime as dt
import sqlite3
from typing import TYPE_CHECKING

import pytest

from tests.unit.iceberg_support import TABLE, TAG, Shop
from twopc import ConfigurationError, RefusedStartError
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.testing import crash_points
from twopc.testing.contract import Case, Crash, die, numbers
from twopc.testing.contract.drivers import QUERY_ID, Query, all_rows, close_opened

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


def metadata_of(shop: Shop) -> str:
    return shop.table().metadata_location


def restore(shop: Shop, location: str) -> None:
    """Make the catalog name an older state of the table, as a restored backup of the catalog does."""
    with contextlib.closing(sqlite3.connect(shop.warehouse.directory / "catalog.db")) as db:
        db.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))
        db.commit()


def ending(query_id: str) -> Settings:
    return Settings(overrides=Overrides(end_query_id=query_id))


def test_a_table_that_was_restored_to_before_an_earlier_batch_is_refused_at_the_start(
    shop: Shop, case: Case, tmp_path: Path
) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    older = metadata_of(shop)
    query.run(1, 2)
    restore(shop, older)
    with pytest.raises(RefusedStartError, match=r"sink 'orders': shop.orders is older than this checkpoint"):
        query.run(3)
    assert metadata_of(shop) == older


def test_a_table_that_was_restored_to_before_the_last_batch_gets_it_again(
    shop: Shop, case: Case, tmp_path: Path
) -> None:
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0)
    older = metadata_of(shop)
    query.continue_with(running, 1)
    restore(shop, older)
    query.run(1, 2)
    assert shop.values() == all_rows(0, 1, 2)


def test_a_tag_that_was_made_anew_on_an_older_snapshot_does_not_add_the_last_batch_twice(
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


def test_a_table_that_is_restored_while_a_query_runs_is_named(shop: Shop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path)
    running = query.start()
    query.continue_with(running, 0)
    older = metadata_of(shop)
    query.continue_with(running, 1)
    restore(shop, older)
    with pytest.raises(ConfigurationError, match="was restored to an older state"):
        query.continue_with(running, 2)
    assert metadata_of(shop) == older


def test_a_tag_that_is_deleted_between_two_runs_is_named(shop: Shop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    shop.change(lambda table: table.manage_snapshots().remove_tag(TAG).commit())
    with pytest.raises(ConfigurationError, match="the tag 'twopc-orders' is gone"):
        query.run(1)


def test_a_tag_that_is_deleted_with_all_that_the_sink_wrote_is_refused(shop: Shop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    shop.append(9)

    def forget(table: object) -> None:
        table.manage_snapshots().remove_tag(TAG).commit()  # type: ignore[attr-defined]

    shop.change(forget)
    current = shop.table().metadata.refs["main"].snapshot_id
    own = [one.snapshot_id for one in shop.table().metadata.snapshots if one.snapshot_id != current]
    shop.change(lambda table: table.maintenance.expire_snapshots().by_ids(own).commit())
    before = metadata_of(shop)
    with pytest.raises(RefusedStartError, match="sink 'orders'"):
        query.run(1)
    assert metadata_of(shop) == before


def test_a_table_that_was_created_again_is_refused_at_the_start(shop: Shop, case: Case, tmp_path: Path) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    with shop.warehouse.catalog() as catalog:
        schema = catalog.load_table(TABLE).schema()
        catalog.drop_table(TABLE)
    shop.warehouse.create(TABLE, schema)
    with pytest.raises(RefusedStartError, match="sink 'orders' was bound to"):
        query.run(1)
    assert shop.snapshots() == 0


def test_a_driver_that_decided_and_died_before_a_restore_commits_its_batch(
    shop: Shop, case: Case, tmp_path: Path
) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    crash_points.arm("driver.decided", die)
    with pytest.raises(Crash):
        query.run(1)
    query.run(1, 2)
    assert shop.values() == all_rows(0, 1, 2)


def test_a_query_returns_after_another_one_took_over(shop: Shop, case: Case, tmp_path: Path) -> None:
    """The table has forgotten the first query's newest decision, but not its commit."""
    query = Query(case, tmp_path)
    query.run(0, 1)
    other = Query(case, tmp_path / "other", query_id="query-b")
    crash_points.arm("driver.fenced", die)
    with pytest.raises(Crash):
        other.run(0, settings=ending(QUERY_ID))
    query.run(1, settings=ending("query-b"))
    query.run(1, 2)
    assert shop.values() == all_rows(0, 1, 2)


@pytest.mark.parametrize(("query", "is_refused"), [(QUERY_ID, True), ("another query", False)])
def test_a_batch_that_sparks_own_writer_has_committed_is_not_written_again(
    shop: Shop, case: Case, tmp_path: Path, query: str, *, is_refused: bool
) -> None:
    adopting = Settings(overrides=Overrides(adopt_query_id=QUERY_ID))
    rows = shop.table().schema().as_arrow().empty_table()
    for number in (3, 2):  # in any order: expiry or a rewrite may have changed it
        properties = {"spark.sql.streaming.queryId": query, "spark.sql.streaming.epochId": str(number)}
        shop.change(lambda table, given=properties: table.append(rows, snapshot_properties=given))
    before = metadata_of(shop)
    if is_refused:
        with pytest.raises(
            RefusedStartError, match=r"written already: .* has written batch 3 to the store of sink 'orders'"
        ):
            Query(case, tmp_path).run(3, settings=adopting)
        assert metadata_of(shop) == before
    Query(case, tmp_path).run(4 if is_refused else 3, settings=adopting)
    assert shop.values() == all_rows(4 if is_refused else 3)


def test_a_batch_that_sparks_own_writer_has_committed_between_two_of_this_sink_is_not_written_again(
    shop: Shop, case: Case, tmp_path: Path
) -> None:
    query = Query(case, tmp_path)
    query.run(0)
    rows = shop.table().schema().as_arrow().empty_table()
    properties = {"spark.sql.streaming.queryId": QUERY_ID, "spark.sql.streaming.epochId": "1"}
    shop.change(lambda table: table.append(rows, snapshot_properties=properties))
    with pytest.raises(RefusedStartError, match="written already"):
        query.run(1)
    assert shop.values() == all_rows(0)
