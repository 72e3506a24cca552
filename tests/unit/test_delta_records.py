"""The places of the sinks' records: no sink's records are in another sink's directory."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import pytest

from tests.unit.delta_support import Shop
from tests.unit.lake_support import prepare
from twopc.attempt import Evidence
from twopc.errors import ConfigurationError
from twopc.sinks.delta.record import record_file
from twopc.sinks.delta.store import Store
from twopc.sinks.sink_names import is_sink_name
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


@pytest.fixture
def _ignoring_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the sink's own files, the store is like a file system that ignores case. The table's log keeps its case."""
    for name in ("read", "write", "delete", "listed"):
        real = getattr(Store, name)

        def folded(store: Store, path: str, *more: object, real: object = real) -> object:
            assert callable(real)
            return real(store, path.lower() if path.startswith("_twopc/") else path, *more)

        monkeypatch.setattr(Store, name, folded)


@pytest.mark.usefixtures("_ignoring_case")
def test_names_that_differ_only_in_case_are_two_sinks_even_if_the_store_ignores_case(shop: Shop) -> None:
    sinks = [shop.named(name) for name in ("Orders", "orders")]
    other, driver = (Driver(sink) for sink in sinks)
    for batch in range(3):
        handle = prepare(driver, sinks[1], batch, batch=batch, attempt=batch)
        assert driver.commit([handle], driver.begin()) == [Evidence.COMMITTED]
    Driver(sinks[1])  # a start deletes every record in the directory with a smaller counter than the sink's own
    handle = prepare(other, sinks[0], 3)
    assert other.commit([handle], other.begin()) == [Evidence.COMMITTED]
    assert shop.values() == [0, 1, 2, 3]


def test_no_name_leads_to_the_directory_of_another_name() -> None:
    found = [posixpath.dirname(record_file(name, 1)).lower() for name in ("orders", "Orders", "ORDERS", "oRders")]
    assert found[0] == "_twopc/orders"
    assert len(set(found)) == 4
    assert not any(is_sink_name(posixpath.basename(directory)) for directory in found[1:])


def test_the_error_says_how_to_move_a_record_that_an_earlier_version_has_written(shop: Shop, tmp_path: Path) -> None:
    sink = shop.named("Orders")
    Driver(sink)
    [directory] = tmp_path.rglob("Orders.*")
    directory.rename(directory.with_name("Orders"))
    with pytest.raises(ConfigurationError, match=r"copy the files of _twopc/Orders/ to _twopc/Orders\.\w+/"):
        Driver(sink)
    directory.with_name("Orders").rename(directory)
    Driver(sink)
