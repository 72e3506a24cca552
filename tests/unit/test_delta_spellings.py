"""One table under several spellings of its path. They lead to one log, so the sink's record is the same for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.delta_support import Shop
from tests.unit.lake_support import evidence, prepare
from twopc import DeltaSink, FencedError, RefusedStartError
from twopc.attempt import Evidence
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.testing.contract import Case, numbers
from twopc.testing.contract.drivers import QUERY_ID, Driver, Query, all_rows, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


@pytest.fixture(
    params=["file URI", "trailing slash", "file URI with a trailing slash", "symlink", "detour", "relative"]
)
def spelling(request: pytest.FixtureRequest, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(shop.path)
    return {
        "file URI": shop.path.as_uri(),
        "trailing slash": f"{shop.path}/",
        "file URI with a trailing slash": f"{shop.path.as_uri()}/",
        "symlink": str(tmp_path / "link"),
        "detour": f"{shop.path}/../{shop.path.name}",
        "relative": shop.path.name,
    }[str(request.param)]


def sink_at(uri: str, name: str = "orders") -> DeltaSink:
    return DeltaSink(name=name, table_uri=uri, timeout_ms=2_000)


def test_a_query_may_change_the_spelling_of_the_tables_uri(shop: Shop, spelling: str, tmp_path: Path) -> None:
    Query(Case(shop.sink, numbers, shop.values), tmp_path / "query").run(0)
    Query(Case(sink_at(spelling), numbers, shop.values), tmp_path / "query").run(1, 2)
    Query(Case(shop.sink, numbers, shop.values), tmp_path / "query").run(3)
    assert shop.values() == all_rows(0, 1, 2, 3)
    assert {path.name for path in shop.files()} == shop.named_files()


def test_a_second_query_with_the_same_sink_name_is_refused(shop: Shop, spelling: str, tmp_path: Path) -> None:
    Query(Case(shop.sink, numbers, shop.values), tmp_path / "first").run(0)
    commits = shop.commits()
    second = Query(Case(sink_at(spelling), numbers, shop.values), tmp_path / "second", query_id="query-b")
    with pytest.raises(RefusedStartError, match=f"query {QUERY_ID}"):
        second.run(0)
    assert (shop.commits(), shop.values()) == (commits, all_rows(0))


def test_a_second_query_that_takes_over_fences_the_first_one(shop: Shop, spelling: str, tmp_path: Path) -> None:
    first = Query(Case(shop.sink, numbers, shop.values), tmp_path / "first")
    running = first.start()
    first.continue_with(running, 0)
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    second = Query(Case(sink_at(spelling), numbers, shop.values), tmp_path / "second", query_id="query-b")
    second.run(0, settings=ending)
    with pytest.raises(FencedError):
        first.continue_with(running, 1)
    assert shop.values() == sorted(2 * all_rows(0)), "each query's rows should be visible once"


def test_two_queries_with_different_sinks_write_under_two_spellings_of_the_tables_uri(
    shop: Shop, spelling: str
) -> None:
    other = sink_at(spelling, "others")
    mine, theirs = Driver(shop.sink), Driver(other)
    for driver, sink, value in ((mine, shop.sink, 1), (theirs, other, 2), (mine, shop.sink, 3)):
        scan_start = driver.begin()
        handle = prepare(driver, sink, value)
        driver.committer.confirm([handle], 0)
        assert evidence(driver, [handle], scan_start) == [Evidence.COMMITTED]
        driver.committer.recover_and_abort([])
    assert shop.values() == [1, 2, 3]
