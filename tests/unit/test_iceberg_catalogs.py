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
#: pyiceberg's own configuration, which it has read when it was imported.
OUTSIDE = "twopc.sinks.iceberg.private._ENV_CONFIG.config"
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


def test_two_catalogs_in_the_environment_have_different_directories(
    shop: Shop, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query passes nothing but the catalog's name, and the environments of their machines differ."""

    def query(properties: dict[str, str], table: str, directory: str, query_id: str = QUERY_ID) -> Query:
        name = properties["name"]
        monkeypatch.setattr(OUTSIDE, {"catalog": {name: without_name(properties)}})
        sink = IcebergSink(name="orders", catalog={"name": name}, table=table, timeout_ms=2_000)
        return Query(Case(sink, numbers, shop.values), tmp_path / directory, query_id=query_id)

    query(shop.warehouse.properties, TABLE, "first").run(0, 1)
    second = Second(shop, tmp_path, kind)
    query(shop.warehouse.properties, TABLE, "first").run(2, 3)
    query(second.properties, second.name, "second", OTHER).run(0, 1, settings=ENDING)
    query(shop.warehouse.properties, TABLE, "first").run(4)
    assert shop.values() == all_rows(*range(5))
    assert second.values() == sorted([*all_rows(0, 1), *all_rows(0, 1)])


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


POSTGRES = {"type": "sql", "name": "prod", "uri": "postgresql://me:old@db/catalog?timeout=1", "token": "a"}
REST = {"type": "rest", "uri": "https://me:old@catalog/api", "warehouse": "w", "credential": "id:old"}
OF_ODD_PASSWORD = {"type": "sql", "uri": "postgresql+psycopg://me:o/l?d#@db/catalog"}


@pytest.mark.parametrize(
    ("catalog", "same"),
    [
        (POSTGRES, {"uri": "postgresql://me:new@db/catalog?timeout=2", "token": "b"}),
        (POSTGRES, {"uri": "postgresql://db/catalog?user=me&password=new&sslmode=require&sslcert=c.pem"}),
        (POSTGRES, {"uri": "postgresql://me:old@db/catalog?options=-c%20statement_timeout%3D60000"}),
        (OF_ODD_PASSWORD, {"uri": "postgresql+psycopg://me:n?e/w#@db/catalog"}),
        (OF_ODD_PASSWORD, {"uri": "postgresql+psycopg://db/catalog"}),
        (
            {"uri": "postgresql:///catalog?host=a&port=1"},
            {"uri": "postgresql:///catalog?connect_timeout=1&port=1&host=a"},
        ),
        (REST, {"uri": "https://catalog/api", "credential": "id:new", "header.authorization": "new"}),
        ({"type": "glue"}, {"glue.access-key-id": "b", "client.session-token": "b", "client.role-arn": "b"}),
    ],
    ids=str,
)
def test_only_properties_that_distinguish_catalogs_determine_the_directory(
    catalog: dict[str, str], same: dict[str, str]
) -> None:
    """A password that changes must not hide the files of failed attempts from the sweep."""
    assert entrance(catalog, TABLE) == entrance({**catalog, **same}, TABLE)
    assert entrance(catalog, TABLE) != entrance(catalog, "shop.b")


@pytest.mark.parametrize(
    ("catalog", "others"),
    [
        (POSTGRES, [{"uri": "postgresql://me:old@db/second"}, {"name": "test"}, {"warehouse": "w"}]),
        (
            {"uri": "postgresql:///catalog"},
            [
                {"uri": f"postgresql:///catalog?{query}"}
                for query in (
                    "host=a",
                    "host=b",
                    "host=a&port=1",
                    "service=a",
                    "options=-csearch_path%3Da",
                    "options=-c%20statement_timeout%3D1%20--search-path%3Da%5C%20b",
                    "options=-c%20SEARCH_PATH%3Da%5C%20c",
                )
            ],
        ),
        (OF_ODD_PASSWORD, [{"uri": "postgresql+psycopg://me:o/l?d#@test/catalog"}]),
        ({"uri": "sqlite:////data/a#1"}, [{"uri": "sqlite:////data/a#2"}]),
        (REST, [{"uri": "https://test/api"}, {"prefix": "p"}, {"warehouse": "v"}, {"header.Polaris-Realm": "test"}]),
        ({"type": "dynamodb"}, [{"table-name": "a"}, {"table-name": "b"}, {"dynamodb.profile-name": "b"}]),
        ({"type": "glue"}, [{"glue.profile-name": "a"}, {"client.profile-name": "a"}, {"glue.endpoint": "a"}]),
        ({"type": "bigquery"}, [{"gcp.bigquery.project-id": "a"}, {"gcp.bigquery.location": "a"}]),
    ],
    ids=str,
)
def test_catalogs_that_properties_distinguish_have_different_directories(
    catalog: dict[str, str], others: list[dict[str, str]]
) -> None:
    found = [entrance(one, TABLE) for one in (catalog, *({**catalog, **other} for other in others))]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("catalog", "known"),
    [(POSTGRES, "48d37931"), (REST, "3d8c3c24"), ({"type": "glue", "glue.id": "1"}, "39c0caac")],
)
def test_the_directory_of_a_catalog_stays_the_same_in_later_versions(catalog: dict[str, str], known: str) -> None:
    """Otherwise, an upgrade would hide the files of failed attempts from the sweep."""
    assert entrance(catalog, TABLE) == known
