"""Cells to which a query appends contain every row once, although the query is killed again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.hbase.support import FAMILY, sink_of
from twopc.integration.spark import exactly_once
from twopc.sinks.hbase.mappings import Append

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.live.hbase.support import Store
    from twopc.testing.kill_loop import Outcome


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_killed_query_appends_every_row_once(store: Store, kill_loop: Callable[..., Outcome]) -> None:
    # Two rows per chunk: a kill may come between two chunks of a task.
    sink = sink_of(store, Append(store.prefix + ":{key}", {"d:v": "text"}), chunk_rows=2)

    def query(frame: DataFrame, _checkpoint: str) -> DataStreamWriter:
        rows = frame.selectExpr("key", "concat(number, ' ') AS text")
        return rows.writeStream.foreachBatch(exactly_once(sink, write_by="tasks"))

    def appended() -> list[bytes]:
        return [number for cells in store.all_cells().values() for number in cells[FAMILY, b"v"].value.split()]

    outcome = kill_loop(appended, query=query, kills=3, crash_points=["driver.committing"])
    outcome.require_exactly_once()
    assert not outcome.missed
