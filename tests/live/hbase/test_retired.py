"""A sink's rows are deleted from its own table, as docs/deployment.md says, and a new query uses the sink's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.hbase.support import sink_of
from tests.live.one_task import apply, batch
from twopc import control
from twopc.attempt import Evidence
from twopc.sinks.hbase.mappings import Increment
from twopc.sinks.hbase.row_ops import Op, delete
from twopc.sinks.hbase.staging import own_row

if TYPE_CHECKING:
    from tests.live.hbase.support import Store

#: HBase replaces this timestamp by the region server's time, as for the shell's `deleteall`.
_NOW_MS = 2**63 - 1


@pytest.mark.parametrize("ahead_ms", [0, -600_000])
def test_the_name_of_a_retired_sink_can_be_used_again_with_any_clock(
    ahead_ms: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion hides every cell with an earlier timestamp, even a cell that is written later."""
    right = control.now_ms
    sink = sink_of(store, Increment(f"{store.prefix}:{{id}}", {"d:v": "n"}))
    rows = batch(id=[1], n=[1])
    assert apply(sink, rows, rows) == [Evidence.COMMITTED] * 2
    for name in ("control", "fence"):
        row = own_row(sink.name, name)
        op = Op(sink.staging_table, row, mutations=(delete(row, up_to_ms=_NOW_MS),))
        assert store.client.execute([op]) == [True]
    monkeypatch.setattr(control, "now_ms", lambda: right() + ahead_ms)
    for number in range(3, 5):
        assert apply(sink, rows) == [Evidence.COMMITTED]
        assert store.total(1) == number
