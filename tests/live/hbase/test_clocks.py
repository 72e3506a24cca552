"""Clocks that differ keep a driver from starting, and a sink whose timestamps are ahead says so."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import pytest

from tests.live.hbase.support import sink_of
from tests.live.one_task import batch
from twopc import control
from twopc.attempt import Evidence
from twopc.errors import ConfigurationError
from twopc.sinks.hbase.mappings import Append, Delete, Increment, Put
from twopc.sinks.hbase.staging import STATE, own_row
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.hbase.support import Store
    from twopc.sinks.hbase.mappings import Mapping

_TEN_MINUTES_MS = 600_000

MAPPINGS: dict[type[Mapping], Callable[[str], Mapping]] = {
    Put: lambda row: Put(row, {"d:v": "n"}),
    Delete: lambda row: Delete(row, ["d:v"]),
    Increment: lambda row: Increment(row, {"d:v": "n"}),
    Append: lambda row: Append(row, {"d:v": "n"}),
}


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the clock of this host's drivers ahead of its own, or back."""
    right = control.now_ms

    def set_ahead(ms: int) -> None:
        monkeypatch.setattr(control, "now_ms", lambda: right() + ms)

    return set_ahead


def write(driver: Driver, number: int) -> None:
    scan_start = driver.begin()
    assert driver.commit([driver.prepare(batch(id=[1], n=[number]))], scan_start) == [Evidence.COMMITTED]


@pytest.mark.parametrize("kind", [Put, Delete])
def test_a_driver_whose_clock_is_ahead_does_not_start(
    kind: type[Mapping], store: Store, set_clock: Callable[[int], None]
) -> None:
    sink = sink_of(store, MAPPINGS[kind](store.prefix + ":{id}"))
    set_clock(_TEN_MINUTES_MS)
    with pytest.raises(ConfigurationError, match=r"this host's clock is \d+ s ahead of HBase's clock.*Synchronize"):
        Driver(sink)
    with contextlib.closing(sink.create_committer()) as committer:
        owner = committer.inspect()
    assert owner is not None
    assert owner.query_id is None  # the driver has not acquired the sink
    set_clock(0)
    Driver(sink)


@pytest.mark.parametrize("kind", [Increment, Append])
def test_a_driver_starts_with_any_clock_if_its_rows_carry_the_servers_time(
    kind: type[Mapping], store: Store, set_clock: Callable[[int], None]
) -> None:
    set_clock(_TEN_MINUTES_MS)
    write(Driver(sink_of(store, MAPPINGS[kind](store.prefix + ":{id}"))), 1)


@pytest.mark.parametrize("ahead_ms", [30_000, -30_000])
def test_a_driver_starts_if_its_clock_is_slightly_ahead_or_behind(
    ahead_ms: int, store: Store, set_clock: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    set_clock(ahead_ms)
    with caplog.at_level(logging.WARNING, "twopc"):
        write(Driver(sink_of(store, MAPPINGS[Put](store.prefix + ":{id}"))), 1)
    assert store.value(1) == b"1"
    assert not caplog.records


def test_only_a_new_sink_does_not_start_if_the_drivers_clock_is_behind(
    store: Store, set_clock: Callable[[int], None]
) -> None:
    sink = sink_of(store, MAPPINGS[Put](store.prefix + ":{id}"))
    set_clock(-_TEN_MINUTES_MS)
    with pytest.raises(ConfigurationError, match=r"this host's clock is \d+ s behind"):
        Driver(sink)
    set_clock(0)
    write(Driver(sink), 1)
    set_clock(-_TEN_MINUTES_MS)
    write(Driver(sink), 2)
    assert store.value(1) == b"2"


def test_a_start_warns_about_timestamps_that_are_still_ahead_because_a_renamed_sink_would_write_hidden_cells(
    store: Store, set_clock: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    sink = sink_of(store, MAPPINGS[Put](store.prefix + ":{id}"))
    driver = Driver(sink)
    set_clock(_TEN_MINUTES_MS)  # while the query runs
    write(driver, 1)
    set_clock(0)
    with caplog.at_level(logging.WARNING, "twopc"):
        write(Driver(sink), 2)
    assert store.value(1) == b"2"
    [warning] = caplog.messages
    assert "s ahead of HBase's clock" in warning
    assert "keep the sink's name and its rows in table 'twopc'" in warning
    # This is what the warning is about.
    write(Driver(sink_of(store, sink.mapping)), 3)
    assert store.value(1) == b"2"


def test_a_start_leaves_no_row_in_which_it_has_read_the_clock(store: Store) -> None:
    sink = sink_of(store, MAPPINGS[Put](store.prefix + ":{id}"))
    Driver(sink)
    assert list(store.client.scan(sink.staging_table, own_row(sink.name, "clock/"), STATE)) == []
