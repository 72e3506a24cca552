"""One table in two catalogs, or under two names. Each of them has its own newest metadata, and its own copy of the sink's record.

Iceberg itself does not protect a table that is registered twice: maintenance through one catalog deletes files that only the
other one names. But the sink must not do so.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from tests.unit.iceberg_support import TABLE, Shop
from tests.unit.lake_support import evidence, prepare
from tests.warehouse import without_name
from twopc import ConfigurationError, IcebergSink, RefusedStartError
from twopc.attempt import Evidence
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.sinks.iceberg.layout import entrance
from twopc.testing import crash_points
from twopc.testing.contract import Case, Crash, die, numbers
from twopc.testing.contract.drivers import QUERY_ID, Driver, Query, all_rows, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHER = "query-b"
ENDING = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


class Second:
    """A second way to reach the shop's table. It begins with the table's newest metadata."""

    def __init__(self, shop: Shop, tmp_path: Path, kind: str) -> None:
        changes = {
            "another catalog": {"uri": f"sqlite:///{tmp_path}/second.db"},
            "another catalog in the same database": {"name": "second"},
            "another name": {},
        }[kind]
        self.properties = {**shop.warehouse.properties, **changes}
        self.name = TABLE if changes else "shop.renamed"
        with self._catalog() as catalog:
            catalog.create_namespace_if_not_exists("shop")
            catalog.register_table(self.name, shop.table().metadata_location)

    def sink(self, name: str = "orders") -> IcebergSink:
        return IcebergSink(name=name, catalog=self.properties, table=self.name, timeout_ms=2_000)

    def values(self) -> list[Any]:
        with self._catalog() as catalog:
            return sorted(catalog.load_table(self.name).scan().to_arrow().column("value").to_pylist())

    def commits(self) -> int:
        with self._catalog() as catalog:
            return len(catalog.load_table(self.name).metadata.snapshots)

    def case(self) -> Case:
        return Case(self.sink(), numbers, self.values)

    def _catalog(self) -> contextlib.closing[Any]:
        return contextlib.closing(load_catalog(self.properties["name"], **without_name(self.properties)))


@pytest.fixture(params=["another catalog", "another catalog in the same database", "another name"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.parametrize("was_used", [True, False])
def test_two_queries_with_the_same_sink_name_keep_their_rows(
    *, was_used: bool, shop: Shop, kind: str, tmp_path: Path
) -> None:
    """The user said that the first query has ended, but it still runs through the other catalog."""
    first = Query(Case(shop.sink, numbers, shop.values), tmp_path / "first")
    known = (0, 1) if was_used else ()
    first.run(*known)
    second = Second(shop, tmp_path, kind)
    running = first.start()
    first.continue_with(running, *range(len(known), 4))
    crash_points.arm("task.prepared", die)
    with contextlib.suppress(Crash):
        first.run(4)
    crash_points.disarm()
    other = Query(second.case(), tmp_path / "second", query_id=OTHER)
    other.run(0, 1, settings=ENDING if was_used else None)
    first.run(4, 5)
    other.run(2)
    first.run(6)
    assert shop.values() == all_rows(*range(7))
    assert second.values() == sorted([*all_rows(*known), *all_rows(0, 1, 2)])


def test_a_second_query_is_refused_until_the_user_says_that_the_first_one_has_ended(
    shop: Shop, kind: str, tmp_path: Path
) -> None:
    Query(Case(shop.sink, numbers, shop.values), tmp_path / "first").run(0)
    second = Second(shop, tmp_path, kind)
    before = second.commits()
    with pytest.raises(RefusedStartError, match=f"query {QUERY_ID}"):
        Query(second.case(), tmp_path / "second", query_id=OTHER).run(0)
    assert (second.commits(), second.values()) == (before, all_rows(0))


def test_a_query_that_changes_to_a_catalog_with_an_older_state_is_refused(
    shop: Shop, kind: str, tmp_path: Path
) -> None:
    query = Query(Case(shop.sink, numbers, shop.values), tmp_path / "query")
    query.run(0)
    second = Second(shop, tmp_path, kind)
    query.run(1, 2)
    before = second.commits()
    moved = Query(second.case(), tmp_path / "query")
    with pytest.raises(RefusedStartError, match="is older than this checkpoint"):
        moved.run(3)
    assert (second.commits(), second.values()) == (before, all_rows(0))
    query.run(3)
    assert shop.values() == all_rows(0, 1, 2, 3)


def test_a_query_may_change_to_a_catalog_with_the_newest_state(shop: Shop, kind: str, tmp_path: Path) -> None:
    """The decided batch that is not yet committed is in the directory of the old catalog."""
    query = Query(Case(shop.sink, numbers, shop.values), tmp_path / "query")
    query.run(0)
    crash_points.arm("driver.decided", die)
    with pytest.raises(Crash):
        query.run(1)
    second = Second(shop, tmp_path, kind)
    moved = Query(second.case(), tmp_path / "query")
    moved.run(1, 2)
    moved.run(3)
    assert second.values() == all_rows(0, 1, 2, 3)


def test_a_renamed_table_keeps_its_rows_under_the_new_name(shop: Shop, tmp_path: Path) -> None:
    query = Query(Case(shop.sink, numbers, shop.values), tmp_path / "query")
    query.run(0)
    with shop.warehouse.catalog() as catalog:
        catalog.rename_table(TABLE, "shop.renamed")
    with pytest.raises(ConfigurationError, match=r"loading table shop\.orders: .*check its name"):
        query.run(1)
    renamed = IcebergSink(name="orders", catalog=shop.warehouse.properties, table="shop.renamed")

    def values() -> list[int]:
        return sorted(shop.warehouse.column("shop.renamed", "value"))

    Query(Case(renamed, numbers, values), tmp_path / "query").run(1, 2)
    assert values() == all_rows(0, 1, 2)


def test_a_table_renamed_after_the_decision_blocks_with_an_error_that_identifies_it(shop: Shop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    with shop.warehouse.catalog() as catalog:
        catalog.rename_table(TABLE, "shop.renamed")
    assert evidence(driver, [handle], scan_start) == [Evidence.UNKNOWN]
    assert "shop.orders" in driver.committer.blockers()[0]
    with shop.warehouse.catalog() as catalog:
        catalog.rename_table("shop.renamed", TABLE)
    assert evidence(driver, [handle], scan_start) == [Evidence.COMMITTED]
    assert shop.values() == [1]


def test_only_properties_that_distinguish_catalogs_determine_the_directory() -> None:
    """A password that changes must not hide the files of failed attempts from the sweep."""
    given = {"type": "sql", "name": "prod", "uri": "postgresql://me:old@db/catalog?timeout=1", "token": "a"}
    same = {**given, "uri": "postgresql://me:new@db/catalog?timeout=2", "token": "b"}
    assert entrance(given, TABLE) == entrance(same, TABLE)
    others = [{**given, "uri": "postgresql://me:old@db/second"}, {**given, "name": "test"}, {**given, "warehouse": "w"}]
    assert len({entrance(given, TABLE), entrance(given, "shop.b"), *(entrance(one, TABLE) for one in others)}) == 5
